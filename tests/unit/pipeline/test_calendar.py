"""Old calendars and INT96's range: what a footer and the bounds tell of them."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

import pytest

from daemon.config.settings import TESTED_READERS
from daemon.delta.actions import Metadata
from daemon.errors import Unsupported
from daemon.pipeline.inspection import FIRST_DAY, FIRST_MICROS, check_calendar, check_int96
from daemon.translate.file_schema import FileSchema
from daemon.translate.metrics import Metrics, parse_stats
from daemon.translate.readers import Faults
from daemon.translate.schema import TableSchema, translate_schema

LEGACY = {b"org.apache.spark.version": b"3.5.1", b"org.apache.spark.legacyDateTime": b""}
LEGACY_INT96 = {b"org.apache.spark.version": b"3.5.1", b"org.apache.spark.legacyINT96": b""}
PLAIN = FileSchema(days={1, 2})
ALL_INT96 = FileSchema(int96={2: "t"}, days={1})
# A file from before these columns were added.
WITHOUT = FileSchema()
TIMES = {"type": "array", "elementType": "timestamp", "containsNull": True}


def table_of(*columns: tuple[str, Any], partition: tuple[str, ...] = ()) -> TableSchema:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return translate_schema(Metadata("t", json.dumps({"type": "struct", "fields": fields}), list(partition), {}))


TABLE = table_of(("d", "date"), ("t", "timestamp"))


def metrics(day: str | None = "2020-01-01", time: str | None = "2020-01-01T00:00:00.000Z", **nulls: int) -> Metrics:
    values = {name: value for name, value in (("d", day), ("t", time)) if value}
    stats = {"numRecords": 3, "minValues": values, "maxValues": values, "nullCount": nulls}
    return parse_stats(json.dumps(stats), TABLE.leaves, 3, has_dv=False)


@pytest.mark.parametrize(
    ("footer", "file", "found", "column"),
    [
        (LEGACY, PLAIN, metrics("1582-10-14"), "d"),
        (LEGACY, PLAIN, metrics(time="1899-12-31T23:59:59.999Z"), "t"),
        (LEGACY, PLAIN, metrics(day=None), "d"),
        (LEGACY_INT96, ALL_INT96, metrics(time="1899-12-31T23:59:59.999Z"), "t"),
        ({b"org.apache.spark.version": b"2.4.8"}, PLAIN, metrics("0001-01-01"), "d"),
        ({b"org.apache.spark.version": b"3.0.3"}, ALL_INT96, metrics(time=None), "t"),
    ],
)
def test_days_of_the_old_calendar_are_refused(
    footer: dict[bytes, bytes], file: FileSchema, found: Metrics, column: str
) -> None:
    """Named with the column, and where the statistics do not tell as well."""
    with pytest.raises(Unsupported, match=rf"^column {column} of the file has or may have values before"):
        check_calendar(footer, file, found, TABLE)


@pytest.mark.parametrize(
    ("footer", "file", "found"),
    [
        ({}, PLAIN, metrics("0001-01-01")),
        ({b"org.apache.spark.version": b"what"}, PLAIN, metrics("0001-01-01")),
        ({b"org.apache.spark.version": b"9" * 5000 + b".0"}, PLAIN, metrics("0001-01-01")),
        ({b"org.apache.spark.version": b"2.4.8"}, WITHOUT, metrics(day=None, time=None)),
        ({b"org.apache.spark.version": b"3.5.1"}, ALL_INT96, metrics("0001-01-01", "0001-01-01T00:00:00Z")),
        ({b"org.apache.spark.version": b"3.0.0"}, PLAIN, metrics("0001-01-01", "0001-01-01T00:00:00Z")),
        (LEGACY, PLAIN, metrics("1582-10-15", "1900-01-01T00:00:00.000Z")),
        (LEGACY, PLAIN, metrics(day=None, d=3)),
        (LEGACY, ALL_INT96, metrics(time="1500-01-01T00:00:00.000Z")),
        (LEGACY_INT96, PLAIN, metrics("1500-01-01", "1500-01-01T00:00:00.000Z")),
    ],
)
def test_days_of_the_present_calendar_pass(footer: dict[bytes, bytes], file: FileSchema, found: Metrics) -> None:
    """Each flag speaks of its own kind of timestamps; nulls and recent days are the same in both calendars."""
    check_calendar(footer, file, found, TABLE)


def test_the_old_calendar_in_lists_and_partitions() -> None:
    """What lists hold has no statistics, so it is refused; partition values are not in the file at all."""
    bare = Metrics(1, {}, {}, {}, {})
    only_elements = FileSchema(days={2})
    with pytest.raises(Unsupported, match=r"column l\.element of"):
        check_calendar(LEGACY, only_elements, bare, table_of(("l", TIMES)))
    only_day = FileSchema(days={1})
    check_calendar(LEGACY, only_day, bare, table_of(("d", "date"), ("x", "long"), partition=("d",)))


@pytest.mark.parametrize("year", ["1600", "2300", "9999", "+11476", "-0027"])
def test_int96_beyond_nanoseconds_is_refused(year: str) -> None:
    """64-bit nanoseconds end in 1677 and 2262; the same timestamps in another encoding pass."""
    found = metrics(time=f"{year}-01-01T00:00:00.000Z")
    with pytest.raises(Unsupported, match=r"^column t of the file has INT96 timestamps before 1677 or after 2262"):
        check_int96(ALL_INT96, found, TABLE, Faults(TESTED_READERS))
    check_int96(PLAIN, found, TABLE, Faults(TESTED_READERS))


@pytest.mark.parametrize("time", ["1677-09-22T00:00:00.000Z", "2262-04-11T00:00:00.000Z", None])
def test_int96_within_nanoseconds_passes(time: str | None) -> None:
    """Where the statistics do not tell, the column is left to be read."""
    assert check_int96(ALL_INT96, metrics(time=time), TABLE, Faults(TESTED_READERS)) == (set() if time else {"t"})
    assert check_int96(ALL_INT96, metrics(time=None, t=3), TABLE, Faults(TESTED_READERS)) == set()


def test_the_limits_are_the_calendars() -> None:
    """The numbers of the module are the days that its text names."""
    assert (date(1582, 10, 15) - date(1970, 1, 1)).days == FIRST_DAY
    assert (datetime(1900, 1, 1) - datetime(1970, 1, 1)).total_seconds() * 1e6 == FIRST_MICROS
