"""The commit files of `_delta_log`: which exist, and their actions, typed and checked.

Delta PROTOCOL.md, "Delta Log Entries". Only commit files are read here; `snapshot.py` replays a table's whole state.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace as with_fields

from daemon.clock import Clock
from daemon.delta.actions import AddFile, Commit, Metadata, Protocol, RemoveFile, find_doubled
from daemon.delta.checksum import Totals, decode_checksum
from daemon.delta.commit_identity import HEAD_BYTES, KnownCommit, compare_listed, identify, what_differs
from daemon.delta.uri import name_file
from daemon.errors import CommitIncomplete, CorruptInput, LogMissing, ObjectMissing, ResyncNeeded, Unsupported
from daemon.store.files import FileMeta, Span
from daemon.store.storage import FileIOStorage
from daemon.texts import excerpt
from state.records import RECENT_COMMITS_MAX, CommitIdentity

FileAction = TypeVar("FileAction", AddFile, RemoveFile)

COMMIT_FILE = re.compile(r"([0-9]{20})\.json")
# PROTOCOL.md, "Checkpoints": classic, multi-part and UUID-named ones.
CHECKPOINT_FILE = re.compile(r"([0-9]{20})\.checkpoint\..*(parquet|json)")
# How long a cut commit file may be a writer's unfinished work before it counts as corrupt.
UNFINISHED_COMMIT_MAX_MS = 60_000
# A whole line is decoded in memory, and JSON inside its texts again; the values need many times its size.
LINE_BYTES_MAX = 16 << 20
# Delta lists up to 50 files and their statistics in a checksum file. If a file is longer, its cut text is ignored.
CHECKSUM_BYTES_MAX = 4 << 20
# Delta's own names of operations are shorter than 50.
OPERATION_CHARACTERS_MAX = 100
# A larger commit file is not kept in memory until it is due, and none is used that was read longer ago.
READ_AHEAD_BYTES_MAX = 256 << 10
READ_AHEAD_MAX_S = 60.0
# The shortest file with an action is `{"add":{}}`. A smaller file must be read to learn if it is damaged.
COMMIT_MIN_BYTES = 10


class _Line(msgspec.Struct, frozen=True):
    """One line of a commit file: exactly one action. Kinds that change neither rows nor schema are ignored."""

    add: AddFile | None = None
    remove: RemoveFile | None = None
    meta_data: Metadata | None = msgspec.field(name="metaData", default=None)
    protocol: Protocol | None = None
    # "Commit Provenance Information" may be any JSON, also numbers too large to decode. So it is decoded separately.
    commit_info: msgspec.Raw = msgspec.field(name="commitInfo", default=msgspec.Raw())


_decoder = msgspec.json.Decoder(_Line)


class _Provenance(msgspec.Struct, frozen=True):
    operation: Any = None


@dataclass(frozen=True)
class _Ahead:
    """A commit file that was read when its existence was checked, at `read_s` of the monotonic clock."""

    version: int
    meta: FileMeta
    data: bytes
    read_s: float


class DeltaLog:
    """The log of the table at `location` (a normalised URI). Remembers the last commit that it read or checked."""

    def __init__(self, storage: FileIOStorage, location: str, clock: Clock) -> None:
        self.location = location
        self._storage = storage
        self._clock = clock
        self._known: KnownCommit | None = None
        self._ahead: _Ahead | None = None

    @property
    def folder(self) -> str:
        return f"{self.location}/_delta_log"

    def commit_path(self, version: int) -> str:
        return f"{self.folder}/{version:020d}.json"

    def has_version(self, version: int) -> bool:
        """Return whether the commit file of `version` exists. One request."""
        return self._storage.exists(self.commit_path(version))

    def has_next(self, version: int) -> bool:
        """Return whether the commit file of `version` exists, which is likely to be read next. One request.

        Where commit files appear whole, the request reads the file, and `read_commit` then needs none. Elsewhere a
        writer may still be adding lines, so the file is read as late as possible.
        """
        path, self._ahead = self.commit_path(version), None
        if not self._storage.appears_whole(path):
            return self._storage.exists(path)
        try:
            meta, blocks = self._storage.read_blocks(path)
        except ObjectMissing:
            return False
        if meta.size <= READ_AHEAD_BYTES_MAX:
            self._ahead = _Ahead(version, meta, b"".join(blocks), self._clock.monotonic_s())
        return True

    def _read_blocks(self, version: int) -> tuple[FileMeta, Iterable[bytes]]:
        ahead, self._ahead = self._ahead, None
        if ahead and ahead.version == version and self._clock.monotonic_s() - ahead.read_s < READ_AHEAD_MAX_S:
            return ahead.meta, [ahead.data]
        return self._storage.read_blocks(self.commit_path(version))

    def is_there(self) -> bool:
        """Return whether the log has any commit or checkpoint. One request or two.

        `_last_checkpoint` is not used: it is only a hint, and may be missing or wrong.
        """
        return self.has_version(0) or any(self._list(after=""))

    def find_written_ms(self, version: int) -> int | None:
        """Return the modification time of the commit file of `version`; None if the file does not exist."""
        if self._ahead and self._ahead.version == version:
            return self._ahead.meta.modified_ms
        try:
            return self._storage.stat(self.commit_path(version)).modified_ms
        except ObjectMissing:
            return None

    def find_newest(self, known: int | None) -> int | None:
        """Find the newest version with existence checks only, beginning at version `known`, or else at 0."""
        if known is None:
            if not self.has_version(0):
                return None
            known = 0
        step = 1
        while self.has_version(known + step):
            step *= 2
        low, high = known + step // 2, known + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.has_version(middle) else (low, middle)
        return low

    def read_commit(self, version: int, *, bytes_max: int = sys.maxsize) -> Commit:
        """Read and validate the whole commit.

        Raises `ObjectMissing`, `CommitIncomplete` while it is being written, `CorruptInput` naming line or path, and
        `Unsupported` if the file is larger than `bytes_max` or a line is too long.
        """
        path = self.commit_path(version)
        meta, blocks = self._read_blocks(version)
        if meta.size > bytes_max:
            what = f"the commit file has {meta.size} bytes, at most {bytes_max} are read (limits.commit_bytes_max)"
            raise _too_large(what, version, path)
        lines = _Lines(blocks, size_max=meta.size)
        actions, fault = _decode(lines, version, path)
        if lines.size_bytes != meta.size:
            compared = "more" if lines.size_bytes > meta.size else "fewer"
            what = f"the commit file had {meta.size} bytes, and {compared} when it was read"
            raise _incomplete(what, version, path, lines.size_bytes)
        if fault is None and actions:
            known = identify(version, meta, first_line=lines.first, head=lines.head)
            commit = self._validated(version, path, actions, known)
            self._known = known
            return commit
        what = "the commit file ends inside a line" if fault else "the commit file is empty"
        if self._clock.now_ms() - meta.modified_ms < UNFINISHED_COMMIT_MAX_MS:
            raise _incomplete(what, version, path, meta.size) from fault
        hint = "No writer has changed the file for a minute: restore the file, then `dvsync resume` the table."
        raise CorruptInput(what, version=version, path=path, offset=meta.size, hint=hint) from fault

    def read_compacted(self, from_version: int, to_version: int) -> Commit | None:
        """Read the log compaction file of these commits, both inclusive: files, protocol and metadata.

        Returns None if the file is gone or invalid; the caller then reads the commits, which have the same content.
        PROTOCOL.md, "Log Compaction Files".
        """
        path = f"{self.folder}/{from_version:020d}.{to_version:020d}.compacted.json"
        try:
            meta, blocks = self._storage.read_blocks(path)
            actions, fault = _decode(_Lines(blocks, size_max=sys.maxsize), to_version, path)
            known = KnownCommit(CommitIdentity(to_version, meta.size, meta.modified_ms), timestamp_ms=0)
            return self._validated(to_version, path, actions, known) if actions and not fault else None
        except (ObjectMissing, CorruptInput, Unsupported):
            return None

    def read_checksum(self, version: int) -> Totals | None:
        """Read Delta's totals of `version`; None if there is no checksum file (yet), or it cannot be decoded."""
        try:
            return decode_checksum(self._storage.read(f"{self.folder}/{version:020d}.crc", Span(0, CHECKSUM_BYTES_MAX)))
        except ObjectMissing:
            return None

    def find_first_table_id(self) -> str | None:
        """Return the table id in version 0; None if log cleanup removed the commit, or its first HEAD_BYTES have no
        id. One request.
        """
        try:
            head = self._storage.read(self.commit_path(0), Span(0, HEAD_BYTES))
            actions, _ = _decode(_Lines([head], size_max=HEAD_BYTES), 0, self.commit_path(0))
        except (ObjectMissing, CorruptInput, Unsupported):
            return None
        return next((action.meta_data.id for action in actions if action.meta_data), None)

    def commit_time_ms(self, version: int, otherwise: int) -> int:
        """Return the time of `version` as `read_commit` does; `otherwise` if its commit file is gone."""
        self._known = self._probe(version)
        return self._known.timestamp_ms if self._known else otherwise

    def check_commit(
        self, version: int, timestamp_ms: int, recent: Iterable[CommitIdentity] = (), *, has_next: bool
    ) -> None:
        """Raise `ResyncNeeded` if the commit file of `version` is not the commit made at `timestamp_ms`.

        `recent` may have its identity from an earlier process. One request if the file is unchanged. A file with
        another time but the same size and head is the same commit, because a store may report different times for one
        file. If the file is gone, log cleanup has removed it, or the log is another one. The totals of the next version
        show which, if it has a checksum file. Otherwise `ResyncNeeded` is raised, too, if the next version is there.
        """
        known = self._known
        if known is None or (known.identity.version, known.timestamp_ms) != (version, timestamp_ms):
            remembered = (KnownCommit(each, timestamp_ms) for each in recent if each.version == version)
            self._known = known = next(remembered, None)
        if known and self.is_untouched(version):
            return
        found = self._probe(version)
        if found is None:
            if not has_next or self.read_checksum(version + 1) is not None:
                return
            what = f"commit {version}, which is synced, is gone from the log, and version {version + 1} is there"
        elif known.is_same_commit(found) if known else found.timestamp_ms == timestamp_ms:
            self._known = replace(found, timestamp_ms=timestamp_ms)
            return
        else:
            what = _replaced(version, what_differs(known.identity, found.identity) if known else "timestamp")
        raise self._other_log(what, version)

    def _other_log(self, what: str, version: int) -> ResyncNeeded:
        return ResyncNeeded(
            what,
            version=version,
            path=self.commit_path(version),
            hint="The table was recreated, or its log copied, restored or cleaned up. dvsync compares both states and "
            "commits the difference.",
        )

    def is_untouched(self, version: int) -> bool:
        """Return whether the commit file is there, as it was when it was last read or checked. One request."""
        try:
            meta = self._storage.stat(self.commit_path(version))
        except ObjectMissing:
            return False
        known = self._known
        return known is not None and known.identity.version == version and known.is_untouched(meta)

    def _probe(self, version: int) -> KnownCommit | None:
        try:
            meta, blocks = self._storage.read_blocks(self.commit_path(version))
        except ObjectMissing:
            return None
        head = b""
        for block in blocks:
            head += block[: HEAD_BYTES - len(head)]
            if len(head) == HEAD_BYTES:
                break
        lines = _Lines([head], size_max=HEAD_BYTES)
        next(iter(lines), None)
        return identify(version, meta, first_line=lines.first, head=head)

    def _validated(self, version: int, path: str, actions: list[_Line], known: KnownCommit) -> Commit:
        adds = tuple(self._resolved(version, path, action.add) for action in actions if action.add)
        removes = tuple(self._resolved(version, path, action.remove) for action in actions if action.remove)
        metadata = [action.meta_data for action in actions if action.meta_data]
        protocols = [action.protocol for action in actions if action.protocol]
        if len(metadata) > 1 or len(protocols) > 1:
            raise _corrupt("more than one metaData or protocol action in one commit", version, path)
        _check_file_actions(version, path, adds, removes)
        return Commit(
            version=version,
            timestamp_ms=known.timestamp_ms,
            adds=adds,
            removes=removes,
            metadata=metadata[0] if metadata else None,
            protocol=protocols[0] if protocols else None,
            operation=next((_operation_of(action.commit_info) for action in actions if action.commit_info), None),
            size_bytes=known.identity.size_bytes,
            recent_commits=(known.identity,),
        )

    def _resolved(self, version: int, path: str, action: FileAction) -> FileAction:
        try:
            place, uri = name_file(self.location, action.path)
        except CorruptInput as error:
            raise _corrupt(error.message, version, path) from error
        return with_fields(action, path=place, uri=uri)

    def check_continuity(self, after: int, recent: Collection[CommitIdentity] = ()) -> tuple[CommitIdentity, ...]:
        """Raise `ResyncNeeded` if version `after + 1` can never be read or a commit before `after` is not the one in
        `recent`, `CorruptInput` if the log has a gap there, and `ObjectMissing` if there is no log.

        Returns what is new about the last commits up to `after`: those that `recent` lacks, or has with another time.
        Commits that log cleanup removed are passed over; so are those before `recent` begins.

        One listing or two, and a read of each commit with another size or time, so it is called at starts and every few
        minutes. With `after` = 5:

        - the log has 8, 9 and a checkpoint of 8: log cleanup removed 6, and the log cannot be followed;
        - the log has 5, 7 and no checkpoint after 5: commit 6 was lost, which is a gap;
        - the log has 0, 1 only: the table was recreated at the same place.

        A commit that a listing omits is asked for once more: some stores and cached NFS folders list old contents.
        """
        commits, checkpoints = self._list(after=f"{max(after + 1 - RECENT_COMMITS_MAX, 0):020d}")
        beyond = [version for version in commits if version > after]
        if beyond and beyond[0] != after + 1 and not self.has_version(after + 1):
            if all(version <= after for version in checkpoints):
                raise self.gap(after + 1, beyond[0])
            raise ResyncNeeded(
                f"commit {after + 1} is gone from the log; the oldest commit after it is {beyond[0]}",
                version=after + 1,
                path=self.commit_path(after + 1),
                hint="The log was cleaned up before dvsync read it. dvsync compares both states and commits the "
                "difference.",
            )
        if max(commits, default=-1) >= after or self.has_version(after):
            # Whether the newest synced commit is the same, is asked at each sync.
            older = {version: meta for version, meta in commits.items() if version < after}
            now, replaced = compare_listed(older, recent, self._probe)
            for version, differing in replaced:
                raise self._other_log(_replaced(version, differing), version)
            return tuple(each for each in now if each not in recent)
        if not commits and not any(self._list(after="")):
            raise log_gone(self.location)
        raise ResyncNeeded(
            f"the log ends before version {after}, which is already synced",
            version=after,
            path=self.commit_path(after),
            hint="The table was recreated at the same place. dvsync commits the whole new table in one snapshot.",
        )

    def gap(self, missing: int, following: int) -> CorruptInput:
        return CorruptInput(
            f"the log has a gap: commit {missing} is missing, {following} is there, and no checkpoint replaces it",
            version=missing,
            path=self.commit_path(missing),
            hint="Restore the missing commits, then `dvsync resume` the table.",
        )

    def check_written(self, commits: Mapping[int, FileMeta]) -> None:
        """Raise what `read_commit` raises for one of these commit files that is too small to hold an action.

        Delta reads an empty file as a commit without changes, and so loses the rows of an interrupted writer.
        """
        for version, meta in commits.items():
            if meta.size < COMMIT_MIN_BYTES:
                self.read_commit(version)

    def list_commits(self) -> dict[int, FileMeta]:
        """List all commit files by version, sorted. One listing."""
        return self._list(after="")[0]

    def identify(self, listed: Mapping[int, FileMeta], recent: Iterable[CommitIdentity]) -> tuple[CommitIdentity, ...]:
        """Identify commits that were listed before a state was read, to be remembered beside it.

        A read of each one whose size or time differs from that in `recent`. If it is another one by now, it is
        remembered as it was listed, and the next listing tells.
        """

        def probe(version: int) -> KnownCommit:
            found, meta = self._probe(version), listed[version]
            if found and found.is_untouched(meta):
                return found
            return KnownCommit(CommitIdentity(version, meta.size, meta.modified_ms), meta.modified_ms)

        return tuple(compare_listed(listed, recent, probe)[0])

    def _list(self, after: str) -> tuple[dict[int, FileMeta], list[int]]:
        """List commits by version, and the versions of checkpoints, whose file names are greater than `after`."""
        commits, checkpoints = dict[int, FileMeta](), list[int]()
        for meta in self._storage.list_from(self.folder, after=after):
            name = meta.path.rsplit("/", 1)[1]
            if match := COMMIT_FILE.fullmatch(name):
                commits[int(match[1])] = meta
            elif match := CHECKPOINT_FILE.fullmatch(name):
                checkpoints.append(int(match[1]))
        return commits, checkpoints


def _check_file_actions(version: int, path: str, adds: tuple[AddFile, ...], removes: tuple[RemoveFile, ...]) -> None:
    """Raise `CorruptInput` if two actions contradict each other: the actions of a commit have no order.

    PROTOCOL.md, "Action Reconciliation".
    """
    # Only such adds can be of one logical file.
    if find_doubled(add.path for add in adds) and (doubled := find_doubled(add.logical_file for add in adds)):
        (data_file, _), count = doubled
        raise _corrupt(f"{count} adds for the one path {data_file}", version, path)
    added = {add.logical_file for add in adds} if removes else ()
    for remove in removes:
        if remove.logical_file in added:
            raise _corrupt(f"add and remove of the same logical file {remove.path}", version, path)


class _LineTooLong(Exception):
    """A line has more than LINE_BYTES_MAX bytes."""


class _Lines:
    """The non-blank lines of a file, and the number of bytes that were read.

    After the read, `first` is the first line and `head` the beginning of the file, each at most HEAD_BYTES long.
    Reading stops when the file turns out to be larger than `size_max`.
    """

    def __init__(self, blocks: Iterable[bytes], *, size_max: int) -> None:
        self.size_bytes = 0
        self.first = self.head = b""
        self._size_max = size_max
        self._lines = self._split(blocks)

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            if line.strip():
                self.first = self.first or line[:HEAD_BYTES]
                yield line

    def _split(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        begun: list[bytes] = []
        for block in blocks:
            self.size_bytes += len(block)
            if self.size_bytes > self._size_max:
                return
            self.head += block[: HEAD_BYTES - len(self.head)]
            *ended, rest = block.split(b"\n")
            for line in ended:
                yield _joined([*begun, line])
                begun = []
            begun.append(rest)
        yield _joined(begun)


def _joined(parts: list[bytes]) -> bytes:
    if sum(map(len, parts)) > LINE_BYTES_MAX:
        raise _LineTooLong
    return b"".join(parts)


def _operation_of(commit_info: msgspec.Raw) -> str | None:
    try:
        operation = msgspec.json.decode(commit_info, type=_Provenance).operation
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return excerpt(operation, OPERATION_CHARACTERS_MAX) if isinstance(operation, str) else None


def _decode(lines: _Lines, version: int, path: str) -> tuple[list[_Line], Exception | None]:
    """Return the actions, and the decoding error of the last line, which may be unfinished.

    Raises `CorruptInput`, and `Unsupported` for a line that is too long.
    """
    actions: list[_Line] = []
    rest = iter(lines)
    while True:
        number = len(actions) + 1
        try:
            line = next(rest, None)
            if line is None:
                return actions, None
            if not line.isascii():
                line.decode()  # The decoder does not check the UTF-8 of fields that it skips.
            actions.append(_decoder.decode(line))
        except _LineTooLong as error:
            what = f"line {number} of the commit file has more than {LINE_BYTES_MAX} bytes"
            raise _too_large(what, version, path) from error
        except msgspec.ValidationError as error:
            raise _corrupt(f"line {number} is not a Delta action: {error}", version, path) from error
        except RecursionError as error:
            raise _corrupt(f"line {number} is nested too deeply", version, path) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if next(rest, None) is None:
                return actions, error
            raise _corrupt(f"line {number} is not JSON: {error}", version, path) from error


def _replaced(version: int, differing: str) -> str:
    was = "was" if differing == "content" else "may have been"
    return f"commit {version} {was} replaced after it was synced: its {differing} differs"


def last_commits(listed: Mapping[int, FileMeta], version: int) -> dict[int, FileMeta]:
    """Return the commits up to `version` that are to be remembered, of those that are listed in order."""
    return dict([each for each in listed.items() if each[0] <= version][-RECENT_COMMITS_MAX:])


def log_gone(location: str) -> LogMissing:
    return LogMissing(
        "the Delta log is gone",
        path=f"{location}/_delta_log",
        hint="Restore the Delta table, and dvsync continues. If no one needs it any more, remove its entry from the "
        "configuration, or exclude it from its pattern, and run `dvsync forget` with its name.",
    )


def _too_large(what: str, version: int, path: str) -> Unsupported:
    hint = (
        "Run `dvsync resync`, which commits the table's newest state. Delta on Spark reads it then, so "
        "`engine` must not be local."
    )
    return Unsupported(what, version=version, path=path, hint=hint)


def _incomplete(what: str, version: int, path: str, offset: int) -> CommitIncomplete:
    hint = "The writer has not finished this commit file. dvsync will read it again."
    return CommitIncomplete(what, version=version, path=path, offset=offset, hint=hint)


def _corrupt(what: str, version: int, path: str) -> CorruptInput:
    return CorruptInput(
        what,
        version=version,
        path=path,
        hint="The commit is invalid, and none of it is shown in Iceberg. Fix the program that wrote it.",
    )
