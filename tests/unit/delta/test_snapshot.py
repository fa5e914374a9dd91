"""A state replayed from a log: every kind of log file, every way that actions supersede each other, every fault."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.delta import checkpoint as checkpoints
from daemon.delta import row_groups, snapshot
from daemon.delta.snapshot import ReplayedState, replay
from daemon.delta.table_state import ADDS
from daemon.errors import CommitIncomplete, CorruptInput, ObjectMissing, ObjectStoreAway, Unsupported
from daemon.store.locations import FileMeta
from daemon.store.places import Source
from daemon.store.storage import FileIOStorage
from tests.kit.examples import examples
from tests.kit.logs import ADD_TYPE, CHECKPOINT, KINDS, METADATA, PROTOCOL, Action, HandmadeLog, add, remove, vector

START = [PROTOCOL, METADATA]


@pytest.fixture
def log(tmp_path: Path) -> HandmadeLog:
    return HandmadeLog(tmp_path / "t")


def live(state: ReplayedState) -> dict[str, str | None]:
    """Path below the table and deletion vector's path of each row."""
    assert state.rows.schema == ADDS
    found = {row["path"]: row["dv_path"] for row in rows_of(state)}
    assert len(found) == state.files == len(state.rows), "a path is there once"
    return found


def rows_of(state: ReplayedState) -> list[Action]:
    """The rows, each with its path below the table, or the absolute one of another place."""
    below = f"{state.location}/"
    return [{**row, "path": row["path"].removeprefix(below)} for row in state.rows.to_pylist(maps_as_pydicts="strict")]


def test_commits_alone(log: HandmadeLog) -> None:
    """The newest of protocol, metadata and each file's adds, with all that an add says."""
    log.create(add("a"), add("b"))
    changed = {"metaData": {**METADATA["metaData"], "id": "t-1", "configuration": {"k": "v"}}}
    log.commit(remove("b"), add("c", vector("dv", offset=5), partitionValues={"part": None}, stats=None), changed)
    os.utime(log.name(1), (5, 5))
    state = log.state()
    assert (state.version, state.timestamp_ms) == (1, 5_000)
    read = [(verb, log.name(version).name) for version in (1, 0) for verb in ("stat", "open")]
    assert log.storage.asked == [("read", "_last_checkpoint"), ("list after 0", "_delta_log"), *read]
    assert state.metadata.configuration == {"k": "v"}
    assert state.protocol.reader_features == ["deletionVectors", "v2Checkpoint"]
    rows = {row["path"]: row for row in rows_of(state)}
    assert rows.keys() == {"a", "c"}
    assert rows["a"] == {
        "path": "a",
        "partition_values": {"part": "x"},
        "size": 10,
        "stats": '{"numRecords":3}',
        **dict.fromkeys(("dv_storage_type", "dv_path", "dv_offset", "dv_size", "dv_cardinality", "base_row_id", "uri")),
    }
    assert rows["c"] == {
        **{"path": "c", "partition_values": {"part": None}, "size": 10, "stats": None, "base_row_id": None},
        **{"dv_storage_type": "u", "dv_path": "dv", "dv_offset": 5, "dv_size": 40, "dv_cardinality": 6, "uri": None},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_checkpoint(log: HandmadeLog, kind: str) -> None:
    """A checkpoint stands for the commits up to it, and later commits supersede what it says."""
    log.create(add("lost"))
    log.commit()
    rows = [
        *START,
        {"txn": {"appId": "x", "version": 1}},
        *(add(f"f{number}", vector(f"dv{number}")) for number in range(7)),
        add("empty", partitionValues={}),
        remove("tombstone"),
        remove("f1", vector("older")),
    ]
    files = log.checkpoint(rows, kind=kind)
    log.drop_commits(0)
    log.commit(remove("f0", vector("dv0")), add("f0", vector("new")), remove("f2", vector("dv2")), add("n"))
    log.commit(remove("f3", vector("older")), add("f4", vector("dv4"), stats=None))
    state = log.state()
    expected = {f"f{number}": f"dv{number}" for number in (1, 3, 4, 5, 6)} | {"f0": "new", "n": None, "empty": None}
    assert live(state) == expected
    assert next(row["stats"] for row in rows_of(state) if row["path"] == "f4") is None
    assert state.metadata.configuration == METADATA["metaData"]["configuration"]
    commits = sum(log.name(version).stat().st_size for version in (2, 3))
    assert log.segment().size_bytes == commits + sum(file.stat().st_size for file in files)
    assert live(log.state(1)) == {f"f{number}": f"dv{number}" for number in range(7)} | {"empty": None}
    assert log.state(2).version == 2


def test_a_checkpoint_without_a_newer_commit(log: HandmadeLog) -> None:
    """The time is that of the version's own commit; the checkpoint's where that commit is gone."""
    log.create()
    log.commit()
    log.name(1).write_text(json.dumps({"commitInfo": {"inCommitTimestamp": 77}}))
    (file,) = log.checkpoint([*START, add("a")])
    assert (log.state().version, log.state().timestamp_ms) == (1, 77)
    log.drop_commits(0, 1)
    os.utime(file, (9, 9))
    assert (log.state().version, log.state().timestamp_ms) == (1, 9_000)


def test_logical_files(log: HandmadeLog) -> None:
    """A file is named by its path and its deletion vector; a tombstone of another one does nothing."""
    one, two = vector("one"), vector("two")
    log.create(*(add(path, one) for path in "abcdef"), add("inline", vector("i", kind="i", offset=None)))
    log.checkpoint([*START, *(add(path, one) for path in "abcdef"), add("inline", vector("i", kind="i", offset=None))])
    log.commit(
        remove("a", two), remove("b", one), remove("c", one), add("c", two), remove("d", vector("one", offset=2))
    )
    log.commit(add("b", one), remove("c", one), remove("e"), remove("inline", vector("i", kind="i", offset=None)))
    log.commit(add("f", two), remove("nothing"))
    with pytest.raises(CorruptInput, match=r"2 live adds for the one path .*/f: .*vector uone.*; .*vector utwo"):
        log.state()
    log.commit(remove("f", one))
    assert live(log.state()) == {"a": "one", "b": "one", "c": "two", "d": "one", "e": "one", "f": "two"}


def test_an_add_replaces_no_other_logical_file(log: HandmadeLog) -> None:
    """Only a remove ends the older one, as in Delta; what was added beside it goes alone."""
    log.create(add("a", vector("one")), add("b"))
    log.commit(add("a", vector("two")), add("b", vector("two")))
    log.commit(remove("b", vector("two")), remove("a", vector("one")))
    assert live(log.state()) == {"a": "two", "b": None}


def test_spellings_of_one_path(log: HandmadeLog) -> None:
    """Paths are normalised and compared without decoding, and given decoded and absolute."""
    spelled = ["p=%25C3/a%20b", "x", "plain,+", "k//n", "q/./r", "stays%20here", "..hidden/y", "part=ü/z"]
    log.create()
    log.checkpoint([*START, *(add(path) for path in spelled)])
    others = ["p=%25C3/%61%20b", "%78", "plain%2C%2B", "j/../k/n", "q//r", "part=%C3%BC/z"]
    log.commit(*(remove(path) for path in others), add("file:///elsewhere/z"))
    expected = ["p=%C3/a b", "x", "plain,+", "stays here", "..hidden/y", "part=ü/z", "file:///elsewhere/z"]
    assert live(log.state()) == dict.fromkeys(expected)
    log.commit(add("%78"))
    with pytest.raises(
        CorruptInput, match=r"2 live adds for the one path .*/x: in its usual spelling, .*; spelled %78"
    ):
        log.state()
    log.commit(remove("x"))
    assert [row["uri"] for row in rows_of(log.state()) if row["path"] == "x"] == ["%78"]


@pytest.mark.parametrize(
    ("added", "removed"), [("%C3%A9", "%c3%a9"), ("%c3%a9", "%C3%A9"), ("file:/x/a", "file:///x/a")]
)
def test_spellings_that_delta_compares_by_chance(log: HandmadeLog, added: str, removed: str) -> None:
    """Equal URIs in different texts are one file for Delta only if both are in one partition of its replay: refused."""
    log.create(add(added))
    log.commit(remove(removed))
    with pytest.raises(CorruptInput, match="whether these are one file depends on the reader"):
        log.state()
    log.commit(remove(added))
    assert live(log.state()) == {}


@pytest.mark.parametrize("kind", ["commit", *KINDS])
def test_two_names_of_one_file(log: HandmadeLog, kind: str) -> None:
    """Delta compares paths as they are written; a file that is live by two names is refused."""
    absolute = f"file://{log.folder}/"
    log.create()
    actions = [add("a"), add(f"{absolute}b"), add("c"), add(f"file:{log.folder}/d")]
    if kind == "commit":
        log.commit(*actions)
    else:
        log.commit()
        log.checkpoint([*START, *actions], kind=kind)
        log.drop_commits(0, 1)
    log.commit(remove(f"{absolute}a"), remove(f"{absolute}b"), remove("d"))
    log.commit(remove("c"))
    log.commit(add(f"{absolute}c"))
    assert live(log.state()).keys() == {"a", "c", "d"}
    log.commit(add(f"{absolute}a", vector("dv")))
    with pytest.raises(CorruptInput, match=f"the log has 2 live adds for the one path .*{log.folder}/a"):
        log.state()
    log.commit(remove("a"))
    assert live(log.state()) == {"a": "dv", "c": None, "d": None}


def test_hint(log: HandmadeLog) -> None:
    """Whatever `_last_checkpoint` says, the state is right, after one listing."""
    log.create()
    log.checkpoint([*START, add("old")])
    for number in range(4):
        log.commit(add(f"n{number}"))
    (file,) = log.checkpoint([*START, add("old"), add("n0")], version=1)
    log.hint(1, sizeInBytes=file.stat().st_size)
    expected = {"old": None, **{f"n{number}": None for number in range(4)}}
    assert live(log.state()) == expected
    log.storage.asked.clear()
    assert len(log.segment().commits) == 3
    assert log.storage.asked == [("read", "_last_checkpoint"), ("list after 0", "_delta_log")]
    assert live(log.state(0)) == {"old": None}
    for text in (
        "",
        "\xff{",
        "[]",
        '{"version":-1}',
        '{"version":3}',
        '{"version":99}',
        '{"version":10000000000000000}',
    ):
        (log.path / "_last_checkpoint").write_text(text)
        assert live(log.state()) == expected, text
    log.hint(1)
    file.unlink()
    log.storage.asked.clear()
    assert live(log.state()) == expected
    assert log.storage.asked.count(("list after 0", "_delta_log")) == 1


@pytest.mark.parametrize("kind", ["v2-parquet", "v2-json", "v2-classic"])
def test_sizes_of_sidecars_by_the_hint(log: HandmadeLog, kind: str) -> None:
    """A hint that tells the size spares a look into the checkpoint; one about another version does not count."""
    log.create()
    log.checkpoint([*START, add("a")], kind=kind)
    without = log.segment().size_bytes
    log.hint(0, sizeInBytes=without)
    log.storage.asked.clear()
    assert log.segment().size_bytes == without
    assert "open" not in dict(log.storage.asked)
    log.hint(7, sizeInBytes=5_000_000)
    assert log.segment().size_bytes == without


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part(log: HandmadeLog, missing: int) -> None:
    """A checkpoint that lacks a part is passed over, for an older one or for the commits."""
    log.create(add("a"))
    log.checkpoint([*START, add("x"), add("y")], kind="multi-part", parts=3)[missing].unlink()
    assert live(log.state()) == {"a": None}


def test_the_best_of_several_checkpoints(log: HandmadeLog) -> None:
    """Those with missing parts, and empty files, are passed over; at one version the UUID-named one is taken."""
    log.create(add("a"))
    log.checkpoint([*START, add("from-classic")])
    log.commit()
    log.checkpoint([*START, add("from-parts")], kind="multi-part", parts=3)[1].unlink()
    assert live(log.state()) == {"from-classic": None}
    log.checkpoint([*START, add("from-two")], kind="multi-part", parts=2)
    assert live(log.state()) == {"from-two": None}
    log.name(1, "checkpoint.parquet").touch()
    log.name(1, "checkpoint.zzz.json").touch()
    log.name(1, "checkpoint.x.y.parquet").write_text("no name of a checkpoint")
    log.checkpoint([*START, add("from-v2")], kind="v2-json")
    assert live(log.state()) == {"from-v2": None}


def test_compacted_files(log: HandmadeLog) -> None:
    """One is read in place of the commits that it stands for; the longest that ends in time."""
    log.create(add("a"))
    for number in range(1, 6):
        log.commit(add(f"f{number}"))
    says = {"1.2": "x12", "1.3": "x13", "2.4": "x24", "4.5": "x45", "5.9": "x59", "3.3": "x33"}
    for name, path in says.items():
        first, last = name.split(".")
        log.write_lines(log.path / f"{int(first):020d}.{int(last):020d}.compacted.json", [add(path)])
    state = log.state()
    assert live(state) == {"a": None, "x13": None, "x45": None}
    assert state.timestamp_ms == log.log.read_commit(5).timestamp_ms
    assert live(log.state(4)) == {"a": None, "x13": None, "f4": None}
    log.checkpoint([*START, add("c")], version=1)
    assert live(log.state()) == {"c": None, "x24": None, "f5": None}
    assert [(file.from_version, file.to_version) for file in log.segment().commits] == [(2, 4), (5, 5)]


@pytest.mark.parametrize("lines", [[], [add("x"), add("x")], [add("x"), remove("x")], None])
def test_invalid_compacted_files(log: HandmadeLog, lines: list[Action] | None) -> None:
    """One that is empty, contradicts itself or is cut says nothing: its commits are read."""
    log.create(add("a"))
    log.commit(add("b"))
    path = log.write_lines(log.path / f"{0:020d}.{1:020d}.compacted.json", lines or [])
    if lines is None:
        path.write_text('{"add":{"path":"x","partitionValues":{},"size":1,"dataChange":true}}\n{"remove":')
    assert live(log.state()) == {"a": None, "b": None}


def test_missing_commits(log: HandmadeLog) -> None:
    """A gap is corrupt, a version that is not there is missing, and a log that is gone is gone."""
    for number in range(4):
        log.create(add(f"f{number}"))
    log.drop_commits(1)
    with pytest.raises(CorruptInput, match="commit 1 is missing, 2 is there, and no checkpoint"):
        log.segment()
    log.checkpoint([*START, add("f0")], version=1)
    assert live(log.state()) == {"f0": None, "f2": None, "f3": None}
    with pytest.raises(ObjectMissing, match=r"the log has no version 4 \["):
        log.segment(4)
    log.drop_commits(0)
    with pytest.raises(ObjectMissing, match="no version 0, or its first commits are gone"):
        log.segment(0)
    log.name(1, "checkpoint.parquet").unlink()
    with pytest.raises(CorruptInput, match="commit 0 is missing, 2 is there"):
        log.segment()
    log.drop_commits(2, 3)
    with pytest.raises(ObjectMissing, match="the Delta log is gone"):
        log.segment()
    log.checkpoint([*START], kind="multi-part", version=6)[0].unlink()
    with pytest.raises(CorruptInput, match="the checkpoint of version 6 lacks parts"):
        log.segment()


def test_commits_that_a_listing_leaves_out(log: HandmadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked for before it counts as missing."""
    for number in range(3):
        log.create(add(f"f{number}"))
    listed = log.storage.list_from(f"file://{log.path}", "")
    some = [file for file in listed if "1.json" not in file.path]
    monkeypatch.setattr(log.storage, "list_from", lambda directory, after: iter(some))
    assert live(log.state()) == {"f0": None, "f1": None, "f2": None}


def test_a_commit_that_is_being_written(log: HandmadeLog) -> None:
    """It is waited for, and corrupt when it stays so, as while following."""
    log.create()
    log.commit(add("a"))
    log.name(1).write_bytes(log.name(1).read_bytes()[:-5])
    with pytest.raises(CommitIncomplete):
        log.state()
    os.utime(log.name(1), (5, 5))
    with pytest.raises(CorruptInput, match="ends inside a line"):
        log.state()


@pytest.mark.parametrize("kept", [PROTOCOL, METADATA])
def test_protocol_and_metadata(log: HandmadeLog, kept: Action) -> None:
    """A log without one of them is corrupt; a protocol that is not known is the caller's to refuse."""
    log.commit(kept, add("a"))
    missing = "metaData" if "protocol" in kept else "protocol"
    with pytest.raises(CorruptInput, match=f"no {missing} action could be recovered") as raised:
        log.state()
    assert raised.value.version == 0
    log.commit(METADATA, {"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}})
    assert log.state().protocol.min_reader_version == 9


@pytest.mark.parametrize("kind", ["v2-parquet", "v2-json"])
def test_a_missing_sidecar(log: HandmadeLog, kind: str) -> None:
    """It is named and waited for, like a data file."""
    log.create()
    file = log.checkpoint([*START, add("a"), add("b")], kind=kind)[-1]
    file.unlink()
    with pytest.raises(ObjectMissing) as raised:
        log.state()
    assert str(raised.value.path).endswith(f"/_delta_log/_sidecars/{file.name}")


def with_field(name: str, kind: pa.DataType) -> pa.Schema:
    """The checkpoint's schema, with another type of `add`'s field."""
    index = ADD_TYPE.get_field_index(name)
    fields = [ADD_TYPE.field(number) for number in range(ADD_TYPE.num_fields)]
    fields[index] = pa.field(name, kind)
    return CHECKPOINT.set(CHECKPOINT.get_field_index("add"), pa.field("add", pa.struct(fields)))


@pytest.mark.parametrize(
    ("schema", "fields", "says"),
    [
        (with_field("path", pa.int32()), {"path": 5}, "add.path is int32, and should be string"),
        (with_field("path", pa.binary(1)), {"path": b"5"}, "add.path is fixed_size_binary.1., and should be string"),
        (with_field("size", pa.string()), {"size": "5"}, "add.size is string, and should be int64"),
        (with_field("partitionValues", TYPE := pa.struct([("p", pa.int8())])), {}, "add.partitionValues is struct"),
        (
            with_field("deletionVector", pa.string()),
            {},
            "add.deletionVector.storageType is not in a struct, but string",
        ),
        (CHECKPOINT, {"size": None}, "an add of the checkpoint has no size"),
        (CHECKPOINT, {"deletionVector": {"storageType": "u"}}, "has no deletionVector.pathOrInlineDv"),
        (CHECKPOINT, {"path": "a b"}, "Delta cannot read the path 'a b' of a data file: ' ' is not escaped"),
        (CHECKPOINT, {"path": ""}, "it names no file"),
        (CHECKPOINT, {"path": "a/.."}, "it names no file"),
        (CHECKPOINT, {"path": "b"}, "the log has 2 live adds for the one path .*/b"),
        (CHECKPOINT, {"path": "%62"}, "the log has 2 live adds for the one path .*/b"),
    ],
)
def test_faults_of_a_checkpoint(log: HandmadeLog, schema: pa.Schema, fields: Action, says: str) -> None:
    """Wrong types, missing values and double files are corrupt, and the file or the log is named."""
    log.create()
    action = {**add("a")["add"], **fields}
    rows = [*START, {"add": {**action, "partitionValues": {}}}, *([] if schema is not CHECKPOINT else [add("b")])]
    if schema is not CHECKPOINT and "partitionValues" in says:
        rows[2] = {"add": {name: value for name, value in action.items() if name != "partitionValues"}}
    log.write_parquet(log.name(0, "checkpoint.parquet"), rows, schema)
    with pytest.raises(CorruptInput, match=says) as raised:
        log.state()
    assert str(raised.value.path).startswith(f"file://{log.folder}")
    assert raised.value.hint


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        *((with_field("path", kind), {}) for kind in (pa.large_string(), pa.binary(), pa.large_binary())),
        (CHECKPOINT, {"partitionValues": None}),
    ],
)
def test_other_spellings_of_a_checkpoint(log: HandmadeLog, schema: pa.Schema, fields: Action) -> None:
    """Types that writers declare to Arrow for a text, and no partition values at all, mean the same."""
    log.create()
    rows = [*START, {"add": {**add("a")["add"], **fields}}]
    log.write_parquet(log.name(0, "checkpoint.parquet"), rows, schema)
    state = log.state()
    assert live(state) == {"a": None}
    assert [each.partition_values for each in state.read_adds()] == [{} if fields else {"part": "x"}]


def test_doubles_that_are_gone(log: HandmadeLog) -> None:
    """A file that a checkpoint has twice is no fault once it is removed."""
    log.create()
    log.checkpoint([*START, add("a"), add("a")])
    log.commit(remove("a"))
    assert live(log.state()) == {}


def test_two_partition_values_for_one_column(log: HandmadeLog) -> None:
    """Nobody can say which of them holds."""
    log.create()
    log.checkpoint([*START, {"add": {**add("a")["add"], "partitionValues": [("part", "x"), ("part", "y")]}}])
    with pytest.raises(CorruptInput, match="two partition values for one column") as raised:
        list(log.state().read_adds())
    assert str(raised.value.path).endswith("/a")


def test_a_replay_ends_at_its_bounds(log: HandmadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more live files or bytes than are wanted, what is left of the log is not read."""
    log.create()
    first, second = log.checkpoint([*START, *(add(f"f{number}") for number in range(6))], kind="multi-part")
    log.commit(remove("f0"), add("g"))
    files = replay(log.log, log.segment(), files_max=6)
    assert files and files.files == 6
    log.storage.asked.clear()
    assert replay(log.log, log.segment(), files_max=2) is None
    assert ("open", first.name) in log.storage.asked
    assert ("open", second.name) not in log.storage.asked
    monkeypatch.setattr(snapshot, "ROWS_BYTES_MAX", 10)
    assert replay(log.log, log.segment(), files_max=100) is None


def test_a_listing_during_log_cleanup(log: HandmadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap is believed once a second listing has it, too."""
    log.create(add("a"))
    for number in range(3):
        log.commit(add(f"n{number}"))
    list_from, listings = FileIOStorage.list_from, 0

    def racing(storage: FileIOStorage, directory: str, after: str) -> Iterator[FileMeta]:
        nonlocal listings
        listings += 1
        files = list(list_from(storage, directory, after))
        if listings == 1:
            log.checkpoint([*START, add("a"), add("n0"), add("n1")], version=2)
            for version in (0, 1):
                log.name(version).unlink()
            files = [file for file in files if not file.path.endswith(("0.json", "1.json"))]
        return iter(files)

    monkeypatch.setattr(FileIOStorage, "list_from", racing)
    assert live(log.state()).keys() == {"a", "n0", "n1", "n2"}
    assert listings == 2


def without(column: str, field: str | None = None) -> pa.Schema:
    index = CHECKPOINT.get_field_index(column)
    if field is None:
        return CHECKPOINT.remove(index)
    kept = [inner for inner in CHECKPOINT.field(index).type if inner.name != field]
    return CHECKPOINT.set(index, pa.field(column, pa.struct(kept)))


@pytest.mark.parametrize("field", ["path", "partitionValues", "size"])
def test_missing_columns(log: HandmadeLog, field: str) -> None:
    """No add is without these: a struct that lacks one is corrupt, or has no rows at all."""
    log.create()
    rows = [*START, {"add": {name: value for name, value in add("a")["add"].items() if name != field}}]
    log.write_parquet(log.name(0, "checkpoint.parquet"), rows, without("add", field))
    with pytest.raises(CorruptInput, match=f"has no {field}"):
        log.state()


def test_columns_that_may_be_missing(log: HandmadeLog) -> None:
    """Statistics and deletion vectors may be missing, and whole kinds of actions: all that is null."""
    log.create()
    schema = without("add", "stats")
    rows = [*START, {"add": {name: value for name, value in add("a")["add"].items() if name != "stats"}}]
    log.write_parquet(log.name(0, "checkpoint.parquet"), rows, schema)
    assert log.state().rows["stats"].to_pylist() == [None]
    log.write_parquet(log.name(0, "checkpoint.parquet"), START, without("add"))
    assert live(log.state()) == {}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "json" not in kind])
@pytest.mark.parametrize("change", [lambda data: data[:-20], lambda data: data[9:], lambda data: b"PAR1", bytes.upper])
def test_a_damaged_parquet_file(log: HandmadeLog, kind: str, change: Any) -> None:
    """It is corrupt, and named."""
    log.create()
    file = log.checkpoint([*START, *(add(f"f{number}") for number in range(9))], kind=kind)[-1]
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CorruptInput, match="the checkpoint cannot be read") as raised:
        log.state()
    assert str(raised.value.path).endswith(file.name)


def test_a_changed_byte(log: HandmadeLog) -> None:
    """The checksums of Parquet pages, which Spark writes, are held against the bytes."""
    log.create()
    (file,) = log.checkpoint([*START, add("f-seven"), add("f-eight")])
    assert file.read_bytes().count(b"f-seven")
    file.write_bytes(file.read_bytes().replace(b"f-seven", b"g-seven"))
    with pytest.raises(CorruptInput, match="CRC"):
        log.state()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 of the checkpoint is not a Delta action"),
        ('{"add":{"path":5}}', "line 2 of the checkpoint is not a Delta action"),
        ('{"sidecar":{"path":"x"}}', r"line 2 of .* field `sizeInBytes`"),
        ("[" * 100_000, "line 2"),
    ],
)
def test_a_damaged_json_file(log: HandmadeLog, line: str, says: str) -> None:
    """The line is named, and the file; a checkpoint is never half written."""
    log.create()
    file = log.name(0, "checkpoint.x.json")
    file.write_text(json.dumps(PROTOCOL) + "\n" + line)
    with pytest.raises(CorruptInput, match=says) as raised:
        log.state()
    assert str(raised.value.path).endswith(file.name)


def test_a_line_that_is_too_long(log: HandmadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LINE_BYTES_MAX", 50)
    log.create()
    log.name(0, "checkpoint.x.json").write_text("\n" + " " * 60)
    with pytest.raises(Unsupported, match="line 2 of the checkpoint has more than 50 bytes"):
        log.state()


class FailingFile:
    """A file of a store that answers some requests, and then no more."""

    def __init__(self, file: pa.NativeFile, answers: int) -> None:
        self._file = file
        self._answers = answers

    def read_at(self, size: int, offset: int) -> bytes:
        self._answers -= 1
        if self._answers < 0:
            raise OSError("no route to host")
        return bytes(self._file.read_at(size, offset))


@pytest.mark.parametrize("kind", ["classic", "v2-json-whole"])
@pytest.mark.parametrize(("block_bytes", "answers"), [(1 << 20, 0), (16, 0), (16, 1)])
def test_a_store_that_fails(
    log: HandmadeLog, monkeypatch: pytest.MonkeyPatch, kind: str, block_bytes: int, answers: int
) -> None:
    """A store that is away is not a damaged file."""
    log.create()
    log.checkpoint([*START, add("a")], kind=kind)
    segment = log.segment()
    assert segment.checkpoint
    monkeypatch.setattr(checkpoints, "BLOCK_BYTES", block_bytes)

    def open_input(path: str) -> Source:
        file = pa.OSFile(path.removeprefix("file://"))
        return Source(path, file.size(), FailingFile(file, answers).read_at, file.close)

    monkeypatch.setattr(log.storage, "open_input", open_input)
    with pytest.raises(ObjectStoreAway, match="no route to host"):
        list(checkpoints.read_checkpoint(log.storage, log.log.folder, segment.checkpoint))


@pytest.mark.parametrize("kind", KINDS)
def test_large_files_are_read_in_pieces(log: HandmadeLog, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """By columns and rows, with the same state."""
    monkeypatch.setattr(checkpoints, "BLOCK_BYTES", 16)
    monkeypatch.setattr(checkpoints, "BATCH_ROWS", 3)
    log.create()
    log.checkpoint([*START, *(add(f"f{number}", vector(f"{number}")) for number in range(20))], kind=kind)
    assert live(log.state()) == {f"f{number}": f"{number}" for number in range(20)}


LONG = "x" * (1 << 20)
PATHS = ("a", "b%20c", "p=1/d", "e")
DVS: tuple[Action | None, ...] = (None, vector("one"), vector("two"), vector("two", offset=2))
NUMBERS = st.integers(0, 5)


@settings(max_examples=examples(60))
@given(st.data())
def test_replay_is_a_fold(data: st.DataObject) -> None:
    """Random histories with checkpoints and compacted files at random versions are what a naive fold makes of them."""
    with tempfile.TemporaryDirectory() as folder:
        log = HandmadeLog(Path(folder) / "t")
        now: dict[str, Action] = {}
        tombstones: dict[tuple[str, str], Action] = {}
        states: list[dict[str, Action]] = []
        written: list[list[Action]] = []
        for version in range(data.draw(st.integers(1, 7))):
            actions = data.draw(commits(now, tombstones))
            log.commit(*(START if version == 0 else []), *actions)
            written.append(actions)
            states.append(dict(now))
            if data.draw(NUMBERS) == 0:
                kind = data.draw(st.sampled_from(KINDS))
                parts = data.draw(st.integers(2, 3))
                rows = [*START, *now.values(), *tombstones.values()]
                log.checkpoint(rows, kind=kind, parts=parts)
            if version and data.draw(NUMBERS) == 0:
                compact(log, data.draw(st.integers(1, version)), version, written)
        for version, expected in enumerate(states):
            found = sorted(
                (row["path"], row["size"], row["dv_path"], row["dv_offset"]) for row in rows_of(log.state(version))
            )
            assert found == sorted(map(brief, expected.values())), version


def brief(action: Action) -> tuple[Any, ...]:
    dv = action["add"].get("deletionVector") or {}
    return unquote(action["add"]["path"]), action["add"]["size"], dv.get("pathOrInlineDv"), dv.get("offset")


def key_of(action: Action) -> tuple[str, str]:
    (body,) = action.values()
    return body["path"], json.dumps(body.get("deletionVector"))


@st.composite
def commits(draw: st.DrawFn, now: dict[str, Action], tombstones: dict[tuple[str, str], Action]) -> list[Action]:
    """Actions of one commit, each path's in any order, which `now` and `tombstones` then know of."""
    actions: list[Action] = []
    for path in draw(st.sets(st.sampled_from(PATHS))):
        old = now.get(path)
        new = add(path, draw(st.sampled_from(DVS)), size=draw(st.integers(1, 1_000_000)))
        stray = remove(path, draw(st.sampled_from(DVS)))
        match draw(st.sampled_from(["add", "remove", "stray"])):
            case "add":
                if old and key_of(old) != key_of(new):
                    actions.append(remove(path, old["add"].get("deletionVector")))
                actions.append(new)
                now[path] = new
            case "remove" if old:
                actions.append(remove(path, old["add"].get("deletionVector")))
                del now[path]
            case "stray" if not old or key_of(old) != key_of(stray):
                actions.append(stray)
    for action in actions:
        if "remove" in action:
            tombstones[key_of(action)] = action
    for live_add in now.values():
        tombstones.pop(key_of(live_add), None)
    return draw(st.permutations(actions))


def compact(log: HandmadeLog, first: int, last: int, written: list[list[Action]]) -> None:
    """PROTOCOL.md, "Log Compaction Files": the newest reference of each logical file."""
    newest: dict[tuple[str, str], Action] = {}
    for actions in written[first : last + 1]:
        for action in sorted(actions, key=lambda action: "add" in action):
            newest[key_of(action)] = action
    if first < last:
        log.write_lines(log.path / f"{first:020d}.{last:020d}.compacted.json", list(newest.values()))


def write_adds(log: HandmadeLog, fields: list[Action], **options: Any) -> None:
    log.create(add("lost"))
    log.commit()
    adds = [{"add": {**add(f"f{number}")["add"], **each}} for number, each in enumerate(fields)]
    table = pa.Table.from_pylist([*START, *adds], CHECKPOINT)
    options = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 8 << 20} | options
    pq.write_table(table, log.name(1, "checkpoint.parquet"), **options)


def read_batches(log: HandmadeLog) -> list[pa.RecordBatch]:
    segment = log.segment()
    assert segment.checkpoint
    folder = str(log.path / "_delta_log")
    return [rows.adds for rows in checkpoints.read_checkpoint(log.storage, folder, segment.checkpoint)]


@pytest.mark.parametrize("block_bytes", [1 << 20, 16])
@pytest.mark.parametrize("fields", [{"stats": LONG}, {"partitionValues": [("part", LONG), ("p", "x")]}], ids=list)
def test_texts_that_a_dictionary_stores_once(
    log: HandmadeLog, monkeypatch: pytest.MonkeyPatch, fields: Action, block_bytes: int
) -> None:
    """A small file may stand for much memory: batches are small, and a log that only repeats texts is refused."""
    monkeypatch.setattr(checkpoints, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(row_groups, "BATCH_BYTES_MAX", 8 << 20)
    monkeypatch.setattr(snapshot, "ROWS_BYTES_MAX", 1 << 20)
    write_adds(log, [fields] * 24)
    assert log.segment().size_bytes < 50_000
    batches = read_batches(log)
    assert max(batch.nbytes for batch in batches) < 9 << 20
    rows = pa.Table.from_batches(batches).to_pylist()
    assert [row["path"] for row in rows] == [f"f{number}" for number in range(24)]
    assert all(fields in ({"stats": row["stats"]}, {"partitionValues": row["partition_values"]}) for row in rows)
    with pytest.raises(Unsupported, match=r"the checkpoint is too large to read: it has [0-9]+ bytes of actions"):
        log.state()


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "lz4", "zstd"])
def test_a_large_dictionary_of_different_texts(
    log: HandmadeLog, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    """It is no reason for small batches: each row has one of its texts."""
    monkeypatch.setattr(checkpoints, "parts_of", None)
    write_adds(log, [{"stats": f"{number:01000}"} for number in range(1022)], compression=compression)
    assert [len(batch) for batch in read_batches(log)] == [510, 512]


def repeat(text: str | bytes, kind: pa.DataType, times: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), times), pa.array([text], kind))


def in_one_row(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (in_one_row(repeat(LONG, pa.string(), 200)), "a row takes 2097152"),
        (in_one_row(repeat("", pa.string(), 3_000_000)), "row group 0 takes 96[0-9]+ bytes"),
        (repeat(LONG.encode(), pa.binary(1 << 20), 200), "a batch of row group 0 takes 209715200 bytes"),
    ],
    ids=["texts", "entries", "fixed length"],
)
def test_values_that_are_too_many_for_a_row_or_batch(log: HandmadeLog, values: pa.Array, says: str) -> None:
    """They are refused before Arrow expands them."""
    log.create()
    file = log.name(0, "checkpoint.parquet")
    table = pa.table({"protocol": pa.StructArray.from_arrays([values], ["x"])})
    pq.write_table(table, file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 5000
    with pytest.raises(Unsupported, match=f"the checkpoint is too large to read: {says}"):
        log.state()


def test_pages_that_are_far_larger_than_the_file_are_refused(log: HandmadeLog) -> None:
    """Without a dictionary, a page has all texts, and would be decompressed at once."""
    write_adds(log, [{"stats": LONG}] * 80, use_dictionary=False)
    assert log.name(1, "checkpoint.parquet").stat().st_size < 50_000
    with pytest.raises(Unsupported, match=r"too large to read: row group 0 takes [0-9]+ bytes") as caught:
        log.state()
    assert (caught.value.path or "").endswith("checkpoint.parquet")
