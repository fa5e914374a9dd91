"""An archive of what Spark wrote gives just that again, and nothing else passes for it. Functions here play Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.kit import archive
from tests.kit.archive import Archive, Checker, Outdated, Recorder, Replayed
from tests.kit.spark_process import SparkRefused
from tests.kit.writer import Writer

TEST = "tests/t.py::test_it"


def by_itself(function: Callable[..., Any], *arguments: Any, settings: Mapping[str, str]) -> Any:
    return function(None, *arguments)


def unused(*_: Any, **__: Any) -> None:
    raise AssertionError("a replayed call reached Spark")


def commit(session: None, folder: Path, version: int, rows: int) -> None:
    """A version with a data file, of which the name and the time are by chance."""
    name = f"part-00000-{uuid4()}.parquet"
    (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{rows} rows")
    add = {"path": name, "modificationTime": uuid4().int, "stats": json.dumps({"numRecords": rows})}
    (folder / "_delta_log" / f"{version:020d}.json").write_text(json.dumps({"add": add}))


def vacuum(session: None, folder: Path) -> None:
    for path in folder.glob("*.parquet"):
        path.unlink()
    (folder / "_delta_log" / f"{1:020d}.json").write_text("{}")


def read(session: None, folder: Path) -> pa.Table:
    return pa.table({"file": sorted(str(path) for path in folder.glob("*.parquet"))})


def refuse(session: None, folder: Path) -> None:
    raise SparkRefused(f"no table in {folder}")


def write_its_place(session: None, folder: Path) -> None:
    folder.mkdir()
    (folder / "log").write_text(str(folder))


def play(writer: Writer, *, rows: int = 3, by_hand: str = "x", more: bool = False) -> pa.Table:
    folder = writer.root / "t"  # type: ignore[attr-defined]
    writer.do(commit, folder, 0, rows)
    (folder / "by hand").write_text(by_hand)
    shown: pa.Table = writer.do(read, folder)
    with pytest.raises(SparkRefused, match=f"no table in {folder}"):
        writer.do(refuse, folder)
    writer.do(vacuum, folder)
    if more:
        writer.do(vacuum, folder)
    writer.finish()
    return shown


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(archive, "FOLDER", tmp_path / "tests" / "histories")
    path = tmp_path / "tests" / "histories" / "t" / "test_it.tar.zst"
    play(Recorder(by_itself, path, TEST, tmp_path / "first"))  # type: ignore[arg-type]
    return path


def replayed(path: Path, root: Path) -> Replayed:
    return Replayed(unused, path, TEST, root)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_recorded_comes_again(recorded: Path, tmp_path: Path) -> None:
    """Files, answers and refusals, in another folder."""
    (found,) = play(replayed(recorded, tmp_path / "second"))["file"].to_pylist()
    assert Path(found).parent == tmp_path / "second" / "t"
    assert files(tmp_path / "second") == files(tmp_path / "first") != {}


def test_a_reader_never_meets_half_of_a_version(recorded: Path) -> None:
    """A commit comes after its files, and the last one of a VACUUM after what it has deleted."""
    calls = Archive.read(recorded).calls
    for call, came in ((calls[0], True), (calls[-1], False)):
        (file, commit_file) = call.changes
        assert (file[0].endswith(".parquet"), commit_file[0].endswith(".json")) == (True, True)
        assert (file[1] is not None) == came


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"rows": 4}, r"call 1 is commit\(\{root\}/t, 0, 4\), and in .*test_it.tar.zst commit\(\{root\}/t, 0, 3\)"),
        ({"by_hand": "y"}, r"before call 2, read\(\{root\}/t\), the test has changed t/by hand otherwise"),
        ({"more": True}, r"call 5, vacuum\(\{root\}/t\), is not in"),
    ],
)
def test_another_call_is_refused(recorded: Path, tmp_path: Path, other: dict[str, Any], message: str) -> None:
    with pytest.raises(Outdated, match=f"{message}.* Record it: make histories TESTS='{TEST}'"):
        play(replayed(recorded, tmp_path / "second"), **other)


def test_other_settings_and_a_call_too_few_are_refused(recorded: Path, tmp_path: Path) -> None:
    writer = replayed(recorded, tmp_path / "second")
    with writer.confs({"key": "value"}), pytest.raises(Outdated, match="settings differs"):
        writer.do(commit, tmp_path / "second" / "t", 0, 3)
    writer = replayed(recorded, tmp_path / "third")
    writer.do(commit, tmp_path / "third" / "t", 0, 3)
    with pytest.raises(Outdated, match="the test ends before read"):
        writer.finish()


def test_another_delta_and_no_archive_are_refused(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "version", lambda name: f"{name} 99")
    with pytest.raises(Outdated, match=r"was recorded with delta .*, not delta-spark 99.* make histories"):
        play(replayed(recorded, tmp_path / "second"))
    recorded.unlink()
    with pytest.raises(Outdated, match=r"not recorded: there is no .* make histories"):
        play(replayed(recorded, tmp_path / "second"))


def test_a_changed_archive_is_refused(recorded: Path, tmp_path: Path) -> None:
    found = Archive.read(recorded)
    name = next(name for name, data in found.contents.items() if data == b"3 rows")
    found.contents[name] = b"4 rows"
    found.write(recorded)
    with pytest.raises(Outdated, match=f"is damaged: {name} is not what was written.* make histories"):
        play(replayed(recorded, tmp_path / "second"))
    recorded.write_bytes(recorded.read_bytes()[:-20])
    with pytest.raises(Outdated, match=r"is damaged: .* make histories"):
        play(replayed(recorded, tmp_path / "second"))


def test_a_spark_that_does_something_else_is_found(recorded: Path, tmp_path: Path) -> None:
    """Other names and times are the same; another action is not."""
    play(Checker(by_itself, recorded, TEST, tmp_path / "second"))  # type: ignore[arg-type]

    def otherwise(function: Callable[..., Any], *arguments: Any, settings: Mapping[str, str]) -> Any:
        return function(None, *(4 if argument == 3 else argument for argument in arguments))

    with pytest.raises(AssertionError, match=r"Spark no longer does what is recorded in .*: actions in"):
        play(Checker(otherwise, recorded, TEST, tmp_path / "third"))  # type: ignore[arg-type]


def test_a_table_that_names_its_place_is_not_recorded(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="keep this test live"):
        Recorder(by_itself, recorded, TEST, tmp_path).do(write_its_place, tmp_path / "t")  # type: ignore[arg-type]
