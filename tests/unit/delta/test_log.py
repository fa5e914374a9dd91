"""Commit files: typed, checked as a whole, and told apart from those that are still being written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from daemon.delta.log import UNFINISHED_COMMIT_MAX_MS, DeltaLog
from daemon.errors import CommitIncomplete, CorruptInput, ObjectMissing, ResyncNeeded
from daemon.storage import FileMeta, Span

LOCATION = "s3://bucket/lake/t"
MODIFIED_MS = 1_700_000_000_000
ADD = {"path": "a", "partitionValues": {}, "size": 10, "modificationTime": 0, "dataChange": True}
REMOVE = {"path": "a", "deletionTimestamp": 5, "dataChange": True}
DV = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40, "cardinality": 6}
METADATA = {"id": "t-1", "format": {}, "schemaString": "{}", "partitionColumns": ["p"], "configuration": {"k": "v"}}
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"], "writerFeatures": []}


class MemoryStorage:
    """Files by path; all of them were written at MODIFIED_MS."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def exists(self, path: str) -> bool:
        return path in self.files

    def stat(self, path: str) -> FileMeta:
        return FileMeta(path, len(self.read(path)), MODIFIED_MS)

    def read(self, path: str, span: Span | None = None) -> bytes:
        if path not in self.files:
            raise ObjectMissing("the file is not there", path=path, hint="-")
        data = self.files[path]
        return data if span is None else data[span.offset : span.offset + span.size]

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        for path in sorted(self.files):
            folder, _, name = path.rpartition("/")
            if folder == directory and name > after:
                yield self.stat(path)


class FixedClock:
    """`since_ms` after the files were written."""

    def __init__(self, since_ms: int = 0) -> None:
        self.since_ms = since_ms

    def now_ms(self) -> int:
        return MODIFIED_MS + self.since_ms

    def monotonic_s(self) -> float:
        return self.since_ms / 1000


def log_of(*data: bytes, since_ms: int = 0) -> DeltaLog:
    """A log whose versions 0, 1, ... have these bytes."""
    storage = MemoryStorage()
    log = DeltaLog(storage, LOCATION, FixedClock(since_ms))
    for version, content in enumerate(data):
        storage.files[log.commit_path(version)] = content
    return log


def log_with(*names: str) -> DeltaLog:
    """A log folder that holds files of these names."""
    storage = MemoryStorage()
    storage.files = {f"{LOCATION}/_delta_log/{name}": b"{}\n" for name in names}
    return DeltaLog(storage, LOCATION, FixedClock())


def lines(*actions: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def name(version: int) -> str:
    return f"{version:020d}.json"


def test_actions_are_typed() -> None:
    """Each action that counts comes out with its fields; a descriptor has its offset and its unique id."""
    commit = log_of(
        lines(
            {"commitInfo": {"operation": "DELETE", "timestamp": 3}},
            {"protocol": PROTOCOL},
            {"metaData": METADATA},
            {"remove": REMOVE},
            {"add": {**ADD, "partitionValues": {"p": None, "q": ""}, "stats": "{}", "deletionVector": DV}},
        )
    ).read_commit(0)
    (add,), (remove,) = commit.adds, commit.removes
    assert (add.path, add.size, add.data_change, add.stats) == ("a", 10, True, "{}")
    assert add.partition_values == {"p": None, "q": ""}
    assert add.dv_unique_id == "uab^-aqEH.-t@S}K{vb[*k^@4"
    assert add.deletion_vector is not None
    assert (add.deletion_vector.size_in_bytes, add.deletion_vector.cardinality) == (40, 6)
    assert (remove.path, remove.dv_unique_id) == ("a", None)
    assert commit.metadata is not None
    assert (commit.metadata.id, commit.metadata.partition_columns) == ("t-1", ["p"])
    assert commit.metadata.configuration == {"k": "v"}
    assert commit.protocol is not None
    assert commit.protocol.reader_features == ["deletionVectors"]
    assert (commit.version, commit.operation) == (0, "DELETE")


@pytest.mark.parametrize(
    "action",
    [
        {"txn": {"appId": "a", "version": 1}},
        {"cdc": {"path": "_change_data/x", "partitionValues": {}, "size": 1, "dataChange": False}},
        {"domainMetadata": {"domain": "delta.clustering", "configuration": "{}", "removed": False}},
        {"checkpointMetadata": {"version": 1}},
        {"sidecar": {"path": "x"}},
        {"somethingNew": [1, 2, {"a": None}]},
        {"commitInfo": {"operation": "MERGE", "operationParameters": {"x": 1}, "engineInfo": None}},
    ],
)
def test_other_actions_are_passed_over(action: dict[str, Any]) -> None:
    """Actions that change neither rows nor schema, and those of a later protocol, leave the others alone."""
    commit = log_of(lines(action, {"add": ADD}, action)).read_commit(0)
    assert [add.path for add in commit.adds] == ["a"]
    assert commit.removes == ()


def test_unknown_fields_are_passed_over() -> None:
    """A field of a later protocol does not hide an action, and two kinds may share a line."""
    add = {**ADD, "baseRowId": 7, "defaultRowCommitVersion": 1, "tags": {"x": "y"}, "clusteringProvider": None}
    commit = log_of(lines({"add": add, "newKind": {}}, {"remove": {**REMOVE, "path": "b", "size": 3}})).read_commit(0)
    assert [add.path for add in commit.adds] == ["a"]
    assert [remove.path for remove in commit.removes] == ["b"]


def test_blank_lines_and_a_missing_last_newline_are_no_fault() -> None:
    """The protocol asks for newline-delimited JSON; the last newline and empty lines say nothing."""
    data = lines({"add": ADD}) + b"\n  \r\n" + lines({"remove": {**REMOVE, "path": "b"}}).rstrip(b"\n")
    commit = log_of(data).read_commit(0)
    assert (len(commit.adds), len(commit.removes)) == (1, 1)


def test_the_in_commit_timestamp_is_the_commit_time() -> None:
    """An in-commit timestamp overrides the file's modification time; commitInfo's plain timestamp does not."""
    plain, in_commit = {"timestamp": 5}, {"timestamp": 5, "inCommitTimestamp": 6}
    log = log_of(lines({"commitInfo": plain}), lines({"commitInfo": in_commit}), lines({"add": ADD}))
    assert [log.read_commit(version).timestamp_ms for version in (0, 1, 2)] == [MODIFIED_MS, 6, MODIFIED_MS]


def test_a_missing_commit_is_missing() -> None:
    """A version that is not there is told apart from a bad one."""
    log = log_of(lines({"add": ADD}))
    assert log.has_version(0)
    assert not log.has_version(1)
    with pytest.raises(ObjectMissing):
        log.read_commit(1)


WHOLE = lines({"add": ADD}, {"remove": {**REMOVE, "path": "é"}})


@pytest.mark.parametrize("size", [*range(len(lines({"add": ADD})) + 1, len(WHOLE) - 1)])
def test_a_cut_last_line_is_not_yet_there(size: int) -> None:
    """While a commit file is fresh, a last line cut anywhere means that it is being written."""
    with pytest.raises(CommitIncomplete, match="ends inside a line") as caught:
        log_of(WHOLE[:size], since_ms=UNFINISHED_COMMIT_MAX_MS - 1).read_commit(0)
    error = caught.value
    assert (error.version, error.offset, error.path) == (0, size, f"{LOCATION}/_delta_log/{name(0)}")


def test_a_last_line_cut_inside_a_character_is_not_yet_there() -> None:
    """A cut in the middle of a UTF-8 sequence is a cut as any other."""
    data = '{"remove": {"path": "é'.encode()[:-1]
    with pytest.raises(CommitIncomplete):
        log_of(data).read_commit(0)


@pytest.mark.parametrize("data", [b"", b"\n", b"  \n\n"])
def test_an_empty_commit_is_not_yet_there(data: bytes) -> None:
    """A file that was created and not yet written holds nothing."""
    with pytest.raises(CommitIncomplete, match="is empty"):
        log_of(data, since_ms=UNFINISHED_COMMIT_MAX_MS - 1).read_commit(0)


@pytest.mark.parametrize(("data", "message"), [(b"", "is empty"), (WHOLE[:-4], "ends inside a line")])
def test_a_cut_commit_that_nobody_goes_on_writing_is_corrupt(data: bytes, message: str) -> None:
    """After a minute no writer will come back: the table is parked, and the hint says how to get on."""
    with pytest.raises(CorruptInput, match=message) as caught:
        log_of(data, since_ms=UNFINISHED_COMMIT_MAX_MS).read_commit(0)
    assert caught.value.offset == len(data)
    assert "restore the file" in caught.value.hint


@pytest.mark.parametrize("since_ms", [0, 2 * UNFINISHED_COMMIT_MAX_MS])
def test_a_bad_line_in_the_middle_is_corrupt_at_once(since_ms: int) -> None:
    """A line that another one follows was finished: it is corrupt however fresh the file is, and named by number."""
    data = lines({"add": ADD}) + b'{"remove": {"path": \n' + lines({"add": {**ADD, "path": "b"}})
    with pytest.raises(CorruptInput, match="line 2 is not JSON") as caught:
        log_of(lines({"add": ADD}), data, since_ms=since_ms).read_commit(1)
    assert (caught.value.version, caught.value.path) == (1, f"{LOCATION}/_delta_log/{name(1)}")


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"5",
        b'{"add": 5}',
        b'{"add": {"path": "a"}}',
        b'{"add": {"path": 1, "partitionValues": {}, "size": 1, "dataChange": true}}',
        b'{"add": {"path": "a", "partitionValues": {"p": 1}, "size": 1, "dataChange": true}}',
        b'{"add": {"path": "a", "partitionValues": {}, "size": "1", "dataChange": true}}',
        b'{"remove": {"path": "a", "dataChange": true, "deletionVector": {"storageType": "u"}}}',
        b'{"metaData": {"id": "x"}}',
    ],
)
def test_json_that_is_no_action_is_corrupt(line: bytes) -> None:
    """Whole JSON of the wrong shape is no unfinished work, not even in the last line."""
    with pytest.raises(CorruptInput, match="line 2 is not a Delta action"):
        log_of(lines({"commitInfo": {}}) + line).read_commit(0)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([{"add": ADD}, {"add": {**ADD, "deletionVector": DV}}], f"2 adds for the one path {LOCATION}/a"),
        ([{"add": ADD}, {"add": {**ADD, "path": f"{LOCATION}/a"}}, {"add": ADD}], "3 adds for the one path"),
        ([{"add": {**ADD, "path": "a b"}}, {"add": {**ADD, "path": "a%20b"}}], "2 adds for the one path .*/a b"),
        ([{"remove": REMOVE}, {"add": ADD}], f"add and remove of the same logical file {LOCATION}/a"),
        (
            [{"remove": {**REMOVE, "deletionVector": DV}}, {"add": {**ADD, "deletionVector": DV}}],
            "add and remove of the same logical file",
        ),
        ([{"metaData": METADATA}, {"metaData": METADATA}], "more than one metaData or protocol"),
        ([{"protocol": PROTOCOL}, {"protocol": PROTOCOL}], "more than one metaData or protocol"),
    ],
)
def test_a_commit_that_contradicts_itself_is_corrupt(actions: list[dict[str, Any]], message: str) -> None:
    """Actions of a commit have no order, so that two about one logical file cannot both hold."""
    with pytest.raises(CorruptInput, match=message) as caught:
        log_of(lines(*actions)).read_commit(0)
    assert (caught.value.version, caught.value.path) == (0, f"{LOCATION}/_delta_log/{name(0)}")


@pytest.mark.parametrize(
    "actions",
    [
        [{"remove": REMOVE}, {"add": {**ADD, "deletionVector": DV}}],
        [{"remove": {**REMOVE, "deletionVector": DV}}, {"add": ADD}],
        [{"remove": {**REMOVE, "deletionVector": DV}}, {"add": {**ADD, "deletionVector": {**DV, "offset": 99}}}],
        [{"remove": REMOVE}, {"remove": {**REMOVE, "deletionVector": DV}}],
    ],
)
def test_churn_is_no_contradiction(actions: list[dict[str, Any]]) -> None:
    """Two logical files of one path are two: swapping a deletion vector removes one and adds the other."""
    log_of(lines(*actions)).read_commit(0)


CHECKPOINTS = ("00000000000000000004.checkpoint.parquet", "_last_checkpoint", "00000000000000000004.crc")


@pytest.mark.parametrize(
    "names",
    [
        (name(4),),
        (name(4), name(5)),
        (name(3), name(4), name(5), name(6)),
        (name(5), name(6), *CHECKPOINTS),
        (
            name(4),
            "00000000000000000006.checkpoint.parquet",
            "00000000000000000004.00000000000000000006.compacted.json",
        ),
        (name(4), "00000000000000000007.0a1b.json.tmp", "000000000000000000006.json"),
    ],
)
def test_a_log_that_goes_on_is_followed(names: tuple[str, ...]) -> None:
    """The next commit is there, or nothing newer is: checkpoints and other files are no commits."""
    log_with(*names).check_continuity(4)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ((name(6),), 5),
        ((name(4), name(6), name(7)), 5),
        (("00000000000000000009.checkpoint.parquet", name(9), name(10)), 5),
    ],
)
def test_a_gap_after_the_synced_version_is_found(names: tuple[str, ...], missing: int) -> None:
    """Log cleanup was faster: commits beyond a missing one cannot be followed, and the oldest left is named."""
    with pytest.raises(ResyncNeeded, match=f"commit {missing} is gone from the log, the oldest one left is") as caught:
        log_with(*names).check_continuity(4)
    assert (caught.value.version, caught.value.path) == (missing, f"{LOCATION}/_delta_log/{name(missing)}")


def test_a_shorter_log_is_another_table() -> None:
    """A log that ends before the synced version was made anew at the same place."""
    with pytest.raises(ResyncNeeded, match="the log ends before version 4, which is already synced"):
        log_with(name(0), name(1), name(3)).check_continuity(4)


@pytest.mark.parametrize("names", [(), ("_last_checkpoint",), ("00000000000000000004.checkpoint.parquet",)])
def test_a_log_without_commits_is_gone(names: tuple[str, ...]) -> None:
    """Nothing can be told from a log that has no commit at all: it is missing, not remade."""
    with pytest.raises(ObjectMissing, match="the Delta log is gone"):
        log_with(*names).check_continuity(4)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), False),
        ((name(1),), False),
        ((name(0),), True),
        (("_last_checkpoint", name(12)), False),
        (("00000000000000000012.checkpoint.parquet",), True),
        (("00000000000000000012.checkpoint.0000000001.0000000002.parquet", name(12)), True),
        (("00000000000000000012.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", name(13)), True),
        (("00000000000000000012.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json.tmp",), False),
    ],
)
def test_a_table_is_there_from_its_first_commit_on(names: tuple[str, ...], expected: bool) -> None:
    """Version 0 makes a table; once it is cleaned away, a checkpoint of any kind stands for it."""
    assert log_with(*names).is_there() is expected
