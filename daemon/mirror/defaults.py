"""Values that Delta on Spark fills in where a file lacks a column: the SQL texts of EXISTS_DEFAULT."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pyiceberg.types import BinaryType, BooleanType, IcebergType, StringType

from daemon.delta.actions import Metadata
from daemon.errors import SyncError, Unsupported
from daemon.translate.delta_types import EXISTS_DEFAULT, metadata_of, parse_struct, physical_name
from daemon.translate.partition_values import parse_partition_value

# Spark writes a folded literal (Literal.sql), or what the user wrote.
CAST: Final = re.compile(r"CAST\(\s*(?P<inner>.*)\s+AS\s+[A-Z_]+(\([0-9, ]+\))?\s*\)", re.IGNORECASE | re.DOTALL)
NUMBER: Final = re.compile(r"(?P<number>[+-]?[0-9.]+(E[+-]?[0-9]+)?)(L|S|Y|D|F|BD)?", re.IGNORECASE)
TEXT: Final = re.compile(
    r"(?P<kind>DATE|TIMESTAMP|TIMESTAMP_LTZ|TIMESTAMP_NTZ|X)?\s*'(?P<text>(?:[^'\\]|\\[\\'])*)'", re.I
)
ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def defaults_of(metadata: Metadata) -> Mapping[str, str]:
    """Return the SQL texts by the physical names of the columns, as `TableSchema.filled`."""
    fields = parse_struct(metadata.schema_string)["fields"]
    with_default = [field for field in fields if EXISTS_DEFAULT in metadata_of(field)]
    return {physical_name(field): str(metadata_of(field)[EXISTS_DEFAULT]) for field in with_default}


def parse_default(sql: str, field_type: IcebergType, column: str, time_zone: str) -> Any:
    """Return the value as in an Iceberg partition tuple; None for NULL. `time_zone` is that of timestamps without one.

    Example: "CAST('2020-01-01' AS DATE)" of a date is 18262. Raises `Unsupported` for what is no such literal.
    """
    text = sql.strip()
    while cast := CAST.fullmatch(text):
        text = cast["inner"].strip()
    try:
        return _parse(text, field_type, column, time_zone)
    except (SyncError, ValueError) as error:
        raise Unsupported(
            f"the default {sql} of column {column}, with which Delta fills files that lack it, is no literal that "
            "dvsync reads",
            hint="Rewrite these files in Delta, for example with an UPDATE of their rows.",
        ) from error


def _parse(text: str, field_type: IcebergType, column: str, time_zone: str) -> Any:
    if not field_type.is_primitive:
        raise ValueError(f"{field_type} is no type of literals")
    if text.upper() == "NULL":
        return None
    quoted = TEXT.fullmatch(text)
    if quoted and (quoted["kind"] or "").upper() == "X":
        return bytes.fromhex(quoted["text"])
    value = ESCAPED.sub(r"\1", quoted["text"]) if quoted else text
    if isinstance(field_type, BinaryType | StringType):
        if not quoted or quoted["kind"]:
            raise ValueError(f"{text} is no text")
        return value.encode() if isinstance(field_type, BinaryType) else value
    if not quoted and not isinstance(field_type, BooleanType):
        number = NUMBER.fullmatch(text)
        if not number:
            raise ValueError(f"{text} is no number")
        value = number["number"]
    return parse_partition_value(value, field_type, column, time_zone)
