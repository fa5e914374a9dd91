"""`dvsync doctor` says before the first sync what the first sync then does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon.errors import Unsupported
from tests.kit.follow import Followed
from tests.kit.handmade import HandmadeTable
from tests.kit.invoke import invoke
from tests.kit.service import Service

GOOD = """
    CREATE TABLE {t} (id INT, name CHAR(3), moment TIMESTAMP, structs ARRAY<STRUCT<x: INT>>) USING delta
    TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true')
"""
ODD = """
    CREATE TABLE {t} (id INT, v VARIANT, n VOID, s STRUCT<x: INT, y: VARIANT>, moment TIMESTAMP, _file INT) USING delta
"""


@pytest.fixture(autouse=True)
def without_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def doctor(*arguments: str) -> tuple[int, str]:
    result = invoke(["doctor", *arguments])
    return result.exit_code, result.output


def test_a_table_that_can_be_followed(service: Service, tmp_path: Path) -> None:
    """Features, columns, files, deletions and what readers will stumble over are told; nothing is written."""
    table = Followed(service, tmp_path)
    table.sql(GOOD)
    row = "CAST(id AS INT), 'ab', TIMESTAMP'2020-01-01 00:00:00', array(named_struct('x', 1))"
    as_stored = {"spark.sql.readSideCharPadding": "false"}
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "INT96", **as_stored}):
        table.sql(f"INSERT INTO {{t}} SELECT {row} FROM range(0, 10, 1, 1)")
        table.sql("UPDATE {t} SET name = 'x' WHERE id = 3")
    table.sql("DELETE FROM {t} WHERE id = 5")
    before = {path for path in table.folder.rglob("*") if path.is_file()}
    code, output = doctor(str(table.source))
    assert code == 0, output
    assert {path for path in table.folder.rglob("*") if path.is_file()} == before
    for told in (
        f"file://{table.source} at version 3: can be followed",
        "feature deletionVectors: become position-delete files",
        "feature rowTracking: its hidden columns stay hidden",
        "columns: 4 of 4",
        "data files: 2 of 2, 11 rows",
        "deletion vectors: 2 rows of 1 files",
        "note      column name: Spark pads CHAR values",
        "followed  format version: 2: position-delete files, which all readers",
        "note      hidden columns: _row-",
        "reader    Daft: ",
        "reader    PyIceberg, Polars: moment: INT96 values before 1677 or after 2262 are shown wrongly",
        "reader    PyIceberg, Polars (with PyIceberg): structs: a null list",
    ):
        assert told in output, f"{told!r} is not in\n{output}"
    with table.writer.confs(as_stored):
        table.sync_and_check("what the doctor looked at")


def test_a_table_that_is_refused(service: Service, tmp_path: Path) -> None:
    """All columns, features and files that stand in the way are named at once, and the sync refuses the table, too."""
    table = Followed(service, tmp_path)
    table.sql(ODD)
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "INT96"}):
        table.sql("INSERT INTO {t}(id, moment) SELECT CAST(id AS INT), TIMESTAMP'9999-12-31 00:00:00' FROM range(2)")
    code, output = doctor(str(table.source), "--json")
    assert code == 1, output
    (diagnosis,) = json.loads(output)["tables"]
    refused = {finding["subject"]: finding for finding in diagnosis["findings"] if finding["verdict"] == "refused"}
    columns = {subject: finding["text"] for subject, finding in refused.items() if subject.startswith("column")}
    assert columns.keys() == {"column v", "column n", "column s", "column _file"}
    assert columns["column s"].startswith("column s.y has the type variant")
    assert columns["column _file"].startswith("Iceberg reserves the name of column _file")
    (of_files,) = (finding for subject, finding in refused.items() if subject.startswith("file"))
    assert of_files["text"].startswith("column moment of the file has INT96 timestamps")
    assert all(finding["hint"] for finding in refused.values())
    with pytest.raises(Unsupported):
        table.bench.sync()


def test_where_there_is_no_table(tmp_path: Path) -> None:
    """A wrong path is told as such."""
    code, output = doctor(str(tmp_path / "nothing"))
    assert code == 2
    assert f"{tmp_path / 'nothing'}: no such folder" in output


def test_the_tables_of_a_pattern_are_known_by_name(tmp_path: Path) -> None:
    """As by every other command: an unknown name is answered with those that the pattern finds."""
    HandmadeTable(tmp_path / "lake" / "orders").create()
    (tmp_path / "config.yaml").write_text(
        "catalogs: {c: {type: sql, uri: 'sqlite:///catalog.db', warehouse: w}}\n"
        "tables: [{source: 'lake/*/', target: 'lake.{name}', name: '{name}'}]\n"
    )
    code, output = doctor("nothing")
    assert code == 2
    assert "Configured tables: orders." in output
