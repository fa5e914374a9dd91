"""The commit files of `_delta_log`: which exist, and their actions, typed and checked.

Delta PROTOCOL.md, "Delta Log Entries". Only commit files are read here; a table's whole state, checkpoints included,
comes from Delta on Spark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from daemon.clock import Clock
from daemon.delta.actions import AddFile, Commit, Metadata, Protocol, RemoveFile, resolve_path
from daemon.errors import CommitIncomplete, CorruptInput, ObjectMissing, ResyncNeeded
from daemon.storage import Storage

COMMIT_FILE = re.compile(r"(\d{20})\.json")
# PROTOCOL.md, "Checkpoints": classic, multi-part and UUID-named ones.
CHECKPOINT_FILE = re.compile(r"\d{20}\.checkpoint\..*(parquet|json)")
# How long a cut commit file may be a writer's unfinished work before it counts as corrupt.
UNFINISHED_COMMIT_MAX_MS = 60_000


class _Line(msgspec.Struct, frozen=True):
    """One line of a commit file: exactly one action; the kinds that do not change rows or schema are passed over."""

    add: AddFile | None = None
    remove: RemoveFile | None = None
    meta_data: Metadata | None = msgspec.field(name="metaData", default=None)
    protocol: Protocol | None = None
    commit_info: Any = msgspec.field(name="commitInfo", default=None)


_decoder = msgspec.json.Decoder(_Line)


class DeltaLog:
    """The log of the table at `location` (a normalised URI)."""

    def __init__(self, storage: Storage, location: str, clock: Clock) -> None:
        self.location = location
        self._storage = storage
        self._clock = clock

    def commit_path(self, version: int) -> str:
        return f"{self.location}/_delta_log/{version:020d}.json"

    def has_version(self, version: int) -> bool:
        """One request to the store."""
        return self._storage.exists(self.commit_path(version))

    def is_there(self) -> bool:
        """Whether there is a table: its first commit, or a checkpoint that replaced it. One request or two.

        `_last_checkpoint` is a hint only, which may be missing or wrong.
        """
        return self.has_version(0) or any(
            CHECKPOINT_FILE.fullmatch(meta.path.rsplit("/", 1)[1])
            for meta in self._storage.list_from(f"{self.location}/_delta_log", after="")
        )

    def read_commit(self, version: int) -> Commit:
        """The whole commit, validated.

        Raises `ObjectMissing`, `CommitIncomplete` while it is being written, `CorruptInput` naming line or path.
        """
        path = self.commit_path(version)
        data = self._storage.read(path)
        lines = [line for line in data.split(b"\n") if line.strip()]
        modified_ms = self._storage.stat(path).modified_ms
        if not lines:
            raise self._unfinished("the commit file is empty", version, len(data), modified_ms)
        actions: list[_Line] = []
        for number, line in enumerate(lines, start=1):
            try:
                actions.append(_decoder.decode(line))
            except msgspec.ValidationError as error:
                raise _corrupt(f"line {number} is not a Delta action: {error}", version, path) from error
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if number == len(lines):
                    raise self._unfinished(
                        "the commit file ends inside a line", version, len(data), modified_ms
                    ) from error
                raise _corrupt(f"line {number} is not JSON: {error}", version, path) from error
        return self._validated(version, path, actions, modified_ms)

    def _unfinished(self, what: str, version: int, offset: int, modified_ms: int) -> CommitIncomplete | CorruptInput:
        path = self.commit_path(version)
        if self._clock.now_ms() - modified_ms < UNFINISHED_COMMIT_MAX_MS:
            hint = "It is being written; dvsync reads it again."
            return CommitIncomplete(what, version=version, path=path, offset=offset, hint=hint)
        hint = "No writer has touched it for a minute: restore the file, then `dvsync resume` the table."
        return CorruptInput(what, version=version, path=path, offset=offset, hint=hint)

    def _validated(self, version: int, path: str, actions: list[_Line], modified_ms: int) -> Commit:
        adds = tuple(action.add for action in actions if action.add)
        removes = tuple(action.remove for action in actions if action.remove)
        metadata = [action.meta_data for action in actions if action.meta_data]
        protocols = [action.protocol for action in actions if action.protocol]
        infos = [action.commit_info for action in actions if isinstance(action.commit_info, dict)]
        if len(metadata) > 1 or len(protocols) > 1:
            raise _corrupt("more than one metaData or protocol action in one commit", version, path)
        self._check_file_actions(version, path, adds, removes)
        # "Commit Provenance Information": any JSON that a writer likes, but for the in-commit timestamp.
        info = infos[0] if infos else {}
        in_commit_ms, operation = info.get("inCommitTimestamp"), info.get("operation")
        return Commit(
            version=version,
            timestamp_ms=in_commit_ms if isinstance(in_commit_ms, int) else modified_ms,
            adds=adds,
            removes=removes,
            metadata=metadata[0] if metadata else None,
            protocol=protocols[0] if protocols else None,
            operation=operation if isinstance(operation, str) else None,
        )

    def _check_file_actions(
        self, version: int, path: str, adds: tuple[AddFile, ...], removes: tuple[RemoveFile, ...]
    ) -> None:
        """Actions of one commit have no order, so none may contradict another. PROTOCOL.md, "Action Reconciliation"."""
        paths = Counter(resolve_path(self.location, add.path) for add in adds)
        for data_file, count in paths.items():
            if count > 1:
                raise _corrupt(f"{count} adds for the one path {data_file}", version, path)
        added = {(resolve_path(self.location, add.path), add.dv_unique_id) for add in adds}
        for remove in removes:
            data_file = resolve_path(self.location, remove.path)
            if (data_file, remove.dv_unique_id) in added:
                raise _corrupt(f"add and remove of the same logical file {data_file}", version, path)

    def check_continuity(self, after: int) -> None:
        """Raise `ResyncNeeded` when version `after + 1` can no longer follow, `ObjectMissing` when there is no log.

        One listing or two: for starts, and now and then. Commits beyond a missing one mean that log cleanup took it;
        none at or beyond `after` while older ones are there means that the table was made anew at the same place.
        """
        versions = self._list_versions(from_version=after)
        beyond = [version for version in versions if version > after]
        if beyond and beyond[0] != after + 1:
            raise ResyncNeeded(
                f"commit {after + 1} is gone from the log, the oldest one left is {beyond[0]}",
                version=after + 1,
                path=self.commit_path(after + 1),
                hint="Log cleanup was faster than dvsync; the states are compared and the difference is committed.",
            )
        if not versions and not self._list_versions(from_version=0):
            raise log_gone(self.location)
        if not versions:
            raise ResyncNeeded(
                f"the log ends before version {after}, which is already synced",
                version=after,
                path=self.commit_path(after),
                hint="The table was created anew at the same place; it is synchronised whole.",
            )

    def _list_versions(self, from_version: int) -> list[int]:
        names = self._storage.list_from(f"{self.location}/_delta_log", after=f"{from_version:020d}")
        return list(_versions(meta.path.rsplit("/", 1)[1] for meta in names))


def _versions(names: Iterable[str]) -> Iterable[int]:
    for name in names:
        if match := COMMIT_FILE.fullmatch(name):
            yield int(match[1])


def log_gone(location: str) -> ObjectMissing:
    return ObjectMissing(
        "the Delta log is gone",
        path=f"{location}/_delta_log",
        hint="Restore the table, or take it out of the configuration.",
    )


def _corrupt(what: str, version: int, path: str) -> CorruptInput:
    return CorruptInput(
        what, version=version, path=path, hint="Ask the writer of this commit; dvsync commits nothing of it."
    )
