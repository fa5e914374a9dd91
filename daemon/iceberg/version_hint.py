"""`metadata/version-hint.text`: tells readers that know only a table's folder which metadata file is current."""

from __future__ import annotations

from pyiceberg.table import Table

from daemon.errors import Unsupported
from daemon.store.durable import force_to_disk, is_local, put_in_place
from daemon.store.locations import canonical

NAME = "version-hint.text"
SUFFIX = ".metadata.json"
ADVICE = "Check the store of the Iceberg table. The hint is written again with the next commit, or within ten minutes."


def write_hint(table: Table) -> None:
    """Write the hint: the file's name without `.metadata.json`, and no newline, because DuckDB appends the suffix to
    the whole text. Readers see the old one or the new one. Raises Unsupported if the file is not in the table's folder
    `metadata`, where readers expect both files, and what the table's FileIO raises.
    """
    folder, _, name = table.metadata_location.rpartition("/")
    expected = f"{table.metadata.location.rstrip('/')}/metadata"
    if canonical(folder) != canonical(expected):
        raise Unsupported(
            "the metadata file is not in the folder of the Iceberg table where readers look for it",
            path=table.metadata_location,
            hint=f"Let the catalog write metadata files to {expected}; or unset `version_hint` for this table, and "
            f"remove the old {NAME}.",
        )
    path = f"{folder}/{NAME}"
    # A kill leaves this file; the next hint replaces it.
    place = f"{path}.new" if is_local(path) else path
    with table.io.new_output(place).create(overwrite=True) as file:
        file.write(name.removesuffix(SUFFIX).encode())
    force_to_disk([place])
    put_in_place(place, path)
