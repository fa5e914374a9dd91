"""`dvsync init`: which tables it finds, what it calls them, and the file that it writes. None of these needs a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.cli import init, survey
from daemon.cli.init import CATALOG, HEAD
from daemon.config.load import load_settings
from daemon.config.settings import Settings
from tests.kit.handmade import HandmadeTable
from tests.kit.invoke import invoke

VIEWS = [("id", pa.int64()), ("part", pa.string_view()), ("value", pa.string_view())]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVSYNC_CONFIG", raising=False)


def made(*folders: str) -> None:
    for folder in folders:
        HandmadeTable(Path(folder).absolute()).create()


def surveyed(*places: str) -> tuple[dict[str, str], list[str]]:
    """Targets by source, relative to the working folder, and what was told."""
    told: list[str] = []
    items = survey.survey(load_settings(Path("config.yaml"), HEAD), CATALOG, places, told.append)
    return {item.source.removeprefix(f"file://{Path.cwd()}/"): item.target for item in items}, told


def test_tables_at_and_below_a_folder() -> None:
    """As deep as the bound, in no hidden folder and inside of no table; named by their folder and the one above."""
    made("lake/orders", "lake/orders/inner", "lake/1/2/3/four", "lake/1/2/3/4/five", "lake/_hidden", "lake/.dot/t")
    made("alone/2024 sales", "alone/größe.v2")
    Path("lake/empty").mkdir()
    found, told = surveyed("lake", "alone/2024 sales/", "file:alone/größe.v2")
    assert found == {
        "lake/orders": "lake.orders",
        "lake/1/2/3/four": "t_3.four",
        "alone/2024 sales": "alone.t_2024_sales",
        "alone/größe.v2": "alone.größe_v2",
    }
    assert told == []


def test_a_folder_above_the_working_one_is_written_without_dots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("lake/orders", "here")
    monkeypatch.chdir("here")
    for place in ("../lake", "file:../lake", "../lake/*/"):
        (found,) = survey.survey(load_settings(Path("config.yaml"), HEAD), CATALOG, [place], print)
        assert found.source == f"file://{tmp_path}/lake/{'*' if found.is_pattern else 'orders'}"


def test_targets_do_not_clash() -> None:
    """Whatever the case of letters, and whatever a pattern makes of its folders; a table of a pattern is not listed."""
    made("a/x/t", "b/x/t", "c/x/T", "d/x/one two", "d/x/one_two", "d/x/three")
    found, told = surveyed("a", "b", "c", "d", "d/x/*/")
    assert found == {
        "a/x/t": "x.t",
        "b/x/t": "x.t_2",
        "c/x/T": "x.T_3",
        "d/x/one two": "x.one_two_2",
        "d/x/*": "x.{name}",
    }
    assert told == []


def test_patterns() -> None:
    """The folder above gives the namespace: its name, or what stands for it."""
    made("lake/eu/orders", "lake/us/orders")
    assert surveyed("lake/*/orders", "lake/eu/o*/")[0] == {
        "lake/*/orders": "{parent}.{name}",
        "lake/eu/o*": "eu.{name}",
    }


def test_a_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders beyond the bound are not looked into, and that is told."""
    made("lake/a", "lake/b/deep")
    for number in range(20):
        Path(f"lake/n{number:02}").mkdir()
    monkeypatch.setattr(survey, "FOLDERS_MAX", 10)
    found, told = surveyed("lake")
    assert found == {"lake/a": "lake.a"}
    (line,) = told
    assert "the search stopped after 10 folders" in line


def dvsync(*arguments: str) -> tuple[int, str]:
    result = invoke(arguments)
    return result.exit_code, result.output


def test_places_without_a_table_are_told_all_at_once() -> None:
    """Nothing is written, and it is a wrong use of the command."""
    made("lake/orders")
    Path("empty/inner").mkdir(parents=True)
    code, output = dvsync("init", "lake", "empty", "nowhere")
    assert code == 2
    assert f"file://{Path.cwd()}/empty: no Delta table here or in the 4 levels of folders below" in output
    assert f"file://{Path.cwd()}/nowhere: no such folder" in output
    assert dvsync("init", "nowhere/*/")[0] == 1
    assert {path.name for path in Path.cwd().iterdir()} == {"lake", "empty"}


def test_a_file_that_is_there_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes while the tables are examined; another may be named."""
    made("lake/orders")
    Path("config.yaml").write_text("precious")
    code, output = dvsync("init", "lake")
    assert (code, output.splitlines()[0]) == (2, "config.yaml already exists")
    assert "--config PATH" in output

    def examine(*_: Any) -> Iterator[Any]:
        Path("other.yaml").write_text("precious")
        yield from ()

    monkeypatch.setattr(init, "examine_tables", examine)
    assert dvsync("init", "lake", "--config", "other.yaml")[0] == 2
    assert dvsync("init", "lake", "--config", "none/other.yaml")[0] == 2
    assert [Path(name).read_text() for name in ("config.yaml", "other.yaml")] == ["precious", "precious"]
    assert {path.name for path in Path.cwd().iterdir()} == {"lake", "config.yaml", "other.yaml"}


def test_a_warehouse_that_vacuum_would_clean_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places in the file are relative to it: inside of a Delta table there is none for it."""
    made("lake/orders")
    monkeypatch.chdir("lake/orders")
    code, output = dvsync("init", ".")
    assert code == 2
    assert "catalogs.local.warehouse: " in output and "where VACUUM removes every file" in output
    assert not Path("config.yaml").exists()


NAMES = (
    "a b",
    "it's",
    'say "so"',
    "# no comment",
    "key: value",
    "- item",
    "größe ✓",
    "{name}",
    "[1]",
    "a\u00a0b",
    "~",
    "null",
    "x\ny",
)


def read_back(text: str) -> Settings:
    return load_settings(Path("read.yaml"), text)


def test_names_survive() -> None:
    """Whatever a folder is called, the file says so, also where the table is a comment."""
    made(*(f"lake/{name}" for name in NAMES))
    settings = load_settings(Path("config.yaml"), HEAD)
    items = survey.survey(settings, CATALOG, ["lake"], print)
    expected = {f"file://{Path.cwd()}/lake/{name}" for name in NAMES}
    assert {table.source for table in read_back(init._text(items)).tables} == expected
    for item in items:
        item.is_refused = True
        item.remarks = ["Refused: line one\nline two: 'x' \x07 " + "long-word/" * 30]
    refused = init._text(items)
    assert read_back(refused).tables == ()
    uncommented = refused.replace("tables: []", "tables:").replace("  # - source", "  - source")
    uncommented = uncommented.replace("  #   target", "    target")
    assert {table.source for table in read_back(uncommented).tables} == expected


def test_without_java_the_file_is_written_all_the_same() -> None:
    """Small tables need none; it says once why large ones could not be examined, and what it wrote can be used."""
    made("lake/a", "lake/b", "lake/small")
    for name in "ab":
        # A log that is read on Spark. Delta passes over an action that it does not know.
        padding = json.dumps({"unknown": {"of": "x" * (9 << 20)}})
        log = Path("lake", name, "_delta_log", f"{0:020d}.json")
        log.write_text(f"{log.read_text()}{padding}\n{padding}\n")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": "/nowhere"}
    command = [sys.executable, "-m", "daemon", "init", "lake"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    a, b, small = (f"file://{Path.cwd()}/lake/{name}" for name in ("a", "b", "small"))
    lines = ended.stdout.splitlines()
    assert lines[1].startswith(f"{a}: could not be examined: PipelineAway: ")
    assert f"{b}: could not be examined, for the same reason" in lines
    assert f"{small} at version 0: can be followed" in lines
    assert "  table     lake.small" in lines
    assert "Wrote config.yaml. Tables: 2 could not be examined, 1 can be followed." in lines
    code, output = dvsync("config", "check")
    assert (code, output.count(" -> local lake.")) == (0, 3)


def test_what_the_file_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that only variables name, and a local warehouse for tables that are elsewhere."""
    monkeypatch.setenv("DVSYNC_STORAGE__S3__REGION", "eu-north-1")
    monkeypatch.setenv("DVSYNC_CATALOGS__LOCAL__WAREHOUSE", "s3://bucket/warehouse")
    made("lake/orders")
    code, output = dvsync("init", "lake/orders")
    assert (code, "the metadata at s3://bucket/warehouse: readers need both" in output) == (0, True), output
    assert "dvsync needs them whenever it runs: DVSYNC_STORAGE__S3__REGION." in output


def test_readers_that_will_fail_are_named() -> None:
    """Before the first sync, by init and by add: once for all tables; not those that `readers` leaves out."""
    made("plain")
    for folder in ("a", "b"):
        table = HandmadeTable(Path(folder).absolute())
        table.create()
        path = table.write_file([(1, "p", "x")])
        columns = pq.read_table(table.folder / path).cast(pa.schema(VIEWS))
        pq.write_table(columns, table.folder / path)
        table.commit([table.add(path)])
    line = "PyIceberg, Polars (with PyIceberg): stored as Arrow's string views, as delta-rs does in DELETE"
    code, output = dvsync("init", "a", "plain")
    assert (code, f"Readers will have trouble with these tables:\n  1 (a): {line}" in output) == (0, True), output
    assert "Daft" not in output
    code, output = dvsync("add", "b")
    assert (code, f"Readers will have trouble with these tables:\n  1 (b): {line}" in output) == (0, True), output
