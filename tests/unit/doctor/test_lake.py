"""`dvsync doctor` on many tables: what each is refused for, and the summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.doctor.diagnosis import Diagnosis, Finding, ReaderTrouble, Verdict
from daemon.doctor.lake import summarize, summary_lines
from daemon.errors import ObjectMissing
from tests.kit.handmade import COLUMNS, FEATURES, HandmadeTable
from tests.kit.invoke import invoke

CONFIG = """
catalogs: {c: {type: sql, uri: "sqlite:///catalog.db", warehouse: w}}
tables: [{source: "lake/*/", target: "lake.{name}", name: "{name}"}]
"""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four tables that can be followed, one of them with deletions, and three that cannot."""
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        table = made(tmp_path, f"good{number}")
        paths = [table.write_file([(row, "x", "v") for row in range(6)]) for _ in range(2)]
        table.commit([table.add(path, deleted=[1] if number == 0 else []) for path in paths])
    for name, column in {"odd": "v", "other": "w"}.items():
        table = made(tmp_path, name)
        metadata = table.metadata((*COLUMNS, (column, "variant")))
        table.commit([{"protocol": table.protocol([*FEATURES, "variantType"])}, {"metaData": metadata}])
    table = made(tmp_path, "future")
    features = ["deletionVectors", "timeTravel"]
    table.commit([{"protocol": {**table.protocol(), "readerFeatures": features, "writerFeatures": features}}])
    return tmp_path / "lake"


def made(folder: Path, name: str) -> HandmadeTable:
    table = HandmadeTable(folder / "lake" / name)
    table.create()
    return table


def doctor(*arguments: str) -> tuple[int, str]:
    result = invoke(["doctor", *arguments])
    return result.exit_code, result.output


def summary(*arguments: str) -> dict[str, Any]:
    code, output = doctor(*arguments, "--json")
    found: dict[str, Any] = json.loads(output)
    assert code == (1 if found["reasons"] or found["unexamined"] else 0)
    return found


def test_a_deletion_vector_whose_file_is_gone(lake: Path) -> None:
    """Its file is asked for, once for all vectors in it: a first sync would fail on it."""
    table = HandmadeTable(lake / "gone")
    table.create()
    paths = [table.write_file([(row, "x", "v") for row in range(6)]) for _ in range(2)]
    table.commit([table.add(path) for path in paths])
    table.commit(table.delete({path: [1] for path in paths}))
    for file in table.folder.glob("deletion_vector*"):
        file.unlink()
    code, output = doctor(str(table.folder))
    assert code == 1
    assert "its deletion vector: the file is not there" in output
    assert "Restore it, or" in output


def names(sources: list[str]) -> set[str]:
    return {source.rpartition("/")[2] for source in sources}


@pytest.mark.parametrize("place", ["lake", "lake/*/", None])
def test_a_lake(lake: Path, place: str | None) -> None:
    """A folder, a pattern, and all tables of the configuration come to the same."""
    if place is None:
        Path("config.yaml").write_text(CONFIG)
    found = summary(*([place] if place else []))
    assert names([table["source"] for table in found["tables"]]) == {path.name for path in lake.iterdir()}
    variant, feature = found["reasons"]
    assert names(variant["tables"]) == {"odd", "other"} and variant["text"].startswith("a column has the type variant")
    assert names(feature["tables"]) == {"future"} and "timeTravel is not supported" in feature["text"]
    assert found["first_syncs"] == {"tables": 4, "data_files": 8, "rows": 48, "deletion_vectors": 2}
    (daft,) = [each for each in found["readers"] if each["readers"] == ["Daft"]]
    assert len(daft["tables"]) == 4


def test_texts_that_arrow_reads_as_views(tmp_path: Path) -> None:
    """As delta-rs writes them: a reader has trouble, and the columns are named."""
    table = made(tmp_path, "viewed")
    path = table.write_file([(1, "x", "v")])
    file = table.folder / path
    read = pq.read_table(file)
    viewed = read.schema.set(2, pa.field("value", pa.string_view()))
    pq.write_table(read.cast(viewed), file)
    table.commit([table.add(path)])
    (found,) = summary(str(table.folder))["tables"]
    (trouble,) = [each for each in found["readers"] if "PyIceberg" in each["readers"]]
    assert trouble["columns"] == ["value"] and trouble["text"].startswith("stored as Arrow's string views")


def test_what_is_printed(lake: Path) -> None:
    code, output = doctor("lake")
    assert code == 1
    lines = output.splitlines()
    assert sum(line.endswith(": can be followed") for line in lines) == 4
    assert sum("has the type variant" in line for line in lines) == 3, "for each table, and in the summary"
    at = lines.index("4 of 7 tables can be followed.")
    assert lines[at + 1].startswith("  2 (odd, other): a column has the type variant")
    assert "First syncs read the footers of 8 data files (48 rows) and 2 deletion vectors." in lines[at:]
    assert lines[-2] == "Readers will have trouble with these tables:"
    assert lines[-1].startswith("  4 (good0, good1, good2, …): Daft: cannot read files without field ids")


def test_reasons_and_readers_are_counted_by_what_they_are_about() -> None:
    """Names of columns are left out of a reason, and nothing else; the same trouble of two tables is one."""
    refused = Finding(Verdict.REFUSED, "column a", "column a is a list, and column mapping gives no id", "Drop it.")
    wrong = [ReaderTrouble(("PyIceberg", "Polars"), "reads it wrong", (column,)) for column in ("a", "b")]
    fails = ReaderTrouble(("PyIceberg",), "fails")
    examined = [diagnosis(refused), diagnosis(readers=(fails, wrong[0])), diagnosis(readers=(wrong[1],))]
    lake = summarize([("t", each) for each in examined])
    assert [reason.text for reason in lake.reasons] == ["a column is a list, and column mapping gives no id"]
    assert [(each.readers, each.text, len(each.tables)) for each in lake.readers] == [
        (("PyIceberg", "Polars"), "reads it wrong", 2),
        (("PyIceberg",), "fails", 1),
    ]


def test_a_pattern_is_no_table() -> None:
    away = ObjectMissing("the folder is not there", hint="Mount it.")
    text = "\n".join(summary_lines(summarize([("file:///lake/*", away), ("file:///t", diagnosis())])))
    assert "1 of 1 tables can be followed." in text
    assert "patterns that could not be listed: file:///lake/*" in text


def diagnosis(*findings: Finding, readers: tuple[ReaderTrouble, ...] = ()) -> Diagnosis:
    return Diagnosis(source="t", version=0, findings=findings, readers=readers)


def test_names_of_the_configuration(lake: Path) -> None:
    Path("config.yaml").write_text(CONFIG)
    assert len(summary("good*")["tables"]) == 4
    assert len(summary("good1", "lake/good1", "odd")["tables"]) == 2, "each table once"
    code, output = doctor("nothing*")
    assert code == 2 and "nothing*" in output


def test_a_table_that_cannot_be_examined_stops_no_other(lake: Path) -> None:
    """A commit is being written."""
    with (lake / "good1" / "_delta_log" / f"{2:020d}.json").open("w") as file:
        file.write('{"commitInfo"')
    found = summary("lake")
    (error,) = found["unexamined"]
    assert (names([error["source"]]), error["kind"]) == ({"good1"}, "CommitIncomplete")
    assert found["first_syncs"]["tables"] == 3


def test_variants_are_no_trouble_for_readers_that_know_them(lake: Path) -> None:
    """What is refused by default is followed, and the doctor says what a reader makes of it."""
    config = lake.parent / "config.yaml"
    config.write_text(CONFIG + "defaults: {format_version: 3, readers: [spark, duckdb]}\n")
    code, output = doctor("odd", "--config", str(config))
    assert code == 0 and "the null of JSON" in output, output
    config.write_text(CONFIG + "defaults: {format_version: 3}\n")
    code, output = doctor("odd", "--config", str(config))
    assert code == 1 and "readers: [spark, duckdb]" in output, output
