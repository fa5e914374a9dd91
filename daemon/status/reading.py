"""A line for each reader that reads an Iceberg table."""

from __future__ import annotations

import re

from daemon.locations import canonical


def read_lines(catalog: str, target: str, metadata_location: str, snapshot_id: int | None = None) -> dict[str, str]:
    """Return a line for each reader, of the snapshot or of the current one.

    `catalog` is the name in dvsync's configuration; the reader's own configuration may use another.
    """
    parts = (catalog, *target.split("."))
    identifier = ".".join(_quoted(part, "`") for part in parts)
    for_trino = ".".join(_quoted(part, '"') for part in parts)

    def at(words: str) -> str:
        return "" if snapshot_id is None else words.format(snapshot_id)

    return {
        "Spark": f"SELECT * FROM {identifier}{at(' VERSION AS OF {}')}",
        "PyIceberg": f"load_catalog({catalog!r}).load_table({target!r}).scan({at('snapshot_id={}')}).to_arrow()",
        "DuckDB": f"SELECT * FROM iceberg_scan({_sql_text(metadata_location)}{at(', snapshot_from_id => {}')})",
        "Polars": f"polars.scan_iceberg({metadata_location!r}{at(', snapshot_id={}')}).collect()",
        "Trino": f"SELECT * FROM {for_trino}{at(' FOR VERSION AS OF {}')}",
    }


def clickhouse_line(
    location: str, metadata_location: str, endpoint: str | None, snapshot_id: int | None = None
) -> str | None:
    """Return the line for ClickHouse, whose credentials are its own.

    None if its table functions cannot name the metadata file: they can on local files and on S3 at `endpoint`.
    """
    folder = f"{location.rstrip('/')}/"
    scheme, _, place = canonical(folder).partition("://")
    function = {"file": "icebergLocal", "s3": "icebergS3"}.get(scheme)
    if function is None or not metadata_location.startswith(folder):
        return None
    if scheme == "s3":
        place = f"{endpoint.rstrip('/')}/{place}" if endpoint else f"s3://{place}"
    metadata_file = _sql_text(metadata_location.removeprefix(folder))
    call = f"{function}({_sql_text(place)}, SETTINGS iceberg_metadata_file_path = {metadata_file})"
    return f"SELECT * FROM {call}" + ("" if snapshot_id is None else f" SETTINGS iceberg_snapshot_id = {snapshot_id}")


def _sql_text(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _quoted(part: str, mark: str) -> str:
    return part if re.fullmatch(r"[A-Za-z_]\w*", part) else f"{mark}{part.replace(mark, 2 * mark)}{mark}"
