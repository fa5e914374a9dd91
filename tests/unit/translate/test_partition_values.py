"""Partition values: every type that Delta spells, and what is not of its type."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from daemon.delta.actions import AddFile, Metadata
from daemon.errors import CorruptInput, Unsupported
from daemon.iceberg.manifests import ManifestHeader, read_entries, write_manifest
from daemon.iceberg.pyiceberg_ext.records import data_file_record, entry_record
from daemon.translate.partition_values import (
    decode_partition,
    encode_partition,
    parse_partition_value,
    partition_of,
    timestamp_micros,
)
from daemon.translate.schema import translate_schema

EVERY_TYPE = [
    BooleanType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(9, 2),
    StringType(),
    BinaryType(),
    DateType(),
    TimestampType(),
    TimestamptzType(),
]


@pytest.mark.parametrize(
    ("text", "field_type", "expected"),
    [
        ("true", BooleanType(), True),
        ("FALSE", BooleanType(), False),
        ("-2147483648", IntegerType(), -(1 << 31)),
        ("2147483647", IntegerType(), (1 << 31) - 1),
        ("-9223372036854775808", LongType(), -(1 << 63)),
        ("1.5", FloatType(), 1.5),
        ("-1.7976931348623157E308", DoubleType(), -1.7976931348623157e308),
        ("Infinity", FloatType(), float("inf")),
        ("-Infinity", DoubleType(), float("-inf")),
        ("1.20", DecimalType(9, 2), Decimal("1.20")),
        ("-7", DecimalType(9, 2), Decimal("-7.00")),
        (
            "12345678901234567890.123456789012345678",
            DecimalType(38, 18),
            Decimal("12345678901234567890.123456789012345678"),
        ),
        ("9" * 38, DecimalType(38, 0), Decimal("9" * 38)),
        ("a b/c=d%é", StringType(), "a b/c=d%é"),
        (" ", StringType(), " "),
        ("null", StringType(), "null"),
        ("__HIVE_DEFAULT_PARTITION__", StringType(), "__HIVE_DEFAULT_PARTITION__"),
        ("é\x01", BinaryType(), b"\xc3\xa9\x01"),
        ("1970-01-01", DateType(), 0),
        ("1969-12-31", DateType(), -1),
        ("0001-01-01", DateType(), -719162),
        ("9999-12-31", DateType(), 2932896),
        ("1970-01-01 00:00:01", TimestampType(), 1_000_000),
        ("1970-01-01 00:00:00.5", TimestampType(), 500_000),
        ("1969-12-31 23:59:59.999999", TimestampType(), -1),
        ("1970-01-01 00:00:00.000001", TimestamptzType(), 1),
        ("1970-01-01T00:00:00.000001Z", TimestamptzType(), 1),
        ("1970-01-01T02:00:00+02:00", TimestamptzType(), 0),
    ],
)
def test_a_value_of_each_type(text: str, field_type: IcebergType, expected: Any) -> None:
    """Delta's spelling becomes what Iceberg keeps in a partition tuple, to the last digit."""
    value = parse_partition_value(text, field_type, "p")
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize("field_type", EVERY_TYPE, ids=str)
@pytest.mark.parametrize("text", [None, ""])
def test_null_and_the_empty_string_are_null(text: str | None, field_type: IcebergType) -> None:
    """PROTOCOL.md, "Partition Value Serialization". But Delta on Spark keeps the empty string of a string column."""
    kept = text == "" and isinstance(field_type, StringType)
    assert parse_partition_value(text, field_type, "p") == ("" if kept else None)


def test_nan_is_kept_and_zero_is_one() -> None:
    """NaN stays NaN; zeros of both signs are one value in SQL, and must be one to engines that pass over files."""
    assert str(parse_partition_value("NaN", DoubleType(), "p")) == "nan"
    assert str(parse_partition_value("-0.0", DoubleType(), "p")) == "0.0"


@pytest.mark.parametrize(
    ("text", "field_type"),
    [
        ("yes", BooleanType()),
        ("1.5", IntegerType()),
        ("2147483648", IntegerType()),
        ("9223372036854775808", LongType()),
        ("x", DoubleType()),
        ("1.234", DecimalType(9, 2)),
        ("12345678.00", DecimalType(9, 2)),
        ("NaN", DecimalType(9, 2)),
        ("x", DecimalType(9, 2)),
        ("2020-13-01", DateType()),
        ("18262", DateType()),
        ("yesterday", TimestampType()),
        ("\ud800", BinaryType()),
        # Python reads these, and Delta takes them for null.
        ("1_000", IntegerType()),
        ("\u0665", LongType()),
        ("1_0", DoubleType()),
        ("1_0.5", DecimalType(9, 2)),
        ("20200101", DateType()),
        ("2020-W01-1", DateType()),
        ("20200101T000000", TimestamptzType()),
        ("2020-01-01x00:00:00", TimestampType()),
        # Delta ignores the zone.
        ("2020-01-01T00:00:00+02:00", TimestampType()),
    ],
)
def test_a_value_that_is_not_of_its_type_is_corrupt(text: str, field_type: IcebergType) -> None:
    """What does not fit is refused with value, column and type; nothing is rounded or cut."""
    with pytest.raises(CorruptInput) as caught:
        parse_partition_value(text, field_type, "p")
    assert f"partition value {text!r} of column p is not a {field_type}" in caught.value.message


@pytest.mark.parametrize("text", ["+12345-01-01", "12345-01-01", "-0001-01-01", "0000-01-01"])
@pytest.mark.parametrize("field_type", [DateType(), TimestampType(), TimestamptzType()], ids=str)
def test_a_year_that_readers_cannot_show(field_type: IcebergType, text: str) -> None:
    """Delta on Spark writes it, so nothing is broken: it is what Python's dates cannot hold."""
    with pytest.raises(Unsupported, match=re.escape(f"{text!r} of column p is not in the years 1 to 9999")) as caught:
        parse_partition_value(text, field_type, "p")
    assert "Delete these rows in the Delta table" in caught.value.hint


@given(st.datetimes(timezones=st.none() | st.timezones()))
def test_timestamps_as_delta_spells_them(moment: datetime) -> None:
    """With a space or a T, a zone or none, whole seconds or fractions: microseconds since 1970, to the last one."""
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    expected = (utc - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    plain = utc.replace(tzinfo=None)
    for text in (plain.isoformat(" "), plain.isoformat() + "Z", plain.isoformat(" ", "microseconds")):
        assert timestamp_micros(text) == expected


@given(st.decimals(allow_nan=False, allow_infinity=False, places=18, min_value=-(10**19), max_value=10**19))
def test_decimals_keep_every_digit(number: Decimal) -> None:
    """A decimal(38, 18) comes out as it went in, however many digits it has."""
    assert parse_partition_value(str(number), DecimalType(38, 18), "p") == number


@given(st.dates())
def test_dates(day: date) -> None:
    """Days since 1970, before and after."""
    assert parse_partition_value(day.isoformat(), DateType(), "p") == (day - date(1970, 1, 1)).days


def test_a_tuple_in_the_order_of_the_spec() -> None:
    """One value a field, in the spec's order, by physical name; a value that is not given is null."""
    names = {"a": "integer", "b": "string", "c": "date"}
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"phys-{name}"},
        }
        for number, (name, kind) in enumerate(names.items(), start=1)
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    table = translate_schema(Metadata("t", schema, ["c", "a", "b"], {"delta.columnMapping.mode": "name"}))
    add = _add({"phys-a": "5", "phys-c": "1970-01-02", "b": "logical"})
    assert partition_of(add, table, 0) == (1, 5, None)


def _add(partition_values: dict[str, str | None]) -> AddFile:
    return AddFile(path="a.parquet", partition_values=partition_values, size=1, data_change=True)


VALUES = {
    "boolean": ["true", "false"],
    "integer": ["-2147483648", "7"],
    "long": ["9223372036854775807", "0"],
    "float": ["0.1", "NaN", "-0.0", "Infinity"],
    "double": ["0.1", "NaN", "-0.0", "-1.7976931348623157E308"],
    "decimal(38,18)": ["-0.000000000000000001", "12345678901234567890.123456789012345678", "5"],
    "decimal(5,0)": ["-12345"],
    "string": ["a b/c=d%é", "null", "None", '"'],
    "binary": ["a b/c=d%é", "b'x'", "\x00\ufffd", "__HIVE_DEFAULT_PARTITION__"],
    "date": ["0001-01-01", "9999-12-31"],
    "timestamp": ["1969-12-31 23:59:59.999999", "2024-06-01T10:00:00+02:00"],
    "timestamp_ntz": ["9999-12-31 23:59:59.999999"],
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_partition_that_is_kept_is_the_entrys_own(tmp_path: Path, kind: str) -> None:
    """What a manifest gives back is kept as what was put into it was, and is that value again."""
    fields = [{"name": "p", "type": kind, "nullable": True, "metadata": {}}]
    table = translate_schema(Metadata("t", json.dumps({"type": "struct", "fields": fields}), ["p"], {}))
    tuples = [partition_of(_add({"p": text}), table, 0) for text in (*VALUES[kind], None)]
    io, where = PyArrowFileIO(), {"spec": table.spec, "schema": table.schema}
    written = [
        data_file_record(
            values,
            content=DataFileContent.DATA,
            file_path=str(number),
            file_format=FileFormat.PARQUET,
            record_count=1,
            file_size_in_bytes=1,
        )
        for number, values in enumerate(tuples)
    ]
    entries = [entry_record(ManifestEntryStatus.ADDED, data_file, snapshot_id=1) for data_file in written]
    manifest = write_manifest(
        io, f"{tmp_path}/m.avro", ManifestHeader(ManifestContent.DATA, **where), entries, snapshot_id=1
    )
    read = [entry.data_file for entry in read_entries(io, manifest, **where)]
    kept = [encode_partition(data_file.partition) for data_file in read]
    assert kept == [encode_partition(data_file.partition) for data_file in written]
    assert [repr(decode_partition(texts, table, 0)) for texts in kept] == [repr(values) for values in tuples]
