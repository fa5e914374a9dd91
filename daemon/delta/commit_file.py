"""One commit file: its lines, typed and checked, and what tells it from another one in its place.

Delta PROTOCOL.md, "Delta Log Entries" and "Actions". `log.py` reads its bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace as with_fields

from daemon.delta.actions import AddFile, Commit, Metadata, Protocol, RemoveFile, find_doubled
from daemon.delta.uri import name_file
from daemon.errors import CorruptInput, Unsupported
from daemon.store.locations import FileMeta
from daemon.texts import excerpt
from state.records import CommitIdentity, Long

Action = TypeVar("Action", AddFile, RemoveFile)

# A whole line is decoded in memory, and JSON inside its texts again; the values need many times its size.
LINE_BYTES_MAX = 16 << 20
# Delta's own names of operations are shorter than 50.
OPERATION_CHARACTERS_MAX = 100
# How much of a commit file is hashed.
HEAD_BYTES = 1 << 20


class Line(msgspec.Struct, frozen=True):
    """One line of a commit file: exactly one action. Kinds that change neither rows nor schema are ignored."""

    add: AddFile | None = None
    remove: RemoveFile | None = None
    meta_data: Metadata | None = msgspec.field(name="metaData", default=None)
    protocol: Protocol | None = None
    # "Commit Provenance Information" may be any JSON, also numbers too large to decode. So it is decoded separately.
    commit_info: msgspec.Raw = msgspec.field(name="commitInfo", default=msgspec.Raw())


class _Provenance(msgspec.Struct, frozen=True):
    operation: Any = None


# Decoders are made when a module is imported: msgspec crashes if two threads decode a type for the first time.
_decoder = msgspec.json.Decoder(Line)
_decode_provenance = msgspec.json.Decoder(_Provenance).decode


class CommitReader:
    """Decodes a file at `path` from its blocks. Reading stops when the file turns out to be larger than `size_max`.

    Afterwards, `size_bytes` were read, `first` is the first line and `head` the beginning of the file, each at most
    HEAD_BYTES long.
    """

    def __init__(self, version: int, path: str, blocks: Iterable[bytes], *, size_max: int) -> None:
        self.size_bytes = 0
        self.first = self.head = b""
        self._version = version
        self._path = path
        self._blocks = blocks
        self._size_max = size_max
        self._lines = 0

    def decode(self) -> tuple[list[Line], Exception | None]:
        """Return actions, and an unfinished last line's error. Raises `CorruptInput`; `Unsupported` for a long line."""
        actions: list[Line] = []
        lines = self._split()
        for number, line in enumerate(lines, 1):
            self.first = self.first or line[:HEAD_BYTES]
            try:
                if not line.isascii():
                    line.decode()  # The decoder does not check the UTF-8 of fields that it skips.
                actions.append(_decoder.decode(line))
            except msgspec.ValidationError as error:
                raise self._corrupt(f"line {number} is not a Delta action: {error}") from error
            except RecursionError as error:
                raise self._corrupt(f"line {number} is nested too deeply") from error
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if next(lines, None) is None:
                    return actions, error
                raise self._corrupt(f"line {number} is not JSON: {error}") from error
        return actions, None

    def _split(self) -> Iterator[bytes]:
        begun: list[bytes] = []
        for block in self._blocks:
            self.size_bytes += len(block)
            if self.size_bytes > self._size_max:
                return
            self.head += block[: HEAD_BYTES - len(self.head)]
            *ended, rest = block.split(b"\n")
            for line in ended:
                yield from self._joined([*begun, line])
                begun = []
            begun.append(rest)
        yield from self._joined(begun)

    def _joined(self, parts: list[bytes]) -> Iterator[bytes]:
        """Yield a line, unless it is blank."""
        if sum(map(len, parts)) > LINE_BYTES_MAX:
            what = f"line {self._lines + 1} of the commit file has more than {LINE_BYTES_MAX} bytes"
            raise too_large(what, self._version, self._path)
        line = b"".join(parts)
        if line.strip():
            self._lines += 1
            yield line

    def commit(self, location: str, actions: list[Line], known: KnownCommit) -> Commit:
        """Make the commit of the table at `location` from all actions. Raises `CorruptInput`."""
        adds = tuple(self._resolved(location, action.add) for action in actions if action.add)
        removes = tuple(self._resolved(location, action.remove) for action in actions if action.remove)
        metadata = [action.meta_data for action in actions if action.meta_data]
        protocols = [action.protocol for action in actions if action.protocol]
        if len(metadata) > 1 or len(protocols) > 1:
            raise self._corrupt("more than one metaData or protocol action in one commit")
        self._check_file_actions(adds, removes)
        return Commit(
            version=self._version,
            timestamp_ms=known.timestamp_ms,
            adds=adds,
            removes=removes,
            metadata=metadata[0] if metadata else None,
            protocol=protocols[0] if protocols else None,
            operation=next((_operation_of(action.commit_info) for action in actions if action.commit_info), None),
            size_bytes=known.identity.size_bytes,
            recent_commits=(known.identity,),
        )

    def _resolved(self, location: str, action: Action) -> Action:
        try:
            place, uri = name_file(location, action.path)
        except CorruptInput as error:
            raise self._corrupt(error.message) from error
        return with_fields(action, path=place, uri=uri)

    def _check_file_actions(self, adds: tuple[AddFile, ...], removes: tuple[RemoveFile, ...]) -> None:
        """Raise `CorruptInput` if two actions contradict each other: the actions of a commit have no order."""
        # Only such adds can be of one logical file.
        if find_doubled(add.path for add in adds) and (doubled := find_doubled(add.logical_file for add in adds)):
            (data_file, _), count = doubled
            raise self._corrupt(f"{count} adds for the one path {data_file}")
        added = {add.logical_file for add in adds} if removes else ()
        for remove in removes:
            if remove.logical_file in added:
                raise self._corrupt(f"add and remove of the same logical file {remove.path}")

    def _corrupt(self, what: str) -> CorruptInput:
        hint = "The commit is invalid, and none of it is shown in Iceberg. Fix the program that wrote it."
        return CorruptInput(what, version=self._version, path=self._path, hint=hint)


def _operation_of(commit_info: msgspec.Raw) -> str | None:
    try:
        operation = _decode_provenance(commit_info).operation
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return excerpt(operation, OPERATION_CHARACTERS_MAX) if isinstance(operation, str) else None


def too_large(what: str, version: int, path: str) -> Unsupported:
    hint = (
        "Run `dvsync resync`, which commits the table's newest state. Delta on Spark reads it then, so "
        "`engine` must not be local."
    )
    return Unsupported(what, version=version, path=path, hint=hint)


class _CommitInfo(msgspec.Struct, frozen=True, rename="camel"):
    in_commit_timestamp: Long | None = None


class _FirstLine(msgspec.Struct, frozen=True, rename="camel"):
    commit_info: _CommitInfo | None = None


_decode_first_line = msgspec.json.Decoder(_FirstLine).decode


@dataclass(frozen=True)
class KnownCommit:
    """A commit file that was read. `timestamp_ms` is the commit's time then; later the store may report another one."""

    identity: CommitIdentity
    timestamp_ms: int

    def is_untouched(self, meta: FileMeta) -> bool:
        """Return whether size and time are the same. MinIO lists milliseconds, and sends whole seconds with a file."""
        times_ms = (self.identity.modified_ms, meta.modified_ms)
        step_ms = 1 if all(time_ms % 1000 for time_ms in times_ms) else 1000
        return self.identity.size_bytes == meta.size and times_ms[0] // step_ms == times_ms[1] // step_ms

    def has_content_of(self, other: KnownCommit) -> bool:
        return (self.identity.size_bytes, self.identity.head) == (other.identity.size_bytes, other.identity.head)

    def what_differs(self, now: KnownCommit) -> str:
        """Return what tells two files apart: only the time, if nobody knows the former content."""
        is_time = self.identity.head is None and self.identity.size_bytes == now.identity.size_bytes
        return "time" if is_time else "content"

    def is_same_commit(self, other: KnownCommit) -> bool:
        if self.identity.head is not None:
            return self.has_content_of(other)
        return (self.identity.size_bytes, self.timestamp_ms) == (other.identity.size_bytes, other.timestamp_ms)


def known_commit(version: int, meta: FileMeta, *, first_line: bytes, head: bytes) -> KnownCommit:
    """Identify a commit file by its first HEAD_BYTES. Its first line has the in-commit timestamp of PROTOCOL.md."""
    try:
        info = _decode_first_line(first_line).commit_info
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
    known = {each.version: KnownCommit(each, each.modified_ms) for each in recent}
    now, replaced = list[CommitIdentity](), list[tuple[int, str]]()
    for version, meta in listed.items():
        before = known.get(version)
        if before is None or before.is_untouched(meta):
            now.append(before.identity if before else CommitIdentity(version, meta.size, meta.modified_ms))
        elif found := probe(version):
            now.append(found.identity)
            if not before.has_content_of(found):
                replaced.append((version, before.what_differs(found)))
    return now, replaced
