"""Which readers show what Delta shows, in spite of a fault of a table or of its files: the one list of it. Pure.

Faults that all readers misread are not here. Tests say of each fault who reads it; of a reader that they cannot ask,
nothing is known, so it counts as misreading it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from daemon.config.settings import TESTED_READERS, Reader
from daemon.errors import MirrorKind, Unsupported

TITLES: Mapping[Reader, str] = {
    Reader.SPARK: "Spark",
    Reader.PYICEBERG: "PyIceberg",
    Reader.POLARS: "Polars",
    Reader.DUCKDB: "DuckDB",
    Reader.CLICKHOUSE: "ClickHouse",
    Reader.TRINO: "Trino",
    Reader.ATHENA: "Athena",
    Reader.SNOWFLAKE: "Snowflake",
    Reader.BIGQUERY: "BigQuery",
}


class Fault(StrEnum):
    """The values are names in the Iceberg table's properties."""

    ARROW_TYPE = "arrow-type"
    ELEMENT_IDS = "element-ids"
    INT96_RANGE = "int96-range"
    LAYOUT = "list-layout"
    MAP_IDS = "map-ids"
    PARTITION_DOUBLE = "partition-double"
    PARTITION_VALUE = "partition-value"
    RENAMED_CONTENTS = "renamed-contents"
    RESERVED_NAME = "reserved-name"
    UNSIGNED = "unsigned"
    VARIANT = "variant"
    VOID = "void"
    ZONE_FLAG = "zone-flag"


# Those of the schema. All others are those of files.
SCHEMA_FAULTS = frozenset({Fault.RENAMED_CONTENTS, Fault.RESERVED_NAME, Fault.VARIANT, Fault.VOID})


@dataclass(frozen=True)
class Known:
    """A fault in words, and who shows what Delta shows all the same."""

    text: str
    read_by: frozenset[Reader]


def _known(text: str, *read_by: Reader) -> Known:
    return Known(text, frozenset(read_by))


KNOWN: Mapping[Fault, Known] = {
    Fault.ARROW_TYPE: _known("types of Arrow's that Iceberg does not have", Reader.SPARK, Reader.DUCKDB),
    Fault.ELEMENT_IDS: _known("elements of lists without field ids", Reader.PYICEBERG, Reader.POLARS),
    Fault.INT96_RANGE: _known("INT96 timestamps that may be before 1677 or after 2262", Reader.SPARK, Reader.DUCKDB),
    Fault.LAYOUT: _known(
        "lists and maps in the layout of older Parquet files", Reader.SPARK, Reader.PYICEBERG, Reader.POLARS
    ),
    Fault.MAP_IDS: _known("keys and values of maps without field ids", Reader.PYICEBERG),
    Fault.PARTITION_DOUBLE: _known("doubles that partition the table", Reader.SPARK, Reader.DUCKDB),
    Fault.PARTITION_VALUE: _known("partition values that the files contradict", Reader.SPARK),
    Fault.RENAMED_CONTENTS: _known(
        "structs nested in lists or maps whose fields have other names in the files", Reader.SPARK, Reader.DUCKDB
    ),
    Fault.RESERVED_NAME: _known("columns whose names Iceberg reserves", Reader.PYICEBERG, Reader.POLARS, Reader.DUCKDB),
    Fault.UNSIGNED: _known("unsigned numbers", Reader.PYICEBERG, Reader.POLARS, Reader.DUCKDB),
    Fault.VARIANT: _known("variants", Reader.SPARK, Reader.DUCKDB),
    Fault.VOID: _known("columns of nulls without a type", Reader.SPARK, Reader.PYICEBERG, Reader.POLARS),
    Fault.ZONE_FLAG: _known("timestamps with a wrong flag of UTC", Reader.SPARK, Reader.PYICEBERG, Reader.POLARS),
}


def misreaders(fault: Fault, readers: Iterable[Reader]) -> list[Reader]:
    """Return those of `readers` that are not known to show what Delta shows, each once."""
    return [reader for reader in dict.fromkeys(readers) if reader not in KNOWN[fault].read_by]


def readers_of(fault: Fault) -> list[Reader]:
    """Return those that show what Delta shows, in the order of the settings."""
    return [reader for reader in Reader if reader in KNOWN[fault].read_by]


def titles(readers: Sequence[Reader]) -> str:
    """`Spark`, `Spark and DuckDB`, `PyIceberg, Polars and Trino (not tested)`."""
    named = [TITLES[each] if each in TESTED_READERS else f"{TITLES[each]} (not tested)" for each in readers]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def others_misread(fault: Fault) -> str:
    """Example: `DuckDB, which would misread the layout of lists or maps in older Parquet files`."""
    return f"{titles(misreaders(fault, TESTED_READERS))}, which would misread {KNOWN[fault].text}"


@dataclass
class Faults:
    """The faults of a table's schema or of a file that is read by `readers`, each with the column that has it."""

    readers: Collection[Reader]
    found: set[tuple[Fault, str]] = field(default_factory=set)

    def add(self, fault: Fault, column: str, what: str, *, hint: str, lifted_by: MirrorKind | None = None) -> None:
        """Note a fault, of which `what` says where it is.

        Raises `Unsupported` if one of the readers would misread it; the hint also names the setting `readers`.
        """
        if not (wrong := misreaders(fault, self.readers)):
            self.found.add((fault, column))
            return
        raise Unsupported(
            f"{what}, which {titles(wrong)} would misread",
            hint=f"{hint} Or set readers: [{', '.join(readers_of(fault))}] if no other program reads the table; it "
            "would misread it.",
        ).lift_by(lifted_by)
