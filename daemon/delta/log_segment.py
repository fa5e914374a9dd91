"""The log files that make up a version's state: the newest complete checkpoint up to it, and the later commits.

Delta PROTOCOL.md, "Checkpoints", "Checkpoint Naming Scheme", "Log Compaction Files", "Last Checkpoint File". The files'
contents are read by `snapshot.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from daemon.delta.checkpoint import Checkpoint, read_sidecars
from daemon.delta.log import COMMIT_FILE, DeltaLog, last_commits, log_gone
from daemon.errors import CorruptInput, ObjectMissing
from daemon.store.locations import FileMeta, Span
from daemon.store.storage import FileIOStorage
from state.records import RECENT_COMMITS_MAX, Int, Long

COMPACTED_FILE = re.compile(r"([0-9]{20})\.([0-9]{20})\.compacted\.json")
CLASSIC_FILE = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
PART_FILE = re.compile(r"([0-9]{20})\.checkpoint\.([0-9]{10})\.([0-9]{10})\.parquet")
CHECKPOINT_FILES = CLASSIC_FILE, PART_FILE, re.compile(r"([0-9]{20})\.checkpoint\.[^.]+\.(?:parquet|json)")
# Delta may copy the actions of a V2 checkpoint into the hint. A longer hint costs more than it saves.
HINT_BYTES_MAX = 1 << 20


class _Hint(msgspec.Struct, frozen=True, rename="camel"):
    """PROTOCOL.md, "Last Checkpoint File Schema". `size_in_bytes` counts sidecars too."""

    version: Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
    size_in_bytes: Long | None = None
    parts: Int | None = None


_decode_hint = msgspec.json.Decoder(_Hint).decode


@dataclass(frozen=True)
class CommitFile:
    """A commit file, or a compacted file that replaces the commits `from_version` to `to_version`, both inclusive."""

    from_version: int
    to_version: int
    size_bytes: int

    @property
    def is_compacted(self) -> bool:
        return self.from_version != self.to_version


@dataclass(frozen=True)
class LogSegment:
    """The files that make the state at `version`. `commits` follow the checkpoint without a gap, oldest first."""

    version: int
    checkpoint: Checkpoint | None
    commits: tuple[CommitFile, ...]
    recent_commits: Mapping[int, FileMeta]  # the last that were listed up to `version`, also before the checkpoint

    @property
    def size_bytes(self) -> int:
        """The number of bytes to read from the store, sidecars included."""
        return sum(file.size_bytes for file in self.commits) + (self.checkpoint.size_bytes if self.checkpoint else 0)


class _Listing:
    """The files of the log from version `start` on, by version. Compacted files are listed under their first one."""

    def __init__(self, log: DeltaLog, start: int) -> None:
        self.commits: dict[int, FileMeta] = {}
        self.compacted: dict[int, list[CommitFile]] = defaultdict(list)
        self.checkpoints: dict[int, list[FileMeta]] = defaultdict(list)
        for file in log.storage.list_from(log.folder, after=f"{start:020d}"):
            if match := COMMIT_FILE.fullmatch(file.name):
                self.commits[int(match[1])] = file
            elif match := COMPACTED_FILE.fullmatch(file.name):
                self.compacted[int(match[1])].append(CommitFile(int(match[1]), int(match[2]), file.size))
            elif match := next(filter(None, (kind.fullmatch(file.name) for kind in CHECKPOINT_FILES)), None):
                self.checkpoints[int(match[1])].append(file)

    def find_checkpoint(self, version: int | None) -> Checkpoint | None:
        """Find the newest complete checkpoint that is not newer than `version`."""
        for found in sorted(self.checkpoints, reverse=True):
            if (version is None or found <= version) and (files := _complete(self.checkpoints[found])):
                return Checkpoint(found, files)
        return None


def load_log_segment(log: DeltaLog, version: int | None = None) -> LogSegment:
    """Find the files that make the state at `version`, or at the newest version.

    Example: of a checkpoint of 10, the commits 9 to 14, and a compacted file of 11 to 13, the state at 14 is made of
    the checkpoint, the compacted file and commit 14.

    Requests: a read of `_last_checkpoint`, and one listing that begins RECENT_COMMITS_MAX before the checkpoint that it
    names, or at the start of the log if it is missing or too new. One more listing if no complete checkpoint was found;
    one existence check for each commit that the listing omits; and those of `read_sidecars` if the hint lacks the
    sidecars' size. All of this once more if a listing has a gap.

    Raises `ObjectMissing` if the log or the version does not exist, `CorruptInput` for a gap, and as `read_sidecars`.
    """
    hint: _Hint | None = None
    with suppress(ObjectMissing, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = log.storage.read(f"{log.folder}/_last_checkpoint", Span(0, HINT_BYTES_MAX))
        hint = _decode_hint(data)
    try:
        return _load(log, version, hint)
    except CorruptInput:
        # Log cleanup during the listing looks like a gap: a second listing, of the whole log, decides.
        return _load(log, version, None)


def _load(log: DeltaLog, version: int | None, hint: _Hint | None) -> LogSegment:
    start = max(hint.version - RECENT_COMMITS_MAX, 0) if hint and (version is None or hint.version <= version) else 0
    listing = _Listing(log, start)
    checkpoint = listing.find_checkpoint(version)
    if checkpoint is None and start:
        listing = _Listing(log, 0)
        checkpoint = listing.find_checkpoint(version)
    commits = _commits_after(log, listing, checkpoint.version if checkpoint else -1, version)
    if checkpoint:
        checkpoint = replace(checkpoint, sidecars_size_bytes=_size_of_sidecars(log.storage, checkpoint, hint))
    newest = commits[-1].to_version if commits else checkpoint.version if checkpoint else -1
    return LogSegment(newest, checkpoint, commits, last_commits(listing.commits, newest))


def _complete(files: list[FileMeta]) -> tuple[FileMeta, ...]:
    """Choose the files of one complete checkpoint among these files of one version; none if parts are missing.

    All checkpoints of a version have the same content. Delta prefers a UUID-named checkpoint, then one of many parts,
    then a classic one, and ignores empty files; we do the same.
    """
    by_name = {file.name: file for file in files if file.size}
    parts = {name: match for name in by_name if (match := PART_FILE.fullmatch(name))}
    rest = [name for name in by_name if name not in parts]
    if uuid_named := sorted(name for name in rest if not CLASSIC_FILE.fullmatch(name)):
        return (by_name[uuid_named[-1]],)
    for total in sorted({int(match[3]) for match in parts.values()}, reverse=True):
        of_total = {int(match[2]): by_name[name] for name, match in parts.items() if int(match[3]) == total}
        if len(of_total) == total and min(of_total) == 1 and max(of_total) == total:
            return tuple(file for _, file in sorted(of_total.items()))
    return tuple(by_name[name] for name in rest)


def _commits_after(log: DeltaLog, listing: _Listing, after: int, version: int | None) -> tuple[CommitFile, ...]:
    """Find the files of the commits after `after` up to `version`, preferring compacted files."""
    listed = [commit for commit in listing.commits if commit > after and (version is None or commit <= version)]
    newest = max(listed, default=after) if version is None else version
    if newest < 0 or not (listing.commits or listing.checkpoints):
        if not listing.checkpoints:
            raise log_gone(log.location)
        newest = max(listing.checkpoints)
        raise CorruptInput(
            f"the checkpoint of version {newest} lacks parts, and the log has no commits",
            version=newest,
            path=listing.checkpoints[newest][0].path,
            hint="Restore the log, then `dvsync resume` the table.",
        )
    files = {commit: CommitFile(commit, commit, listing.commits[commit].size) for commit in listed}
    for commit in range(after + 1, newest + 1):
        if commit not in files:
            following = min((other for other in listed if other > commit), default=None)
            files[commit] = _ask_for(log, commit, following, version, is_first=commit == 0)
    return tuple(_shortened(files, listing.compacted, after + 1, newest))


def _ask_for(log: DeltaLog, missing: int, following: int | None, version: int | None, *, is_first: bool) -> CommitFile:
    """Ask for a commit file that the listing omits: some stores and cached NFS folders list old contents."""
    try:
        return CommitFile(missing, missing, log.storage.stat(log.commit_path(missing)).size)
    except ObjectMissing as error:
        if version is not None and (following is None or is_first):
            what = f"the log has no version {version}" + (", or its first commits are gone" if is_first else "")
            hint = "Log cleanup removes old versions: choose one that the log still has. If the Delta table was made "
            hint += "anew, wait until dvsync has followed it."
            raise ObjectMissing(what, version=version, path=log.commit_path(missing), hint=hint) from error
        assert following is not None, "the newest commit is listed"
        raise log.gap(missing, following) from error


def _shortened(
    files: Mapping[int, CommitFile], compacted: Mapping[int, list[CommitFile]], place: int, newest: int
) -> Iterator[CommitFile]:
    """Replace commits from `place` on by compacted files: each time the longest one that ends at `newest` or before."""
    while place <= newest:
        longer = [file for file in compacted.get(place, ()) if place < file.to_version <= newest]
        file = max(longer, key=lambda file: file.to_version, default=files[place])
        yield file
        place = file.to_version + 1


def _size_of_sidecars(storage: FileIOStorage, checkpoint: Checkpoint, hint: _Hint | None) -> int:
    """Return the sidecars' size in bytes: from the hint if it is about this checkpoint, else from the checkpoint."""
    if PART_FILE.fullmatch(checkpoint.files[0].name):
        return 0  # A checkpoint of many parts never has sidecars.
    if hint and hint.version == checkpoint.version and hint.size_in_bytes is not None and not hint.parts:
        return max(hint.size_in_bytes - checkpoint.size_bytes, 0)
    return sum(sidecar.size_in_bytes for sidecar in read_sidecars(storage, checkpoint))
