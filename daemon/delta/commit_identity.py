"""What tells a commit file from another one that was put in its place, also for a later process."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from daemon.store.files import FileMeta
from state.records import CommitIdentity, Long

# How much of a commit file is hashed.
HEAD_BYTES = 1 << 20


class _CommitInfo(msgspec.Struct, frozen=True, rename="camel"):
    in_commit_timestamp: Long | None = None


class _FirstLine(msgspec.Struct, frozen=True, rename="camel"):
    commit_info: _CommitInfo | None = None


@dataclass(frozen=True)
class KnownCommit:
    """A commit file that was read. `timestamp_ms` is the commit's time then; later the store may report another one."""

    identity: CommitIdentity
    timestamp_ms: int

    def is_untouched(self, meta: FileMeta) -> bool:
        return _is_untouched(self.identity, meta)

    def is_same_commit(self, other: KnownCommit) -> bool:
        if self.identity.head is not None:
            return _is_same_content(self.identity, other.identity)
        return (self.identity.size_bytes, self.timestamp_ms) == (other.identity.size_bytes, other.timestamp_ms)


def identify(version: int, meta: FileMeta, *, first_line: bytes, head: bytes) -> KnownCommit:
    """Identify a commit file by its first HEAD_BYTES. An in-commit timestamp is in the commitInfo of its first line.

    PROTOCOL.md, "In-Commit Timestamps".
    """
    try:
        info = msgspec.json.decode(first_line, type=_FirstLine).commit_info
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        info = None
    in_commit_ms = info.in_commit_timestamp if info else None
    identity = CommitIdentity(version, meta.size, meta.modified_ms, zlib.crc32(head))
    return KnownCommit(identity, meta.modified_ms if in_commit_ms is None else in_commit_ms)


def compare_listed(
    listed: Mapping[int, FileMeta], recent: Iterable[CommitIdentity], probe: Callable[[int], KnownCommit | None]
) -> tuple[list[CommitIdentity], list[tuple[int, str]]]:
    """Return the `listed` commits as they are now, and those that are not the `recent` ones any more: what differs.

    A file of another size or time is read by `probe`. If its content is the same, so is the commit: a store may report
    other times, and a listing may be old. Without a hash of the former content, another time is another commit.
    """
    known, now, replaced = {each.version: each for each in recent}, list[CommitIdentity](), list[tuple[int, str]]()
    for version, meta in listed.items():
        before = known.get(version)
        if before is None or _is_untouched(before, meta):
            now.append(before or CommitIdentity(version, meta.size, meta.modified_ms))
        elif found := probe(version):
            now.append(found.identity)
            if not _is_same_content(before, found.identity):
                replaced.append((version, what_differs(before, found.identity)))
    return now, replaced


def what_differs(before: CommitIdentity, now: CommitIdentity) -> str:
    """Return what tells two files apart: only the time, if nobody knows the former content."""
    return "time" if before.head is None and before.size_bytes == now.size_bytes else "content"


def _is_untouched(identity: CommitIdentity, meta: FileMeta) -> bool:
    """Return whether size and time are the same. MinIO lists milliseconds, and sends whole seconds with a file."""
    times_ms = (identity.modified_ms, meta.modified_ms)
    step_ms = 1 if all(time_ms % 1000 for time_ms in times_ms) else 1000
    return identity.size_bytes == meta.size and times_ms[0] // step_ms == times_ms[1] // step_ms


def _is_same_content(one: CommitIdentity, other: CommitIdentity) -> bool:
    return (one.size_bytes, one.head) == (other.size_bytes, other.head)
