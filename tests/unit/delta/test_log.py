"""Commit files: typed, checked as a whole, and told apart from those that are still being written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from daemon.delta import commit_file
from daemon.delta.commit_file import OPERATION_CHARACTERS_MAX
from daemon.delta.log import UNFINISHED_COMMIT_MAX_MS, DeltaLog
from daemon.errors import CommitIncomplete, CorruptInput, ObjectMissing, ResyncNeeded, SyncError, Unsupported
from daemon.store.locations import FileMeta, Span
from state.records import CommitIdentity

LOCATION = "s3://bucket/lake/t"
MODIFIED_MS = 1_700_000_000_123
# Smaller than any line, so that lines lie across blocks.
BLOCK = 7
ADD = {"path": "a", "partitionValues": {}, "size": 10, "modificationTime": 0, "dataChange": True}
REMOVE = {"path": "a", "deletionTimestamp": 5, "dataChange": True}
DV = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40, "cardinality": 6}
METADATA = {"id": "t-1", "format": {}, "schemaString": "{}", "partitionColumns": ["p"], "configuration": {"k": "v"}}
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"], "writerFeatures": []}


class MemoryStorage:
    """Files by path; all of them were written at MODIFIED_MS."""

    is_ratified = False

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

    def read_blocks(self, path: str) -> tuple[FileMeta, Iterator[bytes]]:
        meta, data = self.stat(path), self.read(path)
        size = max(BLOCK, len(data) // 10_000)
        return meta, (data[start : start + size] for start in range(0, len(data), size))

    def appears_whole(self, path: str) -> bool:
        return False

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
    assert (add.path, add.size, add.data_change, add.stats) == (f"{LOCATION}/a", 10, True, "{}")
    assert add.partition_values == {"p": None, "q": ""}
    assert add.dv_unique_id == "uab^-aqEH.-t@S}K{vb[*k^@4"
    assert add.deletion_vector is not None
    assert (add.deletion_vector.size_in_bytes, add.deletion_vector.cardinality) == (40, 6)
    assert (remove.path, remove.dv_unique_id) == (f"{LOCATION}/a", None)
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
    assert [add.path for add in commit.adds] == [f"{LOCATION}/a"]
    assert commit.removes == ()


def test_unknown_fields_are_passed_over() -> None:
    """A field of a later protocol does not hide an action, and two kinds may share a line."""
    add = {**ADD, "baseRowId": 7, "defaultRowCommitVersion": 1, "tags": {"x": "y"}, "clusteringProvider": None}
    commit = log_of(lines({"add": add, "newKind": {}}, {"remove": {**REMOVE, "path": "b", "size": 3}})).read_commit(0)
    assert [add.path for add in commit.adds] == [f"{LOCATION}/a"]
    assert [remove.path for remove in commit.removes] == [f"{LOCATION}/b"]


def test_a_large_commit_is_refused_before_it_is_read() -> None:
    """By its size, with a way past it."""
    data = lines({"add": ADD})
    log = log_of(data)
    assert log.read_commit(0, bytes_max=len(data)).size_bytes == len(data)
    with pytest.raises(Unsupported, match=f"has {len(data)} bytes, at most {len(data) - 1} are read") as caught:
        log.read_commit(0, bytes_max=len(data) - 1)
    assert (caught.value.version, caught.value.path) == (0, log.commit_path(0))
    assert "`dvsync resync`" in caught.value.hint


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_long_line_is_refused(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Its JSON would take many times its size at once, wherever it stands in the file."""
    monkeypatch.setattr(commit_file, "LINE_BYTES_MAX", 100)
    long = lines({"commitInfo": {"x": "y" * 100}})
    data = [lines({"remove": {"path": "a", "dataChange": True}})] * 2
    data.insert(number - 1, long)
    with pytest.raises(Unsupported, match=f"line {number} of the commit file has more than 100 bytes") as caught:
        log_of(b"".join(data)).read_commit(0)
    assert "`dvsync resync`" in caught.value.hint


def test_a_file_that_grows_without_end_is_not_read_to_it() -> None:
    """Once it has more bytes than it had before the read, there is no need for more of them."""
    storage = MemoryStorage()
    log = DeltaLog(storage, LOCATION, FixedClock())
    storage.files[log.commit_path(0)] = lines({"add": ADD})
    endless = itertools.repeat(b"{}\n")
    storage.read_blocks = lambda path: (storage.stat(path), endless)  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(CommitIncomplete, match="more when it was read"):
        log.read_commit(0)


def test_blank_lines_and_a_missing_last_newline_are_no_fault() -> None:
    """The protocol asks for newline-delimited JSON; the last newline and empty lines say nothing."""
    data = lines({"add": ADD}) + b"\n  \r\n" + lines({"remove": {**REMOVE, "path": "b"}}).rstrip(b"\n")
    commit = log_of(data).read_commit(0)
    assert (len(commit.adds), len(commit.removes)) == (1, 1)


def test_the_in_commit_timestamp_is_the_commit_time() -> None:
    """An in-commit timestamp overrides the file's modification time; commitInfo's plain timestamp does not.

    It stands in the commit's first action, where each look at the file finds it.
    """
    plain, in_commit = {"timestamp": 5}, {"timestamp": 5, "inCommitTimestamp": 6}
    log = log_of(
        lines({"commitInfo": plain}),
        lines({"commitInfo": in_commit}),
        lines({"add": ADD}),
        lines({"add": ADD}, {"commitInfo": in_commit}),
    )
    for version, expected in enumerate((MODIFIED_MS, 6, MODIFIED_MS, MODIFIED_MS)):
        assert log.read_commit(version).timestamp_ms == log.commit_time_ms(version, otherwise=0) == expected


IN_COMMIT = lines({"commitInfo": {"inCommitTimestamp": 6}}, {"add": ADD})


class TimedStorage(MemoryStorage):
    """A store that tells the times that a test sets, and counts what it is asked."""

    modified_ms = MODIFIED_MS
    asked = 0

    def stat(self, path: str) -> FileMeta:
        self.asked += 1
        return FileMeta(path, len(self.read(path)), self.modified_ms)


def read_log(data: bytes) -> tuple[TimedStorage, DeltaLog, int]:
    """A log whose version 0 was read, and its time."""
    storage = TimedStorage()
    log = DeltaLog(storage, LOCATION, FixedClock())
    storage.files[log.commit_path(0)] = data
    return storage, log, log.read_commit(0).timestamp_ms


@pytest.mark.parametrize("data", [lines({"add": ADD}), IN_COMMIT])
def test_a_commit_that_stays_costs_one_request(data: bytes) -> None:
    """What was read before is told by size and time, and not read again."""
    storage, log, timestamp_ms = read_log(data)
    storage.asked = 0
    storage.read_blocks = storage.list_from = None  # type: ignore[assignment, method-assign]
    log.check_commit(0, timestamp_ms, has_next=False)
    assert log.is_untouched(0)
    assert storage.asked == 2


@pytest.mark.parametrize("data", [lines({"add": ADD}), IN_COMMIT])
def test_a_commit_that_has_grown_is_another_one(data: bytes) -> None:
    """Whether the file's time or the commit's own tells when it was committed: the size is another one."""
    storage, log, timestamp_ms = read_log(data)
    storage.files[log.commit_path(0)] += lines({"remove": {**REMOVE, "path": "b"}})
    storage.modified_ms += 1
    assert not log.is_untouched(0)
    with pytest.raises(ResyncNeeded, match="commit 0 was replaced after it was synced: its content differs") as caught:
        log.check_commit(0, timestamp_ms, has_next=False)
    assert (caught.value.version, caught.value.path) == (0, log.commit_path(0))


def test_a_commit_of_another_writer_is_another_one() -> None:
    """One of the same size and first line with other files; and, for a new process, one of another time."""
    info = {"commitInfo": {"operation": "WRITE"}}
    storage, log, timestamp_ms = read_log(lines(info, {"add": ADD}))
    storage.files[log.commit_path(0)] = lines(info, {"add": {**ADD, "path": "b"}})
    storage.modified_ms += 1
    listed = CommitIdentity(0, len(storage.files[log.commit_path(0)]), MODIFIED_MS)
    for each, recent, told in (
        (log, (), "was replaced .* its content"),
        (DeltaLog(storage, LOCATION, FixedClock()), (), "may have been replaced .* its timestamp"),
        (DeltaLog(storage, LOCATION, FixedClock()), (listed,), "may have been replaced .* its time"),
    ):
        with pytest.raises(ResyncNeeded, match=f"{told} differs"):
            each.check_commit(0, timestamp_ms, recent, has_next=False)


def test_another_time_of_the_same_commit_is_no_other_commit() -> None:
    """A store that changes its mind about a file's time has no states compared for it, however often it does."""
    storage, log, timestamp_ms = read_log(lines({"add": ADD}))
    for _ in range(3):
        storage.modified_ms += 1
        log.check_commit(0, timestamp_ms, has_next=False)
    # After a comparison of states: what is remembered is what the log tells then.
    storage.modified_ms += 1
    timestamp_ms = log.commit_time_ms(0, otherwise=5)
    assert timestamp_ms == storage.modified_ms
    storage.modified_ms += 1
    log.check_commit(0, timestamp_ms, has_next=False)


def test_a_commit_that_log_cleanup_took_is_not_asked_about() -> None:
    """Nothing can be said of a commit file that is gone: if the log goes on after it, it may be another log."""
    log = log_with(name(1))
    log.check_commit(0, 7, has_next=False)
    with pytest.raises(ResyncNeeded, match="commit 0, which is synced, is gone from the log, and version 1 is there"):
        log.check_commit(0, 7, has_next=True)
    assert not log.is_untouched(0)
    assert log.commit_time_ms(0, otherwise=5) == 5
    # The totals of the next version show whether it follows what was synced.
    storage = MemoryStorage()
    storage.files = {log.commit_path(1): b"{}", f"{log.folder}/{1:020d}.crc": b'{"tableSizeBytes": 1, "numFiles": 1}'}
    DeltaLog(storage, LOCATION, FixedClock()).check_commit(0, 7, has_next=True)


@pytest.mark.parametrize(
    "first",
    [
        b"{",
        b"5",
        b'{"commitInfo": 5}',
        b'{"commitInfo": {"inCommitTimestamp": 9223372036854775808}}',
        b'{"commitInfo": {"inCommitTimestamp": true}}',
        b"[" * 100_000,
        b"\xff",
        b"",
    ],
)
def test_a_first_line_without_sense_has_no_time_of_its_own(first: bytes) -> None:
    """Then the file's time is the commit's, whatever stands there."""
    assert log_of(first + b"\n" + IN_COMMIT).commit_time_ms(0, otherwise=5) == (6 if not first else MODIFIED_MS)


def test_the_name_of_an_operation_is_bounded_and_printable() -> None:
    """It goes into the summary of each snapshot, and to terminals."""
    commit = log_of(lines({"commitInfo": {"operation": "\x1b[2J" + "X" * 5_000_000}}, {"add": ADD})).read_commit(0)
    assert commit.operation is not None
    assert commit.operation.startswith("\\x1b[2JXXX")
    assert len(commit.operation) == OPERATION_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (lines({"commitInfo": {}}, {"metaData": METADATA}, {"add": ADD}), "t-1"),
        (lines({"metaData": METADATA}, {"add": ADD})[:-5], "t-1"),
        (lines({"add": ADD}), None),
        (b"nonsense\n{}\n", None),
        (b"", None),
    ],
)
def test_the_first_id_of_a_table(data: bytes, found: str | None) -> None:
    """What the beginning of version 0 tells; a cut end and what is no action are no faults here."""
    assert log_of(data).find_first_table_id() == found


def test_the_first_id_of_a_table_is_not_looked_for_far() -> None:
    """A metaData behind very many files costs more than it is worth."""
    files = lines(*({"add": {**ADD, "path": f"{number:0200d}"}} for number in range(5000)))
    assert log_of(files + lines({"metaData": METADATA})).find_first_table_id() is None


def test_the_first_id_of_a_table_whose_first_commits_are_gone() -> None:
    """Log cleanup took them."""
    assert log_with(name(1)).find_first_table_id() is None


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


class GrowingStorage(MemoryStorage):
    """A writer adds `more` to each file once somebody has asked for its size."""

    more = lines({"remove": {**REMOVE, "path": "b"}})

    def stat(self, path: str) -> FileMeta:
        found = super().stat(path)
        self.files[path] += self.more
        return found


@pytest.mark.parametrize("since_ms", [0, 2 * UNFINISHED_COMMIT_MAX_MS])
@pytest.mark.parametrize("cut", [0, 3])
def test_a_commit_that_grows_while_it_is_read_is_not_yet_there(cut: int, since_ms: int) -> None:
    """Two sizes of one file mean that its writer is at work, also where each of them ends with a whole line."""
    storage = GrowingStorage()
    log = DeltaLog(storage, LOCATION, FixedClock(since_ms))
    whole = lines({"add": ADD})
    storage.files[log.commit_path(0)] = whole
    storage.more = GrowingStorage.more[: len(GrowingStorage.more) - cut]
    with pytest.raises(CommitIncomplete, match=f"had {len(whole)} bytes, and more when it was read") as caught:
        log.read_commit(0)
    assert caught.value.version == 0
    assert len(whole) < (caught.value.offset or 0) <= len(whole) + len(storage.more)
    storage.more = b""
    storage.files[log.commit_path(0)] = whole + GrowingStorage.more
    assert [remove.path for remove in log.read_commit(0).removes] == [f"{LOCATION}/b"]


def test_a_commit_that_shrinks_while_it_is_read_is_not_yet_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is put in the place of a longer one is read again, although it ends with a whole line, too."""
    log, stat, whole = log_of(WHOLE), MemoryStorage.stat, lines({"add": ADD})

    def stat_and_replace(storage: MemoryStorage, path: str) -> FileMeta:
        found = stat(storage, path)
        storage.files[path] = whole
        return found

    monkeypatch.setattr(MemoryStorage, "stat", stat_and_replace)
    with pytest.raises(CommitIncomplete, match=f"had {len(WHOLE)} bytes, and fewer when it was read"):
        log.read_commit(0)
    assert not log.read_commit(0).removes


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
        b'{"metaData": {"id": "' + b"x" * 201 + b'", "schemaString": "", "partitionColumns": []}}',
        b'{"add": {"path": "a", "partitionValues": {}, "size": 9223372036854775808, "dataChange": true}}',
        b'{"add": {"path": "a", "partitionValues": {}, "size": 1e999999, "dataChange": true}}',
        b'{"remove": {"path": "a", "dataChange": true, "deletionVector": {"storageType": "u", "pathOrInlineDv": "",'
        b' "sizeInBytes": 2147483648, "cardinality": 1}}}',
        b'{"remove": {"path": "a", "dataChange": true, "deletionVector": {"storageType": "u", "pathOrInlineDv": "",'
        b' "sizeInBytes": 1, "cardinality": 1, "offset": -2147483649}}}',
        b'{"remove": {"path": "a", "dataChange": true, "deletionVector": {"storageType": "u", "pathOrInlineDv": "",'
        b' "sizeInBytes": 1, "cardinality": 9223372036854775808}}}',
        b'{"protocol": {"minReaderVersion": 2147483648, "minWriterVersion": 7}}',
    ],
)
def test_json_that_is_no_action_is_corrupt(line: bytes) -> None:
    """Whole JSON of the wrong shape is no unfinished work, not even in the last line."""
    with pytest.raises(CorruptInput, match="line 2 is not a Delta action"):
        log_of(lines({"commitInfo": {}}) + line).read_commit(0)


@pytest.mark.parametrize("kind", ["commitInfo", "add", "metaData", "somethingNew"])
@pytest.mark.parametrize("ended", [False, True])
def test_a_line_that_is_nested_too_deeply_is_corrupt(kind: str, ended: bool) -> None:
    """Delta's own reader gives up at 1,000 levels: the table is parked, however fresh the file is."""
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000 * ended
    with pytest.raises(CorruptInput, match="line 2 is nested too deeply"):
        log_of(lines({"add": ADD}) + b'{"%s": %s}\n' % (kind.encode(), deep)).read_commit(0)


@pytest.mark.parametrize(
    "info",
    [b"5", b'"x"', b"null", b"[1]", b'{"operation": 1e99999}', b'{"operation": [{"a": 1e-99999}]}', b'{"x": 1e99999}'],
)
def test_provenance_may_be_any_json(info: bytes) -> None:
    """Nothing depends on commitInfo but the name of an operation."""
    commit = log_of(b'{"commitInfo": %s}\n' % info + lines({"add": ADD})).read_commit(0)
    assert (len(commit.adds), commit.operation) == (1, None)


def test_two_spellings_of_a_path_are_one_file() -> None:
    """Paths come out decoded and absolute, as they are compared."""
    actions = (
        {"remove": {**REMOVE, "path": "a%20b"}},
        {"add": {**ADD, "path": f"{LOCATION}/a%20b", "deletionVector": DV}},
    )
    commit = log_of(lines(*actions)).read_commit(0)
    assert [action.path for action in commit.file_actions] == [f"{LOCATION}/a b"] * 2


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([{"add": ADD}, {"add": {**ADD, "stats": None}}], f"2 adds for the one path {LOCATION}/a"),
        ([{"add": ADD}, {"add": {**ADD, "path": "./a"}}, {"add": ADD}], "3 adds for the one path"),
        ([{"add": {**ADD, "path": "p//é"}}, {"add": {**ADD, "path": "p/é"}}], "2 adds for the one path .*/p/é"),
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
        [{"add": ADD}, {"add": {**ADD, "deletionVector": DV}}],
        [{"add": {**ADD, "path": "é"}}, {"add": {**ADD, "path": "%C3%A9"}}],
        [{"remove": {**REMOVE, "deletionVector": DV}}, {"add": {**ADD, "deletionVector": {**DV, "offset": 99}}}],
        [{"remove": REMOVE}, {"remove": {**REMOVE, "deletionVector": DV}}],
    ],
)
def test_churn_is_no_contradiction(actions: list[dict[str, Any]]) -> None:
    """Two logical files of one path are two: swapping a deletion vector removes one and adds the other."""
    log_of(lines(*actions)).read_commit(0)


@pytest.mark.parametrize("action", [{"add": {**ADD, "path": "time=10:00/a"}}, {"remove": {**REMOVE, "path": "a b"}}])
def test_a_path_that_is_no_uri_is_corrupt(action: dict[str, Any]) -> None:
    """Delta takes apart the paths of adds and of removes, and reads no table where it cannot."""
    with pytest.raises(
        CorruptInput, match=r"Delta cannot read the path '.*' of a data file: .* is not escaped"
    ) as caught:
        log_of(lines(action)).read_commit(0)
    assert (caught.value.version, caught.value.path) == (0, f"{LOCATION}/_delta_log/{name(0)}")


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


NINE = "00000000000000000009.checkpoint.parquet"


@pytest.mark.parametrize(
    "names", [(name(6), NINE), (name(4), name(6), name(7), name(9), NINE), (NINE, name(9), name(10))]
)
def test_a_gap_after_the_synced_version_is_found(names: tuple[str, ...]) -> None:
    """Log cleanup was faster: commits beyond a missing one cannot be followed, and the oldest left is named."""
    with pytest.raises(ResyncNeeded, match="commit 5 is gone from the log; the oldest commit after it is") as caught:
        log_with(*names).check_continuity(4)
    assert (caught.value.version, caught.value.path) == (5, f"{LOCATION}/_delta_log/{name(5)}")


@pytest.mark.parametrize("names", [(name(6),), (name(4), name(6), name(7)), (*CHECKPOINTS, name(4), name(6))])
def test_a_gap_that_no_checkpoint_covers_is_corrupt(names: tuple[str, ...]) -> None:
    """Nobody can tell any more what the missing commit did: a person must bring it back."""
    with pytest.raises(CorruptInput, match="the log has a gap: commit 5 is missing, 6 is there") as caught:
        log_with(*names).check_continuity(4)
    assert (caught.value.version, caught.value.path) == (5, f"{LOCATION}/_delta_log/{name(5)}")


@pytest.mark.parametrize(
    "names",
    [
        (name(0), name(1), name(3)),
        ("00000000000000000003.checkpoint.parquet",),
        ("00000000000000000004.checkpoint.parquet",),
    ],
)
def test_a_shorter_log_is_another_table(names: tuple[str, ...]) -> None:
    """A log that ends before the synced version was made anew at the same place, or is broken: Delta tells which."""
    with pytest.raises(ResyncNeeded, match="the log ends before version 4, which is already synced"):
        log_with(*names).check_continuity(4)


class LaggingStorage(MemoryStorage):
    """Lists what was there before `unlisted` came."""

    unlisted: tuple[str, ...] = ()

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        return (meta for meta in super().list_from(directory, after) if not meta.path.endswith(self.unlisted))


@pytest.mark.parametrize("unlisted", [(name(4),), (name(5),), (name(3), name(4), name(5)), (name(4), name(5), name(6))])
def test_a_listing_that_lags_proves_nothing(unlisted: tuple[str, ...]) -> None:
    """What a listing leaves out is asked for before a commit is called gone, or the log another one."""
    storage = LaggingStorage()
    storage.files = {f"{LOCATION}/_delta_log/{name(version)}": b"{}\n" for version in range(3, 7)}
    storage.unlisted = unlisted
    DeltaLog(storage, LOCATION, FixedClock()).check_continuity(4)


class Listed(TimedStorage):
    """Lists commits with other times than it tells of each file."""

    listed_ms = MODIFIED_MS

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        return (replace(meta, modified_ms=self.listed_ms) for meta in super().list_from(directory, after))


def log_that_was_read() -> tuple[Listed, DeltaLog, tuple[CommitIdentity, ...]]:
    """Commits 0 to 3, and what is remembered of them: 0 and 1 were read."""
    storage = Listed()
    log = DeltaLog(storage, LOCATION, FixedClock())
    for version in range(4):
        storage.files[log.commit_path(version)] = lines({"add": {**ADD, "path": f"f{version}"}})
    read = [each for version in (0, 1) for each in log.read_commit(version).recent_commits]
    learned = log.check_continuity(3, read)
    assert [each.version for each in learned] == [2]
    return storage, log, (*read, *learned)


def test_older_commits_that_stay_are_not_read() -> None:
    """Size and time in the listing are enough; those that log cleanup took are passed over."""
    storage, log, recent = log_that_was_read()
    del storage.files[log.commit_path(0)], storage.files[log.commit_path(1)]
    storage.read_blocks = None  # type: ignore[assignment, method-assign]
    assert log.check_continuity(3, recent) == ()


def test_a_listing_in_milliseconds_of_a_store_of_seconds() -> None:
    """MinIO lists milliseconds, and sends whole seconds with a file: these are one time, and nothing is read again."""
    storage, log, recent = log_that_was_read()
    whole = [with_fields(each, modified_ms=MODIFIED_MS // 1000 * 1000) for each in recent]
    storage.read_blocks = None  # type: ignore[assignment, method-assign]
    assert log.check_continuity(3, whole) == ()


def test_another_time_in_a_listing_is_asked_for() -> None:
    """A listing may be old: what the file itself tells counts, and its time is remembered from then on."""
    storage, log, recent = log_that_was_read()
    storage.listed_ms += 1
    assert log.check_continuity(3, recent[:2]) == (with_fields(recent[2], modified_ms=MODIFIED_MS + 1),)
    storage.modified_ms += 1
    refreshed = log.check_continuity(3, recent[:2])
    assert [(each.version, each.modified_ms, each.head is None) for each in refreshed] == [
        (0, MODIFIED_MS + 1, False),
        (1, MODIFIED_MS + 1, False),
        (2, MODIFIED_MS + 1, True),
    ]
    storage.read_blocks = None  # type: ignore[assignment, method-assign]
    assert log.check_continuity(3, refreshed) == ()


@pytest.mark.parametrize(
    ("version", "text", "differing"),
    [(1, "g1", "content"), (1, "longer", "content"), (2, "g2", "time"), (2, "longer", "content")],
)
def test_an_older_commit_that_is_another_one(version: int, text: str, differing: str) -> None:
    """The error names it; a comparison remembers what is there now. One that was only listed is known by its time."""
    storage, log, recent = log_that_was_read()
    storage.files[log.commit_path(version)] = lines({"add": {**ADD, "path": text}})
    storage.modified_ms = storage.listed_ms = MODIFIED_MS + 1
    was = "was" if differing == "content" else "may have been"
    with pytest.raises(ResyncNeeded, match=f"commit {version} {was} replaced .* its {differing} differs") as caught:
        log.check_continuity(3, [each for each in recent if each.version == version])
    assert (caught.value.version, caught.value.path) == (version, log.commit_path(version))
    now = log.identify(log.list_commits(), recent)
    assert [each.version for each in now] == [0, 1, 2, 3]
    assert log.check_continuity(3, now) == ()


def test_a_commit_that_is_replaced_after_the_listing_is_noticed_later() -> None:
    """The state beside which it is remembered may have been read before."""
    storage, log, recent = log_that_was_read()
    storage.listed_ms += 1
    listed = log.list_commits()
    storage.files[log.commit_path(1)] = lines({"add": {**ADD, "path": "longer"}})
    now = log.identify(listed, recent)
    with pytest.raises(ResyncNeeded, match=r"commit 1 .* replaced .* its content differs"):
        log.check_continuity(3, now)


@pytest.mark.parametrize("names", [(), ("_last_checkpoint",), ("00000000000000000004.crc",)])
def test_a_log_without_commits_is_gone(names: tuple[str, ...]) -> None:
    """Nothing can be told from a log that has no commit and no checkpoint: it is missing, not remade."""
    with pytest.raises(ObjectMissing, match="the Delta log is gone"):
        log_with(*names).check_continuity(4)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), False),
        (("_last_checkpoint", "00000000000000000012.crc"), False),
        ((name(0),), True),
        ((name(1),), True),
        (("_last_checkpoint", name(12)), True),
        (("00000000000000000012.checkpoint.parquet",), True),
        (("00000000000000000012.checkpoint.0000000001.0000000002.parquet", name(12)), True),
        (("00000000000000000012.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", name(13)), True),
        (("00000000000000000012.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json.tmp",), False),
    ],
)
def test_a_table_is_there_from_its_first_commit_on(names: tuple[str, ...], expected: bool) -> None:
    """Any commit is of a table, also where version 0 is missing; so is a checkpoint of any kind."""
    assert log_with(*names).is_there() is expected


@pytest.mark.parametrize("newest", range(9))
def test_the_newest_version_is_found(newest: int) -> None:
    """From any version that is known, or from the first; commits before a known one may be cleaned away."""
    whole = log_with(*(name(version) for version in range(newest + 1)))
    assert whole.find_newest(None) == newest
    for known in range(newest + 1):
        assert whole.find_newest(known) == newest
        assert log_with(*(name(version) for version in range(known + 1, newest + 1))).find_newest(known) == newest


def test_nothing_is_known_of_a_log_without_its_first_commit() -> None:
    """Its newest version is not told by looking for the next one; the time of a commit is told where it is."""
    log = log_with(name(3), name(4))
    assert log.find_newest(None) is None
    assert (log.find_written_ms(3), log.find_written_ms(5)) == (MODIFIED_MS, None)


@pytest.mark.parametrize(
    ("since_ms", "kind"), [(UNFINISHED_COMMIT_MAX_MS - 1, CommitIncomplete), (UNFINISHED_COMMIT_MAX_MS, CorruptInput)]
)
def test_an_empty_commit_is_found_without_following(since_ms: int, kind: type[SyncError]) -> None:
    """Delta passes over an empty commit file: one among those that it would read is found by its size."""
    whole = lines({"protocol": PROTOCOL})
    log = log_of(b"", whole, b" \n", whole, since_ms=since_ms)
    commits = log.list_commits()
    for empty in (0, 2):
        with pytest.raises(kind, match="the commit file is empty") as caught:
            log.check_written(commits)
        assert caught.value.version == empty
        del commits[empty]
    log.check_written(commits)
