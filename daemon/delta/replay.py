"""Folding commits into one change, purely: no I/O, no clock, no log. Delta PROTOCOL.md, "Action Reconciliation".

A logical file is (path, deletion vector's unique id). Delta replaces a deletion vector by a remove and an add of the
same path. The data file itself does not change, so such a pair is folded into one change of the vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from daemon.delta.actions import AddFile, Commit, Metadata, Protocol
from daemon.errors import StateMismatch
from daemon.texts import excerpt

# Limits the text of all operations: every metadata file repeats it for each snapshot.
OPERATIONS_CHARACTERS_MAX = 1_000


@dataclass(frozen=True)
class TableChange:
    """The changes that versions `from_version`..`to_version` (inclusive) make to the live files.

    Keys are plain absolute paths. `added` were not live before, `removed` are not live afterwards, `dv_changed` are
    live before and afterwards, with different deletion vectors (or only once with a vector). If one commit removes a
    path and a later one adds it, it is in `removed` and `added`: the new file may be different.
    """

    from_version: int
    to_version: int
    timestamp_ms: int
    added: Mapping[str, AddFile]
    removed: frozenset[str]
    dv_changed: Mapping[str, AddFile]
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    operation: str | None = None
    data_change: bool = True


def join_operations(names: Iterable[str | None]) -> str | None:
    """Join the names of several versions' operations, each name once."""
    return excerpt(", ".join(dict.fromkeys(name for name in names if name)), OPERATIONS_CHARACTERS_MAX) or None


def touched_paths(commits: Iterable[Commit]) -> set[str]:
    """Return every path that these commits name. `fold_commits` must know which of these are live."""
    return {action.path for commit in commits for action in commit.file_actions}


def fold_commits(commits: Sequence[Commit], live: Mapping[str, str | None]) -> TableChange:
    """Fold consecutive, validated commits over `live` (path -> deletion vector's unique id) for the touched paths.

    The newest add of a path wins, with or without a remove of the older one. An add of a logical file that is already
    live (new statistics, tags) changes nothing.

    Example: `a`, `b` and `c` are live, without deletion vectors. Version 6 removes `a` and adds it with the vector `v`.
    Version 7 removes `b` and adds `d`. The change is: `a` in `dv_changed`, `b` in `removed`, `d` in `added`; `c` stays.

    Raises `StateMismatch` if a remove names a logical file that is not live. Either the remove is only a tombstone,
    which Delta writes when it drops a feature, or `live` differs from Delta's state.
    """
    after: dict[str, AddFile | None] = {}
    gone: set[str] = set()

    def is_live(path: str, dv_unique_id: str | None) -> bool:
        if path in after:
            add = after[path]
            return add is not None and add.dv_unique_id == dv_unique_id
        return path in live and live[path] == dv_unique_id

    for commit in commits:
        adds = {add.path: add for add in commit.adds}
        for remove in dict.fromkeys(commit.removes):
            if not is_live(remove.path, remove.dv_unique_id):
                raise StateMismatch(
                    f"version {commit.version} removes {remove.path} with the deletion vector {remove.dv_unique_id}, "
                    "but the state store does not have it as live",
                    version=commit.version,
                    path=remove.path,
                    hint="dvsync rebuilds its state from the Iceberg table and compares it with Delta's newest state.",
                )
            after[remove.path] = None
            if remove.path not in adds:
                gone.add(remove.path)
        after |= adds

    stayed = live.keys() - gone
    return TableChange(
        from_version=commits[0].version,
        to_version=commits[-1].version,
        timestamp_ms=commits[-1].timestamp_ms,
        added={path: add for path, add in after.items() if add and path not in stayed},
        removed=frozenset(path for path, add in after.items() if path in live and not (add and path in stayed)),
        dv_changed={
            path: add for path, add in after.items() if add and path in stayed and live[path] != add.dv_unique_id
        },
        metadata=next((commit.metadata for commit in reversed(commits) if commit.metadata), None),
        protocol=next((commit.protocol for commit in reversed(commits) if commit.protocol), None),
        operation=join_operations(commit.operation for commit in commits),
        data_change=any(action.data_change for commit in commits for action in commit.file_actions),
    )
