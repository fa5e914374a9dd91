"""How each engine reads an Iceberg table: made without loading the table, because the daemon answers from memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from daemon.store.locations import canonical


def address_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return what leads a reader to a store other than Amazon's S3; nothing of its credentials."""
    address = {key: properties[key] for key in ("s3.endpoint", "s3.region") if key in properties}
    return address if "s3.endpoint" in address else {}


def read_lines(
    catalog: str,
    target: Sequence[str],
    metadata_location: str,
    *,
    address: Mapping[str, str],
    snapshot_id: int | None = None,
) -> dict[str, str]:
    """Return a line for each reader that reads the snapshot, or the current one.

    The catalog's name is the one in dvsync's configuration; the reader's own configuration may use another. There is a
    line for ClickHouse if its table functions can name the metadata file: on local files and S3. Credentials, and for
    DuckDB the endpoint, are the reader's own settings.
    """
    identifier = ".".join(_quoted(part, "`") for part in (catalog, *target))
    for_trino = ".".join(_quoted(part, '"') for part in (catalog, *target))

    def at(words: str) -> str:
        return "" if snapshot_id is None else words.format(snapshot_id)

    properties = options = ""
    if address and canonical(metadata_location).startswith("s3://"):
        properties, options = f", {dict(address)}", f", storage_options={dict(address)}"
    lines = {
        "Spark": f"SELECT * FROM {identifier}{at(' VERSION AS OF {}')}",
        "PyIceberg": f"from pyiceberg.table import StaticTable; "
        f"StaticTable.from_metadata({metadata_location!r}{properties})"
        f".scan({at('snapshot_id={}')}).to_arrow()",
        "DuckDB": f"SELECT * FROM iceberg_scan({_sql_text(metadata_location)}{at(', snapshot_from_id => {}')})",
        "Polars": f"import polars; "
        f"polars.scan_iceberg({metadata_location!r}{at(', snapshot_id={}')}{options}).collect()",
        "Trino": f"SELECT * FROM {for_trino}{at(' FOR VERSION AS OF {}')}",
    }
    if function := _clickhouse_function(metadata_location, address.get("s3.endpoint")):
        lines["ClickHouse"] = f"SELECT * FROM {function}{at(' SETTINGS iceberg_snapshot_id = {}')}"
    return lines


def _clickhouse_function(metadata_location: str, s3_endpoint: str | None) -> str | None:
    """Return the call of ClickHouse's table function that reads the metadata file; credentials are its own."""
    # Iceberg spec, "File System Tables": metadata files are in the folder `metadata` of the table's location.
    location, found, file = metadata_location.rpartition("/metadata/")
    scheme, _, place = canonical(f"{location}/").partition("://")
    function = {"file": "icebergLocal", "s3": "icebergS3"}.get(scheme)
    if function is None or not found:
        return None
    if scheme == "s3":
        place = f"{s3_endpoint.rstrip('/')}/{place}" if s3_endpoint else f"s3://{place}"
    metadata_file = _sql_text(f"metadata/{file}")
    return f"{function}({_sql_text(place)}, SETTINGS iceberg_metadata_file_path = {metadata_file})"


def _sql_text(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _quoted(part: str, mark: str) -> str:
    return part if re.fullmatch(r"[A-Za-z_]\w*", part) else f"{mark}{part.replace(mark, 2 * mark)}{mark}"
