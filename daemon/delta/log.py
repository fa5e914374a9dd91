"""The log of a Delta table: which commits it has, and whether they are still those that were read.

Delta PROTOCOL.md, "Delta Log Entries". `commit_file.py` decodes a commit; `snapshot.py` replays a table's whole state.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from daemon.clock import Clock
from daemon.delta.actions import Commit, Totals
from daemon.delta.commit_file import HEAD_BYTES, CommitReader, KnownCommit, compare_listed, known_commit, too_large
from daemon.errors import (
    CommitIncomplete,
    CorruptInput,
    LogMissing,
    ObjectMissing,
    ResyncNeeded,
    SyncError,
    Unsupported,
)
from daemon.store.locations import FileMeta, Span
from daemon.store.storage import FileIOStorage
from state.records import RECENT_COMMITS_MAX, CommitIdentity

COMMIT_FILE = re.compile(r"([0-9]{20})\.json")
# PROTOCOL.md, "Checkpoints": classic, multi-part and UUID-named ones.
CHECKPOINT_FILE = re.compile(r"([0-9]{20})\.checkpoint\..*(parquet|json)")
# How long a cut commit file may be a writer's unfinished work before it counts as corrupt.
UNFINISHED_COMMIT_MAX_MS = 60_000
# Delta lists up to 50 files and their statistics in a checksum file. If a file is longer, its cut text is ignored.
CHECKSUM_BYTES_MAX = 4 << 20
# A larger commit file is not kept in memory until it is due, and none is used that was read longer ago.
READ_AHEAD_BYTES_MAX = 256 << 10
READ_AHEAD_MAX_S = 60.0
# The shortest file with an action is `{"add":{}}`. A smaller file must be read to learn if it is damaged.
COMMIT_MIN_BYTES = 10
HINT_OTHER_LOG = "The table was recreated, or its log copied, restored or cleaned up."
_decode_totals = msgspec.json.Decoder(Totals).decode


@dataclass(frozen=True)
class _Ahead:
    """A commit file that was read when its existence was checked, at `read_s` of the monotonic clock."""

    version: int
    meta: FileMeta
    data: bytes
    read_s: float


class DeltaLog:
    """The log of the table at `location` (a normalised URI). Remembers the last commit that it read or checked.

    If its storage `is_ratified`, a catalog says what the commits are: none is ever replaced, and all get another time
    when they are published.
    """

    def __init__(self, storage: FileIOStorage, location: str, clock: Clock) -> None:
        self.location = location
        self.folder = f"{location}/_delta_log"
        self.storage = storage
        self._clock = clock
        self._known: KnownCommit | None = None
        self._ahead: _Ahead | None = None

    def commit_path(self, version: int) -> str:
        return f"{self.folder}/{version:020d}.json"

    def compacted_path(self, from_version: int, to_version: int) -> str:
        return f"{self.folder}/{from_version:020d}.{to_version:020d}.compacted.json"

    def has_version(self, version: int) -> bool:
        """Return whether the commit file of `version` exists. One request."""
        return self.storage.exists(self.commit_path(version))

    def has_next(self, version: int) -> bool:
        """Return whether the commit file of `version` exists, which is likely to be read next. One request.

        Where commit files appear whole, the request reads the file, and `read_commit` then needs none. Elsewhere a
        writer may still be adding lines, so the file is read as late as possible.
        """
        self._ahead = None
        if self.storage.is_unratified(version):
            return False
        path = self.commit_path(version)
        if not self.storage.appears_whole(path):
            return self.storage.exists(path)
        try:
            meta, blocks = self.storage.read_blocks(path)
        except LogMissing:
            raise  # A catalog says so.
        except ObjectMissing:
            return False
        if meta.size <= READ_AHEAD_BYTES_MAX:
            self._ahead = _Ahead(version, meta, b"".join(blocks), self._clock.monotonic_s())
        return True

    def is_there(self) -> bool:
        """Return whether the log has any commit or checkpoint. One request or two."""
        return self.has_version(0) or any(self._list(after=""))

    def find_written_ms(self, version: int) -> int | None:
        """Return the modification time of the commit file of `version`; None if the file does not exist."""
        if self._ahead and self._ahead.version == version:
            return self._ahead.meta.modified_ms
        try:
            return self.storage.stat(self.commit_path(version)).modified_ms
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
        ahead, self._ahead = self._ahead, None
        if ahead and ahead.version == version and self._clock.monotonic_s() - ahead.read_s < READ_AHEAD_MAX_S:
            meta, blocks = ahead.meta, iter([ahead.data])
        else:
            meta, blocks = self.storage.read_blocks(path)
        if meta.size > bytes_max:
            what = f"the commit file has {meta.size} bytes, at most {bytes_max} are read (limits.commit_bytes_max)"
            raise too_large(what, version, path)
        file = CommitReader(version, path, blocks, size_max=meta.size)
        actions, fault = file.decode()
        if file.size_bytes != meta.size:
            compared = "more" if file.size_bytes > meta.size else "fewer"
            what = f"the commit file had {meta.size} bytes, and {compared} when it was read"
            raise _incomplete(what, version, path, file.size_bytes)
        if fault is None and actions:
            known = known_commit(version, meta, first_line=file.first, head=file.head)
            commit = file.commit(self.location, actions, known)
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
        path = self.compacted_path(from_version, to_version)
        try:
            meta, blocks = self.storage.read_blocks(path)
            file = CommitReader(to_version, path, blocks, size_max=sys.maxsize)
            actions, fault = file.decode()
            # The time of the file is not the last commit's: `replay` asks for that.
            known = KnownCommit(CommitIdentity(to_version, meta.size, meta.modified_ms), timestamp_ms=0)
            return file.commit(self.location, actions, known) if actions and not fault else None
        except (ObjectMissing, CorruptInput, Unsupported):
            return None

    def read_checksum(self, version: int) -> Totals | None:
        """Read Delta's totals of `version`; None if there is no checksum file (yet), or Delta ignores it."""
        try:
            data = self.storage.read(f"{self.folder}/{version:020d}.crc", Span(0, CHECKSUM_BYTES_MAX))
            return _decode_totals(data)
        except (ObjectMissing, msgspec.DecodeError, RecursionError):
            return None

    def find_first_table_id(self) -> str | None:
        """Return the table id in the first HEAD_BYTES of version 0; None if none is there. One request."""
        path = self.commit_path(0)
        try:
            head = self.storage.read(path, Span(0, HEAD_BYTES))
            actions, _ = CommitReader(0, path, [head], size_max=HEAD_BYTES).decode()
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

        `recent` may have its identity from an earlier process. One request if the file is unchanged. With another time,
        but the same size and head, it is the same commit: stores may report different times for one file. If it is
        gone, log cleanup has removed it, or the log is another one: the totals of the next version show which. Without
        them, `ResyncNeeded` is raised, too, if the next version is there.
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
            raise self._replaced(version, known.what_differs(found) if known else "timestamp")
        raise self._resync_needed(what, version)

    def is_untouched(self, version: int) -> bool:
        """Return whether the commit file is there, as it was when it was last read or checked. One request."""
        try:
            meta = self.storage.stat(self.commit_path(version))
        except ObjectMissing:
            return False
        known = self._known
        return known is not None and known.identity.version == version and known.is_untouched(meta)

    def _probe(self, version: int) -> KnownCommit | None:
        try:
            meta, blocks = self.storage.read_blocks(self.commit_path(version))
        except ObjectMissing:
            return None
        head = b""
        for block in blocks:
            head += block[: HEAD_BYTES - len(head)]
            if len(head) == HEAD_BYTES:
                break
        return known_commit(version, meta, first_line=next(filter(bytes.strip, head.split(b"\n")), b""), head=head)

    def check_continuity(self, after: int, recent: Collection[CommitIdentity] = ()) -> tuple[CommitIdentity, ...]:
        """Raise `ResyncNeeded` if version `after + 1` can never be read or a commit before `after` is not the one in
        `recent`, `CorruptInput` if the log has a gap there, and `ObjectMissing` if there is no log.

        Returns what is new about the last commits up to `after`: those that `recent` lacks, or has with another time.
        Those that log cleanup removed, or from before `recent` begins, are passed over.

        One listing or two, and a read of each commit with another size or time, so it is called at starts and every few
        minutes. With `after` = 5:

        - the log has 8, 9 and a checkpoint of 8: log cleanup removed 6, and the log cannot be followed;
        - the log has 5, 7 and no checkpoint after 5: commit 6 was lost, which is a gap;
        - the log has 0, 1 only: the table was recreated at the same place.

        A commit that a listing omits is asked for: some stores and cached NFS folders list old contents.
        """
        commits, checkpoints = self._list(after=f"{max(after + 1 - RECENT_COMMITS_MAX, 0):020d}")
        beyond = [version for version in commits if version > after]
        if beyond and beyond[0] != after + 1 and not self.has_version(after + 1):
            if all(version <= after for version in checkpoints):
                raise self.gap(after + 1, beyond[0])
            raise self._resync_needed(
                f"commit {after + 1} is gone from the log; the oldest commit after it is {beyond[0]}",
                after + 1,
                "The log was cleaned up before dvsync read it.",
            )
        if max(commits, default=-1) >= after or self.has_version(after):
            # Whether the newest synced commit is the same, is asked at each sync.
            older = {version: meta for version, meta in commits.items() if version < after}
            now, replaced = compare_listed(older, recent, self._probe)
            for version, differing in replaced:
                if not (self.storage.is_ratified and differing == "time"):
                    raise self._replaced(version, differing)
            return tuple(each for each in now if each not in recent)
        if not commits and not any(self._list(after="")):
            raise log_gone(self.location)
        raise self._resync_needed(
            f"the log ends before version {after}, which is already synced",
            after,
            "The table was recreated at the same place.",
        )

    def _resync_needed(self, what: str, version: int, hint: str = HINT_OTHER_LOG) -> ResyncNeeded:
        return ResyncNeeded(what, version=version, path=self.commit_path(version), hint=hint)

    def _replaced(self, version: int, differing: str) -> SyncError:
        if self.storage.is_ratified:
            return CorruptInput(
                f"commit {version} was published or is named with another {differing} than the one that was synced",
                version=version,
                path=self.commit_path(version),
                hint="Restore the commit that the catalog ratified, then `dvsync resume` the table; or `dvsync resync` "
                "it to show the table as it is now.",
            )
        was = "was" if differing == "content" else "may have been"
        return self._resync_needed(
            f"commit {version} {was} replaced after it was synced: its {differing} differs", version
        )

    def gap(self, missing: int, following: int) -> CorruptInput:
        return CorruptInput(
            f"the log has a gap: commit {missing} is missing, {following} is there, and no checkpoint replaces it",
            version=missing,
            path=self.commit_path(missing),
            hint="Restore the missing commits, then `dvsync resume` the table.",
        )

    def check_written(self, commits: Mapping[int, FileMeta]) -> None:
        """Raise what `read_commit` raises for those of these files that are too small to hold an action.

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

        A read of each one whose size or time differs from that in `recent`. One that is another by now is remembered
        as it was listed, and the next listing tells.
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
        for meta in self.storage.list_from(self.folder, after=after):
            if match := COMMIT_FILE.fullmatch(meta.name):
                commits[int(match[1])] = meta
            elif match := CHECKPOINT_FILE.fullmatch(meta.name):
                checkpoints.append(int(match[1]))
        return commits, checkpoints


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


def _incomplete(what: str, version: int, path: str, offset: int) -> CommitIncomplete:
    hint = "The writer has not finished this commit file. dvsync will read it again."
    return CommitIncomplete(what, version=version, path=path, offset=offset, hint=hint)
