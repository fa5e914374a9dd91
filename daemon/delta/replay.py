"""Folding commits into one change, purely: no I/O, no clock, no log. Delta PROTOCOL.md, "Action Reconciliation".

A logical file is (path as it is spelled, deletion vector's unique id). Delta replaces a deletion vector by a remove and
an add of the same path. The data file itself does not change, so such a pair is folded into one change of the vector.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from daemon.delta.actions import AddFile, Commit, Identity, Metadata, Protocol
from daemon.delta.uri import describe, is_doubtful
from daemon.errors import ResyncNeeded
from daemon.texts import excerpt

# Limits the text of all operations: every metadata file repeats it for each snapshot.
OPERATIONS_CHARACTERS_MAX = 1_000


@dataclass(frozen=True)
class TableChange:
    """The changes that versions `from_version`..`to_version` (inclusive) make to the live files.

    Keys are plain absolute paths. `added` were not live before, `removed` are not live afterwards, `dv_changed` are
    live before and afterwards, with different deletion vectors (or only once with a vector). If one commit removes a
    path and a later one adds it, it is in `removed` and `added`: the new file may be different. `uris_changed` are live
    before and afterwards, spelled otherwise. `unmatched` is the first remove that removed nothing.
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
    uris_changed: Mapping[str, str | None] = field(default_factory=dict)
    unmatched: str | None = None


def join_operations(names: Iterable[str | None]) -> str | None:
    """Join the names of several versions' operations, each name once."""
    return excerpt(", ".join(dict.fromkeys(name for name in names if name)), OPERATIONS_CHARACTERS_MAX) or None


def touched_paths(commits: Iterable[Commit]) -> set[str]:
    """Return every path that these commits name. `fold_commits` must know which of these are live."""
    return {action.path for commit in commits for action in commit.file_actions}


def fold_commits(commits: Sequence[Commit], live: Mapping[str, Identity]) -> TableChange:
    """Fold consecutive, validated commits over `live` for the touched paths.

    As in Delta, an add makes its logical file live, and a remove removes exactly its logical file. An add of a logical
    file that is already live (new statistics, tags) changes nothing.

    Example: `a`, `b` and `c` are live, without deletion vectors. Version 6 removes `a` and adds it with the vector `v`.
    Version 7 removes `b` and adds `d`. The change is: `a` in `dv_changed`, `b` in `removed`, `d` in `added`; `c` stays.

    Raises `ResyncNeeded` if a path is live more than once afterwards, or nobody can tell whether a remove removes it.
    """
    # The logical files of each path: the newest add, or None while the file of `live` is untouched.
    after: dict[str, dict[Identity, AddFile | None]] = defaultdict(dict)
    after.update({path: {identity: None} for path, identity in live.items()})
    gone: set[str] = set()
    unmatched: str | None = None

    for commit in commits:
        for remove in dict.fromkeys(commit.removes):
            at_path = after[remove.path]
            if remove.identity in at_path:
                del at_path[remove.identity]
            else:
                unmatched = unmatched or f"version {commit.version} removes {remove.path} {describe(remove.identity)}"
        for add in commit.adds:
            at_path = after[add.path]
            # None stays: the file is live already, and shown.
            if at_path.get(add.identity, add) is not None:
                at_path[add.identity] = add
        for remove in commit.removes:
            at_path = after[remove.path]
            if not at_path:
                gone.add(remove.path)
            for identity in at_path:
                if is_doubtful(remove.path, identity, remove.identity):
                    raise _not_one_file(commit.version, remove.path, (identity, remove.identity))

    for path, at_path in after.items():
        if len(at_path) > 1:
            raise _not_one_file(commits[-1].version, path, at_path)
    newest = {path: add for path, at_path in after.items() for add in at_path.values() if add}
    stayed = {path: identity for path, identity in live.items() if path not in gone}
    return TableChange(
        from_version=commits[0].version,
        to_version=commits[-1].version,
        timestamp_ms=commits[-1].timestamp_ms,
        added={path: add for path, add in newest.items() if path not in stayed},
        removed=frozenset(gone & live.keys()),
        dv_changed={
            path: add for path, add in newest.items() if path in stayed and stayed[path][1] != add.dv_unique_id
        },
        metadata=next((commit.metadata for commit in reversed(commits) if commit.metadata), None),
        protocol=next((commit.protocol for commit in reversed(commits) if commit.protocol), None),
        operation=join_operations(commit.operation for commit in commits),
        data_change=any(action.data_change for commit in commits for action in commit.file_actions),
        uris_changed={path: add.uri for path, add in newest.items() if path in stayed and stayed[path][0] != add.uri},
        unmatched=unmatched,
    )


def _not_one_file(version: int, path: str, identities: Iterable[Identity]) -> ResyncNeeded:
    return ResyncNeeded(
        f"after version {version}, {path} may be live more than once: {'; '.join(map(describe, identities))}",
        version=version,
        path=path,
        hint="dvsync compares Delta's newest state with Iceberg, and commits the difference.",
    )
