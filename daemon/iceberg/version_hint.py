"""`metadata/version-hint.text`: tells readers that know only a table's folder which metadata file is current."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from pyiceberg.table import Table

from daemon.errors import SyncError, Unsupported
from daemon.observe import log as events
from daemon.store.durable import force_to_disk, is_local, put_in_place
from daemon.store.locations import canonical

NAME = "version-hint.text"
SUFFIX = ".metadata.json"
HINT_FAILED = (
    "Check the store of the Iceberg table. The hint is written again with the next commit, or within ten minutes."
)

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class VersionHint:
    """The hint of one table. Remembers what it wrote, and whether the last attempt failed."""

    def __init__(self, check_lease: Callable[[], None], load_table: Callable[[], Table]) -> None:
        self._check_lease = check_lease
        self._load_table = load_table
        self._written: str | None = None
        self._has_failed = False

    def update(self, table: Table) -> None:
        """Let the hint name the table's current metadata file, if it does not yet. Of several failures the first one is
        logged, and the next call tries again: the hint serves nobody but readers by folder.
        """
        if table.metadata_location == self._written:
            return
        try:
            # The next holder of the lease would not know that its hint was replaced.
            self._check_lease()
            if not table.metadata_location.endswith(SUFFIX):
                # Nessie answers a commit with an address of its own, and names the file only when the table is loaded.
                table = self._load_table()
            _write(table)
        except Exception as error:
            if not self._has_failed:
                hint = error.hint if isinstance(error, SyncError) else HINT_FAILED
                _log.warning(events.HINT_UNWRITTEN, reason=f"{type(error).__name__}: {error}", hint=hint)
            self._has_failed = True
            return
        self._written, self._has_failed = table.metadata_location, False


def _write(table: Table) -> None:
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
