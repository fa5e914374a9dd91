"""Days and instants that Spark stored in the Julian calendar, as they are in today's. Spark converts them on reading.

Before 1582-10-15, a label such as 1500-03-01 is another day in each calendar, and Spark keeps the label. Before 1900,
old offsets of time zones differ, too. PySpark's jars have Spark's own table of both, for each zone.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distribution
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from daemon.errors import Unsupported

# Spark's keys in a footer's metadata (DataSourceUtils.scala): its version, that the file uses the Julian calendar, and
# the time zone of its writer.
SPARK_VERSION: Final = b"org.apache.spark.version"
LEGACY_DATETIME: Final = b"org.apache.spark.legacyDateTime"
LEGACY_INT96: Final = b"org.apache.spark.legacyINT96"
SPARK_TIME_ZONE: Final = b"org.apache.spark.timeZone"
SPARK_VERSION_NUMBERS: Final = re.compile(rb"(\d{1,9})\.(\d{1,9})")
# Since these versions, Spark writes today's calendar unless a LEGACY key is set.
DATETIME_SINCE, INT96_SINCE = (3, 0), (3, 1)

DAY_S: Final = 86_400
SECOND_US: Final = 1_000_000
# Spark's julian-gregorian-rebase-micros.json: from the second of `switches` on, `diffs` are added.
REBASE_FILE: Final = "julian-gregorian-rebase-micros.json"
UTC: Final = "UTC"
# A zone that never changes its offset. The calendar changes at its midnights.
OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


def is_legacy(footer: Mapping[bytes, bytes], key: bytes, since: tuple[int, int]) -> bool:
    """Return whether Spark reads a file with these key-values by the Julian calendar (DataSourceUtils.rebaseSpec)."""
    version = SPARK_VERSION_NUMBERS.match(footer.get(SPARK_VERSION, b""))
    return version is not None and (key in footer or (int(version[1]), int(version[2])) < since)


def rebase_days(days: pa.Array) -> pa.Array:
    """Convert days (date32) from the Julian calendar. Raises `Unsupported` for a year before 1."""
    moved = _moved(days.cast(pa.int32()).cast(pa.int64()), UTC, DAY_S, 1)
    return moved.cast(pa.int32()).cast(pa.date32())


def rebase_instants(instants: pa.Array, time_zone: str) -> pa.Array:
    """Convert instants (timestamp in microseconds) from the Julian calendar, in the writer's zone.

    Raises `Unsupported` for a zone that Spark does not know, or a year before 1.
    """
    return _moved(instants.cast(pa.int64()), time_zone, 1, SECOND_US).cast(instants.type)


def _moved(values: pa.Array, time_zone: str, unit_s: int, units: int) -> pa.Array:
    """Move values of `unit_s` seconds, or of which a second has `units`, by the table of a zone."""
    offset = OFFSET.fullmatch(time_zone)
    table = _rebase_tables().get(UTC if offset else time_zone)
    if table is None:
        raise Unsupported(
            f"the file is stored in the Julian calendar of the time zone {time_zone!r}, which Spark has no table of",
            hint="Rewrite the file with Spark, and set spark.sql.parquet.datetimeRebaseModeInWrite and "
            "spark.sql.parquet.int96RebaseModeInWrite to CORRECTED.",
        )
    shift_s = int(f"{offset[1]}1") * (int(offset[2]) * 3600 + int(offset[3] or 0) * 60) if offset else 0
    switches = [(second - shift_s) * units // unit_s for second in table["switches"]]
    diffs = [second * units // unit_s for second in table["diffs"]]
    least = pc.min(values).as_py()
    if least is not None and least < switches[0]:
        raise Unsupported(
            "the file has values before the year 1, stored in the Julian calendar: readers cannot show them",
            hint="Delete these rows in the Delta table, or give them another value.",
        )
    diff = pa.scalar(0, pa.int64())
    for switch, after in zip(switches, diffs, strict=True):
        diff = pc.if_else(pc.less(values, switch), diff, after)
    return pc.add(values, diff)


@cache
def _rebase_tables() -> Mapping[str, Mapping[str, list[int]]]:
    jars = [file for file in distribution("pyspark").files or () if re.search(r"/spark-sql-api_[^/]*\.jar$", str(file))]
    with zipfile.ZipFile(str(jars[0].locate())) as jar:
        return {each["tz"]: each for each in json.loads(jar.read(REBASE_FILE))}
