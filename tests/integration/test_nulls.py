"""Null, empty and filled lists, maps and structs in each other, three levels deep: what each reader makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from daemon.errors import Unsupported
from tests.integration.test_doctor import doctor
from tests.kit.follow import Followed
from tests.kit.readers import READERS, Row, as_pyiceberg, assert_same_rows, read_pyiceberg, read_spark, rows_of
from tests.kit.service import InProcess, Service
from tests.kit.writer import Writer

# Delta does not check what is in lists and maps, and says so unless it is told to go on.
UNENFORCED = "spark.databricks.delta.constraints.allowUnenforcedNotNull.enabled"


@pytest.fixture(autouse=True)
def unenforced_constraints(writer: Writer) -> Iterator[None]:
    with writer.confs({UNENFORCED: "true"}):
        yield


@dataclass(frozen=True)
class Kind:
    """A type and values of it: null, empty, filled, and filled with null. Its name is read from the outside in."""

    name: str
    type: pa.DataType
    values: Sequence[Any]


def kinds(depth: int, *, dense: bool = False) -> list[Kind]:
    """Every list, struct and map of these so deep at most; in `dense` ones no element or value may be null."""
    found: list[Kind] = []
    level = [Kind("int", pa.int32(), (None, 1, 2))]
    for _ in range(depth):
        level = [made for kind in level for made in _around(kind, dense=dense)]
        found += level
    return found


def _around(kind: Kind, *, dense: bool) -> Iterator[Kind]:
    values = [value for value in kind.values if value is not None or not dense]
    there = [value for value in values if value is not None]
    element = pa.field("element", kind.type, nullable=not dense)
    yield Kind(f"list_{kind.name}", pa.list_(element), (None, [], values, there[:1], *([] if dense else [[None]])))
    struct = pa.struct([("x", kind.type), ("y", pa.string())])
    yield Kind(f"struct_{kind.name}", struct, (None, *({"x": value, "y": "s"} for value in kind.values)))
    value_field = pa.field("value", kind.type, nullable=not dense)
    named = [(f"k{number}", value) for number, value in enumerate(values)]
    yield Kind(f"map_{kind.name}", pa.map_(pa.string(), value_field), (None, [], named, named[:1]))
    if "map" in kind.name:
        return  # Spark has no maps whose keys hold maps.
    filled = [(key, number if number or dense else None) for number, key in enumerate(there)]
    number = pa.field("value", pa.int32(), nullable=not dense)
    yield Kind(f"map-by_{kind.name}", pa.map_(kind.type, number), (None, [], filled, filled[-1:]))
    structs = [(key, None if value is None else {"v": value, "w": "w"}) for key, value in filled]
    struct_field = pa.field("value", pa.struct([("v", pa.int32()), ("w", pa.string())]), nullable=not dense)
    yield Kind(f"map-to-struct-by_{kind.name}", pa.map_(kind.type, struct_field), (None, [], structs, structs[-1:]))


def write(session: SparkSession, folder: Path, depth: int, dense: bool, properties: Mapping[str, str]) -> None:
    """Make the Delta table, with a column a kind and every value of it in each of two files."""
    columns = kinds(depth, dense=dense)
    rows = max(len(kind.values) for kind in columns)
    arrays = [pa.array([kind.values[row % len(kind.values)] for row in range(rows)], kind.type) for kind in columns]
    frame = session.createDataFrame(
        pa.table([pa.array(range(rows)), *arrays], ["id", *(each.name for each in columns)])
    )
    builder = DeltaTable.create(session).location(str(folder)).addColumns(frame.schema)
    for key, value in properties.items():
        builder = builder.property(key, value)
    builder.execute()
    for first in (0, rows):
        frame.withColumn("id", frame["id"] + first).write.format("delta").mode("append").save(str(folder))


@dataclass(frozen=True)
class Told:
    """What `dvsync doctor` tells of a table."""

    diagnosis: Mapping[str, Any]

    @classmethod
    def of(cls, table: Followed) -> Told:
        return cls(json.loads(doctor(str(table.source), "--json")[1])["tables"][0])

    @property
    def refused(self) -> set[str]:
        found = (finding for finding in self.diagnosis["findings"] if finding["verdict"] == "refused")
        return {finding["subject"].removeprefix("column ") for finding in found}

    def troubles(self, ending: str) -> set[str]:
        """The columns of which some reader's trouble, told in words that end so, is told."""
        (trouble,) = (each for each in self.diagnosis["readers"] if each["text"].endswith(ending))
        return {name.split(".")[0] for name in trouble["columns"]}


def differing(rows: Sequence[Row], others: Sequence[Row], table: Table) -> set[str]:
    """The columns that two readers show otherwise. Rows begin with their numbers."""
    names = [field.name for field in table.schema().fields]
    pairs = zip(sorted(rows, key=itemgetter(0)), sorted(others, key=itemgetter(0)), strict=True)
    return {
        name for row, other in pairs for name, value, shown in zip(names, row, other, strict=True) if value != shown
    }


@pytest.mark.parametrize(("depth", "dense"), [(3, False), (2, True)])
def test_nulls_are_null_but_for_those_the_doctor_names(
    service: Service, tmp_path: Path, *, depth: int, dense: bool
) -> None:
    """Spark, DuckDB and Polars show all of them; PyIceberg shows null lists of structs and maps to structs as empty."""
    table = Followed(service, tmp_path)
    table.writer.do(write, table.source, depth, dense, {"delta.enableDeletionVectors": "true"})
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.step()
    iceberg, told = table.bench.iceberg(), Told.of(table)
    wrong = differing(read_pyiceberg(iceberg), read_spark(iceberg, table.writer.spark), iceberg)
    assert told.troubles("is shown as empty") == wrong
    assert {"list_struct_int", "map_struct_int", "map-to-struct-by_int"} < wrong


def test_what_readers_cannot_under_column_mapping(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where PyIceberg would show null for what is there, the column is refused; other troubles are told by the doctor.

    The day this fails, the refusal has had its time.
    """
    table = Followed(InProcess(writer), tmp_path)
    # Column mapping needs the ids that IcebergCompat gives to what is in lists and maps.
    mapped = {"delta.columnMapping.mode": "name", "delta.enableIcebergCompatV2": "true"}
    writer.do(write, table.source, 3, False, mapped)
    told = Told.of(table)
    with pytest.raises(Unsupported, match=r"is a list or map with nested structs whose fields .* which PyIceberg and"):
        table.bench.sync()
    monkeypatch.setattr("daemon.translate.columns.hides_renamed", lambda kind: False)
    table.bench.sync()
    iceberg = table.bench.iceberg()
    expected = rows_of(writer.delta(table.source), iceberg.schema().fields)
    for name in ("Spark", "DuckDB"):
        assert_same_rows(READERS[name](iceberg, writer.spark), expected, name)
    as_known = [
        tuple(as_pyiceberg(value, field.field_type) for value, field in zip(row, iceberg.schema().fields, strict=True))
        for row in expected
    ]
    shown = read_pyiceberg(iceberg)
    assert differing(shown, as_known, iceberg) == told.refused
    assert differing(shown, expected, iceberg) - told.refused == told.troubles("is shown as empty")
    failing = {kind.name for kind in kinds(3) if not is_read_by_polars(iceberg, kind.name, expected)}
    assert failing - told.refused == told.troubles("cannot read maps with structs in their keys")


def is_read_by_polars(iceberg: Table, column: str, expected: Sequence[Row]) -> bool:
    """Whether Polars' native reader shows this column; a wrong value is a failure of the test."""
    try:
        found = polars.scan_iceberg(iceberg, reader_override="native").select("id", column).collect()
    except polars.exceptions.SchemaError:
        return False
    fields = [iceberg.schema().find_field(name) for name in ("id", column)]
    place = iceberg.schema().fields.index(fields[1])
    assert_same_rows(rows_of(found.to_arrow(), fields), [(row[0], row[place]) for row in expected], "Polars native")
    return True
