"""Which files of a log make a version's state: the newest complete checkpoint below it, and what was committed since.

Delta PROTOCOL.md, "Checkpoints", "Checkpoint Naming Scheme", "Log Compaction Files", "Last Checkpoint File". What the
files say is read by `snapshot.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec

from daemon.delta.checkpoint import Checkpoint, read_sidecars
from daemon.delta.log import COMMIT_FILE, DeltaLog, log_gone
from daemon.errors import CorruptInput, ObjectMissing
from daemon.storage import FileIOStorage, FileMeta, Span
from state.records import Int, Long

COMPACTED_FILE = re.compile(r"([0-9]{20})\.([0-9]{20})\.compacted\.json")
CLASSIC_FILE = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
PART_FILE = re.compile(r"([0-9]{20})\.checkpoint\.([0-9]{10})\.([0-9]{10})\.parquet")
UUID_NAMED_FILE = re.compile(r"([0-9]{20})\.checkpoint\.[^.]+\.(?:parquet|json)")
# Delta may put the actions of a V2 checkpoint into the hint; what is longer is not worth a read.
HINT_BYTES_MAX = 1 << 20


class _Hint(msgspec.Struct, frozen=True, rename="camel"):
    """PROTOCOL.md, "Last Checkpoint File Schema". `size_in_bytes` counts sidecars too."""

    version: Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
    size_in_bytes: Long | None = None
    parts: Int | None = None


_hint_decoder = msgspec.json.Decoder(_Hint)


@dataclass(frozen=True)
class CommitFile:
    """The file of one commit, or one that stands for those `from_version` to `to_version`, both inclusive."""

    from_version: int
    to_version: int
    size_bytes: int

    @property
    def is_compacted(self) -> bool:
        return self.from_version != self.to_version


@dataclass(frozen=True)
class LogSegment:
    """The files that make the state at `version`. `commits` follow the checkpoint without a gap, the oldest first."""

    version: int
    checkpoint: Checkpoint | None
    commits: tuple[CommitFile, ...]

    @property
    def size_bytes(self) -> int:
        """All that must be read of the store, sidecars included."""
        return sum(file.size_bytes for file in self.commits) + (self.checkpoint.size_bytes if self.checkpoint else 0)


@dataclass
class _Listing:
    """The files of the log by version; those that log compaction files end at, by the version they begin with."""

    commits: dict[int, FileMeta] = field(default_factory=dict)
    compacted: dict[int, list[CommitFile]] = field(default_factory=dict)
    checkpoints: dict[int, list[FileMeta]] = field(default_factory=dict)

    def take(self, file: FileMeta) -> None:
        name = _name(file)
        if match := COMMIT_FILE.fullmatch(name):
            self.commits[int(match[1])] = file
        elif match := COMPACTED_FILE.fullmatch(name):
            compacted = CommitFile(int(match[1]), int(match[2]), file.size)
            self.compacted.setdefault(compacted.from_version, []).append(compacted)
        elif match := CLASSIC_FILE.fullmatch(name) or PART_FILE.fullmatch(name) or UUID_NAMED_FILE.fullmatch(name):
            self.checkpoints.setdefault(int(match[1]), []).append(file)

    def find_checkpoint(self, version: int | None) -> Checkpoint | None:
        """The newest complete one, not newer than `version`."""
        for found in sorted(self.checkpoints, reverse=True):
            if version is None or found <= version:
                files = _complete(self.checkpoints[found])
                if files:
                    return Checkpoint(found, files)
        return None


def load_log_segment(storage: FileIOStorage, log: DeltaLog, version: int | None = None) -> LogSegment:
    """The files for `version`, or for the newest.

    Requests: a read of `_last_checkpoint`, and one listing from the checkpoint on that it names, or of the whole log
    where it is of no use. One listing more where no complete checkpoint is there; one existence check for each commit
    that the listing leaves out; and, where the hint does not tell the size of sidecars, those of `read_sidecars`.

    Raises `ObjectMissing` when there is no log or not that version of it, `CorruptInput` for a gap, and what
    `read_sidecars` raises.
    """
    hint = _read_hint(storage, log)
    start = hint.version if hint and (version is None or hint.version <= version) else 0
    listing = _list(storage, log, start)
    checkpoint = listing.find_checkpoint(version)
    if checkpoint is None and start:
        listing = _list(storage, log, 0)
        checkpoint = listing.find_checkpoint(version)
    commits = _commits_after(storage, log, listing, checkpoint.version if checkpoint else -1, version)
    if checkpoint:
        checkpoint = replace(checkpoint, sidecars_size_bytes=_size_of_sidecars(storage, checkpoint, hint))
    newest = commits[-1].to_version if commits else checkpoint.version if checkpoint else -1
    return LogSegment(newest, checkpoint, commits)


def _read_hint(storage: FileIOStorage, log: DeltaLog) -> _Hint | None:
    """`_last_checkpoint`; None where it is missing or broken: it is a hint only."""
    try:
        return _hint_decoder.decode(storage.read(f"{log.folder}/_last_checkpoint", Span(0, HINT_BYTES_MAX)))
    except (ObjectMissing, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _list(storage: FileIOStorage, log: DeltaLog, start: int) -> _Listing:
    listing = _Listing()
    for file in storage.list_from(log.folder, after=f"{start:020d}"):
        listing.take(file)
    return listing


def _name(file: FileMeta) -> str:
    return file.path.rsplit("/", 1)[1]


def _complete(files: list[FileMeta]) -> tuple[FileMeta, ...]:
    """One whole checkpoint of these files of one version; none where parts are missing.

    Where there are several they say the same. As Delta does: UUID-named ones before many parts, before a classic one;
    and an empty file is none.
    """
    by_name = {_name(file): file for file in files if file.size}
    parts = {name: match for name in by_name if (match := PART_FILE.fullmatch(name))}
    rest = [name for name in by_name if name not in parts]
    if uuid_named := sorted(name for name in rest if not CLASSIC_FILE.fullmatch(name)):
        return (by_name[uuid_named[-1]],)
    for total in sorted({int(match[3]) for match in parts.values()}, reverse=True):
        of_total = {int(match[2]): by_name[name] for name, match in parts.items() if int(match[3]) == total}
        if len(of_total) == total and min(of_total) == 1 and max(of_total) == total:
            return tuple(file for _, file in sorted(of_total.items()))
    return tuple(by_name[name] for name in rest)


def _commits_after(
    storage: FileIOStorage, log: DeltaLog, listing: _Listing, after: int, version: int | None
) -> tuple[CommitFile, ...]:
    """The files of the commits `after` up to `version`, compacted ones where there are such."""
    listed = [commit for commit in listing.commits if commit > after and (version is None or commit <= version)]
    newest = max(listed, default=after) if version is None else version
    if newest < 0:
        raise _nothing_left(log, listing)
    files = {commit: CommitFile(commit, commit, listing.commits[commit].size) for commit in listed}
    for commit in range(after + 1, newest + 1):
        if commit not in files:
            following = min((other for other in listed if other > commit), default=None)
            files[commit] = _ask_for(storage, log, commit, following, version, is_first=commit == 0)
    return tuple(_shortened(files, listing, after, newest))


def _ask_for(
    storage: FileIOStorage, log: DeltaLog, missing: int, following: int | None, version: int | None, *, is_first: bool
) -> CommitFile:
    """The commit file that the listing left out: some stores, and folders that NFS caches, list a minute ago."""
    try:
        return CommitFile(missing, missing, storage.stat(log.commit_path(missing)).size)
    except ObjectMissing as error:
        if version is not None and (following is None or is_first):
            what = f"the log has no version {version}" + (", or no longer what it is made of" if is_first else "")
            hint = "Ask for a version that the log still has; log cleanup removes old ones."
            raise ObjectMissing(what, version=version, path=log.commit_path(missing), hint=hint) from error
        assert following is not None, "the newest one is listed"
        raise log.gap(missing, following) from error


def _nothing_left(log: DeltaLog, listing: _Listing) -> ObjectMissing | CorruptInput:
    if not listing.checkpoints:
        return log_gone(log.location)
    newest = max(listing.checkpoints)
    return CorruptInput(
        f"the checkpoint of version {newest} lacks parts, and the log has no commits",
        version=newest,
        path=listing.checkpoints[newest][0].path,
        hint="Restore the log, then `dvsync resume` the table.",
    )


def _shortened(files: dict[int, CommitFile], listing: _Listing, after: int, newest: int) -> Iterator[CommitFile]:
    """PROTOCOL.md, "Log Compaction Files": the longest at each place, of those that end in time."""
    place = after + 1
    while place <= newest:
        compacted = [file for file in listing.compacted.get(place, ()) if place < file.to_version <= newest]
        file = max(compacted, key=lambda file: file.to_version, default=files[place])
        yield file
        place = file.to_version + 1


def _size_of_sidecars(storage: FileIOStorage, checkpoint: Checkpoint, hint: _Hint | None) -> int:
    """In bytes. By the hint if it means this checkpoint; else by the checkpoint itself, unless no such has sidecars."""
    if PART_FILE.fullmatch(_name(checkpoint.files[0])):
        return 0
    if hint and hint.version == checkpoint.version and hint.size_in_bytes is not None and not hint.parts:
        return max(hint.size_in_bytes - checkpoint.size_bytes, 0)
    return sum(sidecar.size_in_bytes for sidecar in read_sidecars(storage, checkpoint))
