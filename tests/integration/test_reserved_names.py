"""Columns with names that Iceberg or its readers use: refused where Spark cannot read them, followed elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from daemon.errors import Unsupported
from daemon.translate import delta_types
from daemon.translate.delta_types import RESERVED_NAMES
from tests.integration.test_types import assert_refused
from tests.kit.follow import Followed
from tests.kit.readers import Spark, assert_readers_agree, duckdb_connection, read_delta
from tests.kit.service import InProcess, Service
from tests.kit.writer import Writer

# Iceberg spec, "Reserved Field IDs".
SPEC_NAMES = (
    *("_file", "_pos", "_deleted", "_spec_id", "_partition", "file_path", "pos", "row", "_change_type"),
    *("_change_ordinal", "_commit_snapshot_id", "_row_id", "_last_updated_sequence_number"),
)
# Columns that DuckDB's scans of Parquet and Iceberg have of their own.
DUCKDB_NAMES = ("file_row_number", "filename", "file_index", "rowid", "delete_count")
OTHER_SPELLINGS = tuple(name.upper() for name in sorted(RESERVED_NAMES - {"_pos"}))
HARMLESS = (*sorted(set(SPEC_NAMES) - RESERVED_NAMES), *DUCKDB_NAMES, *OTHER_SPELLINGS)
DELETES = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"


def columns(names: tuple[str, ...], sign: str = " ") -> str:
    return ", ".join(f"`{name}`{sign}BIGINT" for name in names)


def values(names: tuple[str, ...]) -> str:
    """The values of row `id`: other ones in each column."""
    return ", ".join(f"id + {100 * number}" for number, _ in enumerate(names, start=1))


def ids_where(session: SparkSession, location: str, column: str, value: int) -> list[int]:
    found = session.read.format("iceberg").load(location).where(f"`{column}` = {value}").select("id")
    return [row[0] for row in found.collect()]


def readers_where(table: Table, spark: Spark, column: str, value: int) -> Iterator[tuple[str, list[int]]]:
    """The ids of the rows with this value, by each reader's filter."""
    yield "Spark", spark(ids_where, table.metadata_location, column, value)
    query = f'SELECT id FROM iceberg_scan(?) WHERE "{column}" = {value}'
    yield "DuckDB", [row[0] for row in duckdb_connection().execute(query, [table.metadata_location]).fetchall()]
    for reader in ("native", "pyiceberg"):
        frame: Any = polars.scan_iceberg(table, reader_override=reader)
        yield f"Polars {reader}", frame.filter(polars.col(column) == value).select("id").collect()["id"].to_list()
    found = table.scan(row_filter=EqualTo(column, value), selected_fields=("id",))
    yield "PyIceberg", found.to_arrow()["id"].to_pylist()


def test_names_that_no_reader_minds_are_followed(service: Service, tmp_path: Path) -> None:
    """Names of the spec's other reserved fields, of DuckDB's own columns, in capitals, and any inside of a struct."""
    table = Followed(service, tmp_path)
    fields = columns(SPEC_NAMES, ": ")
    table.step(f"CREATE TABLE {{t}} (id BIGINT, {columns(HARMLESS)}, s STRUCT<{fields}>) USING delta {DELETES}")
    struct = ", ".join(f"'{name}', id" for name in SPEC_NAMES)
    table.step(f"INSERT INTO {{t}} SELECT id, {values(HARMLESS)}, named_struct({struct}) FROM range(0, 6, 1, 1)")
    table.step("DELETE FROM {t} WHERE id IN (1, 4)", operation="delete")
    for number, name in enumerate(HARMLESS, start=1):
        for reader, ids in readers_where(table.bench.iceberg(), table.writer.spark, name, 100 * number + 3):
            assert ids == [3], f"{reader} with a filter on {name}"


@pytest.mark.long
def test_names_that_spark_takes_for_its_own(
    spark: SparkSession, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark refuses just these; the other readers would show them. The day this fails, the refusal has had its time."""
    reserved: Any = spark._jvm.org.apache.iceberg.MetadataColumns
    assert {name for name in SPEC_NAMES if reserved.isMetadataColumn(name)} == RESERVED_NAMES
    assert reserved.metadataFieldIds().size() == len(RESERVED_NAMES)
    monkeypatch.setattr(delta_types, "RESERVED_NAMES", frozenset())
    monkeypatch.setattr(delta_types, "POSITION_NAME", "")

    table = Followed(InProcess(writer), tmp_path / "small")
    names = tuple(sorted(RESERVED_NAMES))
    table.sql(f"CREATE TABLE {{t}} (id BIGINT, {columns(names)}) USING delta {DELETES}")
    table.sql(f"INSERT INTO {{t}} SELECT id, {values(names)} FROM range(0, 6, 1, 1)")
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.bench.sync()
    iceberg = table.bench.iceberg()
    assert_readers_agree(iceberg, None, read_delta(spark, str(table.source), iceberg))
    frame = spark.read.format("iceberg").load(iceberg.metadata_location)
    for name in names:
        with pytest.raises(Py4JJavaError, match=rf"conflict with names reserved .*\[{name}\]"):
            frame.select(name).collect()

    table = Followed(InProcess(writer), tmp_path / "capitals")
    table.sql(f"CREATE TABLE {{t}} (id BIGINT, _POS BIGINT) USING delta {DELETES}")
    table.sql("INSERT INTO {t} SELECT id, id FROM range(0, 6, 1, 1)")
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.bench.sync()
    iceberg = table.bench.iceberg()
    with pytest.raises(Py4JJavaError, match="_POS and _pos collide"):
        spark.read.format("iceberg").load(iceberg.metadata_location).where("id = 3").collect()


def test_reserved_names_are_renamed_in_delta(service: Service, tmp_path: Path) -> None:
    """The refused column stays in the files under its name; with another one in the schema, every reader reads it."""
    table = Followed(service, tmp_path)
    names = tuple(sorted(RESERVED_NAMES))
    table.step(f"CREATE TABLE {{t}} (id BIGINT) USING delta {DELETES}")
    table.step("INSERT INTO {t} SELECT id FROM range(0, 6, 1, 1)")
    table.sql(f"ALTER TABLE {{t}} ADD COLUMNS ({columns(names)})")
    words = f"Iceberg reserves the name of column {', '.join(names)}, which Spark would misread"
    assert_refused(table, words)
    table.sql(f"INSERT INTO {{t}} SELECT id, {values(names)} FROM range(6, 12, 1, 1)")
    table.sql("DELETE FROM {t} WHERE id IN (1, 7)")
    first = table.new_bench("first")
    with pytest.raises(Unsupported, match=words):
        first.sync()

    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    for name in names:
        table.sql(f"ALTER TABLE {{t}} RENAME COLUMN `{name}` TO `my{name}`")
    # The commits in between are still refused; the newest version is tried by itself.
    service.wait(lambda: table.bench.status()["state"] == "synced", "the table without reserved names")
    table.sync_and_check("renamed")
    first.sync()
    assert first.iceberg().schema().column_names == table.bench.iceberg().schema().column_names
    table.step(f"INSERT INTO {{t}} SELECT id, {values(names)} FROM range(12, 18, 1, 1)", operation="append")
    table.step("DELETE FROM {t} WHERE id IN (2, 8, 13)", operation="delete")
    table.step("ALTER TABLE {t} DROP COLUMNS (my_pos, my_deleted)", snapshots=0)
    table.step("DELETE FROM {t} WHERE id IN (3, 9, 14)", operation="delete")


def test_a_table_with_lists_is_replaced(service: Service, tmp_path: Path) -> None:
    """Column mapping gives no ids to what is in lists: the way out is a table with other names in the place of it."""
    table = Followed(service, tmp_path)
    table.step(f"CREATE TABLE {{t}} (id BIGINT, list ARRAY<INT>) USING delta {DELETES}")
    table.sql("ALTER TABLE {t} ADD COLUMNS (_file STRING)")
    table.sql("INSERT INTO {t} VALUES (1, array(1, NULL), 'a'), (2, NULL, 'b')")
    assert_refused(table, "Iceberg reserves the name of column _file")
    table.sql(f"CREATE OR REPLACE TABLE {{t}} USING delta {DELETES} AS SELECT id, list, _file AS file FROM {{t}}")
    service.wait(lambda: table.bench.status()["state"] == "synced", "the table in the refused one's place")
    table.sync_and_check("replaced")
    table.step("DELETE FROM {t} WHERE id = 1", operation="delete")
