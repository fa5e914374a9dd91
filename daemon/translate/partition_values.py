"""Delta's partition value strings -> Iceberg partition tuples. Delta PROTOCOL.md, "Partition Value Serialization".

As in Iceberg, dates are days, and timestamps microseconds since 1970. The protocol calls the empty string null for
every type, but Delta on Spark, and delta-rs, which writes it, read the one of a string column as an empty string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from struct import pack, unpack
from typing import Any
from zoneinfo import ZoneInfo

from pyiceberg.conversions import partition_to_py
from pyiceberg.typedef import Record
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

from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput, Unsupported, errors_at
from daemon.translate.schema import TableSchema

EPOCH_DAY = date(1970, 1, 1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# Iceberg spec, "Primitive Types": whole numbers of 32 and 64 bits.
INT_RANGE: Mapping[type[IcebergType], int] = {IntegerType: 1 << 31, LongType: 1 << 63}
# Of the texts that Python reads, Delta reads these as the same value. It takes others, such as `1_000`, for null.
NUMBER = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
ZONE = r"Z|[+-][0-9]{2}:[0-9]{2}(:[0-9]{2})?"
MOMENT = re.compile(rf"{DAY.pattern}([T ][0-9]{{2}}(:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]+)?)?)?({ZONE})?)?")
# A year that Spark writes and Python has not.
OTHER_YEAR = re.compile(r"(?:[+-]?[0-9]{5,}|-[0-9]+|0000)-")


def parse_partition_value(text: str | None, field_type: IcebergType, column: str, time_zone: str = "UTC") -> Any:
    """Return the value as in an Iceberg partition tuple; None for null. `time_zone` applies to timestamps without one.

    Raises `CorruptInput` naming the column for a text not of the type, `Unsupported` for years other than 1 to 9999.
    """
    if text is None or (text == "" and not isinstance(field_type, StringType)):
        return None
    if isinstance(field_type, DateType | TimestampType | TimestamptzType) and OTHER_YEAR.match(text):
        raise Unsupported(
            f"partition value {text!r} of column {column} is not in the years 1 to 9999: PyIceberg and Polars cannot "
            "show other years",
            hint="Delete these rows in the Delta table, or give them another value; dvsync then continues by itself.",
        )
    try:
        return _parse(text, field_type, time_zone)
    except (ValueError, ArithmeticError) as error:
        raise CorruptInput(
            f"partition value {text!r} of column {column} is not a {field_type}",
            hint="The partition value breaks Delta's rules. Fix the program that wrote this file, then rewrite the "
            "file with Delta.",
        ) from error


def _parse(text: str, field_type: IcebergType, time_zone: str) -> Any:
    value: Any
    match field_type:
        case StringType():
            value = text
        case BinaryType():
            # Delta writes bytes that are no UTF-8 as other ones, and reads these.
            value = text.encode()
        case IntegerType() | LongType() | FloatType() | DoubleType() | DecimalType() if not NUMBER.fullmatch(text):
            raise ValueError(f"{text!r} is not a number")
        case IntegerType() | LongType():
            value = in_range(int(text), field_type)
        case BooleanType() if text.lower() in ("true", "false"):
            value = text.lower() == "true"
        case FloatType() | DoubleType():
            # -0.0 becomes 0.0: SQL treats them as equal, but engines that skip files by partition do not.
            value = float(text) + 0.0
            if isinstance(field_type, FloatType):
                (value,) = unpack("<f", pack("<f", value))
        case DecimalType():
            value = exact_decimal(Decimal(text), field_type)
        case DateType():
            value = parse_days(text)
        case TimestampType() if zone_of(text) in ("", "Z"):
            value = timestamp_micros(text)
        case TimestamptzType():
            value = timestamp_micros(text, time_zone)
        case _:
            raise ValueError(f"{text!r} is no {field_type}")
    return value


def in_range(number: int, field_type: IntegerType | LongType) -> int:
    """Return `number` unchanged. Raises ValueError when the type cannot hold it."""
    limit = INT_RANGE[type(field_type)]
    if not -limit <= number < limit:
        raise ValueError(f"{number} is not a {field_type}")
    return number


def exact_decimal(number: Decimal, field_type: DecimalType) -> Decimal:
    """Return `number` with the type's scale. Raises ArithmeticError or ValueError when the type cannot hold it."""
    if not number.is_finite():
        raise ValueError(f"{number} is not a {field_type}")
    # Python's default context keeps 28 digits, but a decimal has up to 38.
    context = Context(prec=field_type.precision, traps=[InvalidOperation, Inexact])
    return number.quantize(Decimal((0, (1,), -field_type.scale)), context=context)


def parse_days(text: str) -> int:
    """Parse `2020-01-01` to days since 1970."""
    if not DAY.fullmatch(text):
        raise ValueError(f"{text!r} is not a date")
    return (date.fromisoformat(text) - EPOCH_DAY).days


def timestamp_micros(text: str, time_zone: str = "UTC") -> int:
    """Parse `2020-01-01 00:00:00.123456`, also with `T` or a zone (else `time_zone`), to microseconds since 1970."""
    if not MOMENT.fullmatch(text):
        raise ValueError(f"{text!r} is not a timestamp")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=ZoneInfo(time_zone))
    return (moment - EPOCH) // MICROSECOND


def zone_of(text: str) -> str:
    """Return the zone in the text of a timestamp."""
    return text[len("2020-01-01") :].lstrip("T 0123456789:.")


def internal_form(value: Any) -> Any:
    """Return a value that Arrow read in the form of partition tuples: days or microseconds since 1970."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // MICROSECOND
    return (value - EPOCH_DAY).days if isinstance(value, date) else value


def partition_of(add: AddFile, table: TableSchema, spec_id: int) -> tuple[Any, ...]:
    """Return the partition tuple of an add: a value for each field of the spec. Raises as `parse_partition_value`."""
    with errors_at(path=add.path):
        return tuple(
            parse_partition_value(
                add.partition_values.get(table.physical_names[field.source_id]),
                table.schema.find_type(field.source_id),
                field.name,
                table.time_zone,
            )
            for field in table.specs[spec_id].fields
        )


def encode_partition(partition: Record) -> tuple[str | None, ...]:
    """Return the partition of a manifest entry as texts. `decode_partition` is the inverse."""
    values = (partition[number] for number in range(len(partition)))
    texts = (value.decode() if isinstance(value, bytes) else value for value in values)
    return tuple(None if text is None else str(text) for text in texts)


def decode_partition(texts: Sequence[str | None], table: TableSchema, spec_id: int) -> tuple[Any, ...]:
    """Return the values of a partition tuple, as `partition_of` does. The inverse of `encode_partition`."""
    types = [table.schema.find_type(field.source_id) for field in table.specs[spec_id].fields]
    values: list[Any] = []
    for text, kind in zip(texts, types, strict=True):
        # PyIceberg takes Hive's name of a null for a null, which is a text like another here.
        if text is None or isinstance(kind, StringType):
            values.append(text)
        else:
            values.append(text.encode() if isinstance(kind, BinaryType) else partition_to_py(kind, text))  # type: ignore[arg-type]
    return tuple(values)
