"""Folding commits into one change, purely: no I/O, no clock, no log. Delta PROTOCOL.md, "Action Reconciliation".

A logical file is (path, deletion vector's unique id). Delta swaps a deletion vector with a remove and an add of one
path: churn, which says nothing about the data file itself and is dissolved here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from daemon.delta.actions import AddFile, Commit, Metadata, Protocol
from daemon.errors import StateMismatch
from daemon.texts import excerpt

# Of all operations together: each kept snapshot has them in every metadata file.
OPERATIONS_CHARACTERS_MAX = 1_000


@dataclass(frozen=True)
class TableChange:
    """What versions `from_version`..`to_version` (inclusive) change against what was live before them.

    Keys are plain absolute paths. `added` were not live before, `removed` are not live afterwards, `dv_changed` are
    live on both sides with another deletion vector (or with one on one side only). A path that was gone in between is
    `removed` and `added`: nobody says that it is the same file.
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
    """The names of several versions' operations, each told once."""
    return excerpt(", ".join(dict.fromkeys(name for name in names if name)), OPERATIONS_CHARACTERS_MAX) or None


def touched_paths(commits: Iterable[Commit]) -> set[str]:
    """Every path that these commits name: `fold_commits` needs to know which of them are live."""
    return {action.path for commit in commits for action in commit.file_actions}


def fold_commits(commits: Sequence[Commit], live: Mapping[str, str | None]) -> TableChange:
    """Fold consecutive, validated commits over `live` (path -> deletion vector's unique id) for the touched paths.

    The newest add of a path wins, with or without a remove of the older one. An add of the very logical file that is
    live (new statistics, tags) changes nothing. Raises `StateMismatch` for a remove whose logical file is not live: it
    may be a tombstone only, as Delta leaves when it drops a feature, or `live` is not what Delta has.
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
                    "which is not what is remembered as live",
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
