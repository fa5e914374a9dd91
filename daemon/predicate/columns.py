"""The columns that a predicate names, and its literals as their values. Pure.

What Spark would cast before it compares is refused, unless the literal is exactly a value of the column's type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NoReturn

from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from daemon.delta.actions import Metadata
from daemon.delta.features import fields_of
from daemon.errors import ConfigInvalid, SyncError
from daemon.predicate.tree import Field, Value
from daemon.translate.delta_types import (
    EXISTS_DEFAULT,
    MAPPING_ID,
    is_collated,
    metadata_of,
    parse_struct,
    physical_name,
    primitive_type,
)
from daemon.translate.metrics import as_float32
from daemon.translate.partition_values import exact_decimal, in_range, parse_days, timestamp_micros, zone_of
from daemon.translate.readers import Faults

LiteralKind = Literal["number", "string", "boolean", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"]
# Spark's name of the length of a CHAR column, whose values it pads with blanks before it compares them.
CHARS = "__CHAR_VARCHAR_TYPE_STRING"
PADDED = re.compile(r"(?<!var)char\(", re.IGNORECASE)
# Iceberg's timestamps have microseconds, and Spark cuts off what is below.
FRACTION = re.compile(r"\.[0-9]{7}")
HINT = (
    "docs/deletes.md says what a predicate may have. With --engine spark it may have all of Spark SQL but subqueries."
)


@dataclass(frozen=True)
class Constant:
    """A literal as it is written; the text of a string without its quotes."""

    kind: LiteralKind
    text: str

    def __str__(self) -> str:
        if self.kind in ("number", "boolean"):
            return self.text
        quoted = "'{}'".format(self.text.replace("'", "''"))
        return quoted if self.kind == "string" else f"{self.kind} {quoted}"


def refuse(what: str) -> NoReturn:
    raise ConfigInvalid(f"the predicate cannot be used: {what}", hint=HINT)


class Columns:
    """The columns of a table by their names, as Spark finds them: whatever their case."""

    def __init__(self, metadata: Metadata) -> None:
        self._struct = {**parse_struct(metadata.schema_string), "type": "struct"}
        self._partitions = set(metadata.partition_columns)
        self._by_id = metadata.column_mapping_mode == "id"

    def find(self, names: tuple[str, ...]) -> Field:
        """Find a column, or a field inside structs. Raises ConfigInvalid if there is none, or more than one."""
        told, steps = ".".join(names), list[dict[str, Any]]()
        kind: Any = self._struct
        for name in names:
            found = [field for field in fields_of(kind) if str(field["name"]).lower() == name.lower()]
            if not found:
                refuse(f"there is no column {told}")
            if len(found) > 1:
                refuse(f"the name {told} stands for {' and '.join(str(field['name']) for field in found)}")
            steps += found
            kind = found[0]["type"]
        if any(EXISTS_DEFAULT in metadata_of(step) for step in steps):
            refuse(f"files without the column {told} have a default value of it ({EXISTS_DEFAULT})")
        return Field(
            name=told,
            path=tuple(map(physical_name, steps)),
            ids=tuple(int(metadata_of(step)[MAPPING_ID]) for step in steps) if self._by_id else None,
            kind=comparable_type(steps, told),
            is_partition=len(steps) == 1 and steps[0]["name"] in self._partitions,
        )


def comparable_type(steps: Sequence[dict[str, Any]], name: str) -> Any:
    """Return the type of a field's values as Iceberg's; None if they cannot be compared as Spark does.

    Spark pads values of CHAR. Only the outermost column, `steps[0]`, says where they are in it.
    """
    field = steps[-1]
    is_padded = field["type"] == "string" and PADDED.search(str(metadata_of(steps[0]).get(CHARS, "")))
    if not isinstance(field["type"], str) or is_collated(field) or is_padded:
        return None
    try:
        kind = primitive_type(field["type"], name, 2, Faults(()))
    except (SyncError, ValueError):
        return None
    return kind if isinstance(kind, COMPARED) else None


COMPARED = (
    *(BooleanType, IntegerType, LongType, FloatType, DoubleType, DecimalType),
    *(StringType, DateType, TimestampType, TimestamptzType),
)


def check_same_type(left: Field, right: Field) -> None:
    """Raise ConfigInvalid if two fields are not compared exactly: both of one type, or both whole numbers."""
    whole = (IntegerType, LongType)
    is_whole = isinstance(left.kind, whole) and isinstance(right.kind, whole)
    if left.kind is None or not (left.kind == right.kind or is_whole):
        refuse(f"{left.name} is {_told(left)}, and {right.name} is {_told(right)}")


def value_of(constant: Constant, field: Field) -> Value:
    """Return the value of the field's type that a literal stands for. Raises ConfigInvalid if it is none."""
    try:
        value = _value(constant, field)
    except (ValueError, ArithmeticError) as error:
        refuse(f"{field.name} is {_told(field)}, and {constant} is not exactly such a value: {error}")
    if value is None:
        hint = ""
        if isinstance(field.kind, TimestamptzType):
            hint = "; write TIMESTAMP '2026-01-31 12:00:00Z', with Z or an offset such as +01:00"
        elif isinstance(field.kind, TimestampType):
            hint = "; write TIMESTAMP_NTZ '2026-01-31 12:00:00'"
        refuse(f"{field.name} is {_told(field)}, and {constant} is another type{hint}")
    return value


def _told(field: Field) -> str:
    return f"of the type {field.kind}" if field.kind else "of a type that is only compared with NULL"


def _value(constant: Constant, field: Field) -> Value | None:
    """Return the value; None if the types differ. Raises ValueError or ArithmeticError if it is not exactly one."""
    text = constant.text
    value: Value | None = None
    match field.kind, constant.kind:
        # In Spark, a number with an exponent is a double.
        case IntegerType() | LongType(), "number" if not _has_exponent(text):
            number = Decimal(text)
            if number != number.to_integral_value():
                raise ValueError("it has a fraction")
            value = in_range(int(number), LongType())
        case DecimalType() as kind, "number" if not _has_exponent(text):
            value = exact_decimal(Decimal(text), kind)
        case (DoubleType() | FloatType()) as kind, "number":
            value = _float(text, kind)
        case StringType(), "string":
            value = text
        case BooleanType(), "boolean":
            value = text == "TRUE"
        case DateType(), "DATE" | "string":
            value = parse_days(text)
        case (TimestamptzType(), "TIMESTAMP") if zone_of(text):
            value = _micros(text)
        case (TimestampType(), "TIMESTAMP_NTZ") if not zone_of(text):
            value = _micros(text)
    return value


def _has_exponent(text: str) -> bool:
    return "e" in text.lower()


def _float(text: str, kind: FloatType | DoubleType) -> float:
    """Return the double that is nearest, as Spark does. It compares floats as doubles, which 0.1 is not exactly."""
    value = float(text)
    if math.isinf(value):
        raise ValueError("it is too large")
    if isinstance(kind, FloatType) and (as_float32(value) != value or Decimal(value) != Decimal(text)):
        raise ValueError("a float cannot hold it")
    return value


def _micros(text: str) -> int:
    if FRACTION.search(text):
        raise ValueError("it has more than microseconds")
    return timestamp_micros(text)
