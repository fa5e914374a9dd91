"""Columns of types that only format version 3 has, for readers that know them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from daemon.errors import TargetChanged
from daemon.verify.findings import Level, Scope
from daemon.verify.verifier import Verifier
from tests.integration.test_maintenance import SomebodyElse
from tests.kit.follow import Followed
from tests.kit.handmade import Bench
from tests.kit.service import InProcess
from tests.kit.writer import Writer, read_delta_json

READ_BY = {"format_version": 3, "readers": ["spark", "duckdb"]}
OBJECT = """parse_json('{"a": ' || id || ', "b": "x", "c": [1, 2], "d": 1.25, "e": null}')"""
NESTED = "named_struct('v', parse_json('[' || id || ', {}]'), 'n', id)"
VALUES = f"CAST(id AS INT), CASE id % 4 WHEN 2 THEN NULL WHEN 3 THEN parse_json('\"text\"') ELSE {OBJECT} END, {NESTED}"
LISTS = ", array(parse_json('true'), NULL), map('k', parse_json('' || id))"


class Variants(Followed):
    def follow(self, statement: str, *, spark: bool = False) -> None:
        """Run a statement, sync it, and let the readers that know variants read what there is."""
        self.sql(statement)
        self.bench.sync()
        self._check_vectors(self.truth(self.bench.iceberg()), statement)
        if spark:
            self._read_by_spark()


@pytest.mark.parametrize(
    ("properties", "lists"),
    [("", True), (", 'delta.enableVariantShredding' = 'true', 'delta.columnMapping.mode' = 'name'", False)],
    ids=["plain", "shredded"],
)
def test_variants(writer: Writer, tmp_path: Path, properties: str, lists: bool) -> None:
    """At the top, in structs, lists and maps, and in a column that joins later, through all that Delta does."""
    table = Variants(InProcess(writer), tmp_path, options=READ_BY, read=read_delta_json)
    table.vectors = table.bench
    columns, values = "id INT, v VARIANT, s STRUCT<v: VARIANT, n: BIGINT>", VALUES
    if lists:
        columns, values = f"{columns}, l ARRAY<VARIANT>, m MAP<STRING, VARIANT>", values + LISTS
    table.sql(
        f"CREATE TABLE {{t}} ({columns}) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true'{properties})"
    )
    table.follow(f"INSERT INTO {{t}} SELECT {values} FROM range(0, 8, 1, 1)")
    table.follow("DELETE FROM {t} WHERE id IN (1, 3)")
    table.follow("UPDATE {t} SET v = parse_json('[1, {\"deep\": 2.5}]') WHERE id = 4", spark=True)
    table.follow("ALTER TABLE {t} ADD COLUMN w VARIANT")
    table.follow(f"INSERT INTO {{t}} SELECT {values}, parse_json('7') FROM range(8, 12, 1, 1)")
    table.follow("OPTIMIZE {t}", spark=True)
    table.follow("RESTORE TABLE {t} TO VERSION AS OF 2")


@pytest.mark.long
def test_variants_in_files_that_are_rewritten(writer: Writer, tmp_path: Path) -> None:
    """Days of the old calendar need another file; the variants beside them stay what they are, shredded ones too."""
    table = Variants(InProcess(writer), tmp_path, options={**READ_BY, "mirrors": "rewrite"}, read=read_delta_json)
    table.vectors = table.bench
    properties = "'delta.enableDeletionVectors' = 'true', 'delta.enableVariantShredding' = 'true'"
    table.sql(
        "CREATE TABLE {t} (id INT, v VARIANT, s STRUCT<v: VARIANT, n: BIGINT>, l ARRAY<VARIANT>, day DATE)"
        f" USING delta TBLPROPERTIES ({properties})"
    )
    rows = f"SELECT {VALUES}, array(parse_json('true'), NULL), DATE'1400-01-01'"
    with table.writer.confs({"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}):
        table.follow(f"INSERT INTO {{t}} {rows} FROM range(0, 8, 1, 1)", spark=True)
    assert [each.kind for each in table.bench.store.list_live_mirrors(1)] == ["rewrite"]
    table.follow("DELETE FROM {t} WHERE id IN (1, 3)")
    table.follow(f"INSERT INTO {{t}} {rows} FROM range(8, 12, 1, 1)", spark=True)
    table.follow("OPTIMIZE {t}")
    table.follow("RESTORE TABLE {t} TO VERSION AS OF 1", spark=True)
    assert [each.kind for each in table.bench.store.list_live_mirrors(1)] == ["rewrite"]


def test_somebody_else_with_variants(writer: Writer, tmp_path: Path) -> None:
    """Spark's Iceberg catalog changes the table by metadata of its own: we read it, and it reads ours."""
    table = Variants(InProcess(writer), tmp_path, options=READ_BY, read=read_delta_json)
    table.vectors = table.bench
    table.sql("CREATE TABLE {t} (id INT, v VARIANT) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    table.follow("INSERT INTO {t} SELECT CAST(id AS INT), parse_json('{\"a\": 1}') FROM range(0, 4, 1, 1)")
    theirs = SomebodyElse(table)
    theirs.sql("ALTER TABLE {i} SET TBLPROPERTIES ('somebody' = 'else')")
    table.follow("DELETE FROM {t} WHERE id = 1")
    assert table.bench.iceberg().properties["somebody"] == "else"
    theirs.sql("INSERT INTO {i} VALUES (9, parse_json('[]'))")
    table.sql("DELETE FROM {t} WHERE id = 2")
    with pytest.raises(TargetChanged):
        table.bench.sync()
    table.bench.sync(full=True)
    table.follow("DELETE FROM {t} WHERE id = 3")
    proof = Verifier(table.bench.context).verify(Scope(Level.METADATA), Event())
    assert proof and proof.is_right, proof


def test_rows_with_variants_are_verified(spark: SparkSession, tmp_path: Path) -> None:
    """By value: Delta's reader and Iceberg's put shredded variants together, each in its own way."""
    location = tmp_path / "t"
    properties = "'delta.enableDeletionVectors' = 'true', 'delta.enableVariantShredding' = 'true'"
    columns = "id INT, v VARIANT, s STRUCT<v: VARIANT, n: BIGINT>, l ARRAY<VARIANT>, m MAP<STRING, VARIANT>"
    spark.sql(f"CREATE TABLE delta.`{location}` ({columns}) USING delta TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO delta.`{location}` SELECT {VALUES + LISTS} FROM range(0, 8, 1, 1)")
    spark.sql(f"DELETE FROM delta.`{location}` WHERE id = 1")
    with closing(Bench(tmp_path / "dvsync", f"file://{location}", engine="spark", table_options=READ_BY)) as bench:
        bench.sync()
        proof = Verifier(bench.context).verify(Scope(Level.ROWS), Event())
        assert proof and proof.is_right and proof.rows == 7, proof
