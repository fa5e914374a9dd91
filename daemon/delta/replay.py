"""Folding commits into one change, purely: no I/O, no clock, no log. Delta PROTOCOL.md, "Action Reconciliation".

A logical file is (path as it is spelled, deletion vector's unique id). Delta replaces a deletion vector by a remove and
an add of the same path. The data file itself does not change, so such a pair is folded into one change of the vector.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from daemon.delta.actions import AddFile, Commit, Identity, Metadata, Protocol
from daemon.delta.uri import describe, fold_identity
from daemon.errors import StateMismatch
from daemon.texts import excerpt

# Limits the text of all operations: every metadata file repeats it for each snapshot.
OPERATIONS_CHARACTERS_MAX = 1_000


@dataclass(frozen=True)
class TableChange:
    """The changes that versions `from_version`..`to_version` (inclusive) make to the live files.

    Keys are plain absolute paths. `added` were not live before, `removed` are not live afterwards, `dv_changed` are
    both, with different deletion vectors (or only once with one), `uris_changed` are both, spelled otherwise. If one
    commit removes a path and a later one adds it, it is in `removed` and `added`: the new file may be different.
    """

    from_version: int
    to_version: int
    timestamp_ms: int
    added: Mapping[str, AddFile]
    removed: frozenset[str]
    dv_changed: Mapping[str, AddFile]
    metadatas: Sequence[Metadata] = ()
    protocol: Protocol | None = None
    operation: str | None = None
    data_change: bool = True
    uris_changed: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def metadata(self) -> Metadata | None:
        return self.metadatas[-1] if self.metadatas else None


def join_operations(names: Iterable[str | None]) -> str | None:
    """Join the names of several versions' operations, each name once."""
    return excerpt(", ".join(dict.fromkeys(name for name in names if name)), OPERATIONS_CHARACTERS_MAX) or None


def touched_paths(commits: Iterable[Commit]) -> set[str]:
    """Return every path that these commits name. `fold_commits` must know which of these are live."""
    return {action.path for commit in commits for action in commit.file_actions}


def fold_commits(commits: Sequence[Commit], live: Mapping[str, Identity]) -> TableChange:
    """Fold consecutive, validated commits over `live` for the touched paths.

    As in Delta, an add makes its logical file live, and a remove removes exactly its logical file, if that is live. An
    add of a logical file that is already live (new statistics, tags) changes nothing.

    Example: `a`, `b` and `c` are live, without deletion vectors. Version 6 removes `a` and adds it with the vector `v`.
    Version 7 removes `b` and adds `d`. The change is: `a` in `dv_changed`, `b` in `removed`, `d` in `added`; `c` stays.

    Raises `StateMismatch` if a path is live more than once afterwards, if nobody can tell whether a remove removes a
    file (`fold_identity`), or if a remove names another deletion vector than the live file has. Then either Iceberg
    cannot show Delta's state, or `live` differs from it.
    """
    # The logical files of each path: the newest add, or None while the file of `live` is untouched.
    after: dict[str, dict[Identity, AddFile | None]] = {path: {identity: None} for path, identity in live.items()}
    gone: set[str] = set()

    for commit in commits:
        removed = defaultdict[str, set[Identity]](set)
        for remove in commit.removes:
            removed[remove.path].add(remove.identity)
        for path, identities in removed.items():
            at_path = after.get(path, {})
            unmatched = identities - at_path.keys()
            for identity in identities:
                at_path.pop(identity, None)
            if {uri for uri, _ in unmatched} & {uri for uri, _ in at_path}:
                raise _mismatch(commit.version, path, [*unmatched, *at_path])
        for add in commit.adds:
            after.setdefault(add.path, {})[add.identity] = add
        for path, identities in removed.items():
            at_path = after.get(path, {})
            if not at_path:
                gone.add(path)
            elif {fold_identity(path, each) for each in identities} & {fold_identity(path, each) for each in at_path}:
                raise _mismatch(commit.version, path, [*identities, *at_path])

    for path, at_path in after.items():
        if len(at_path) > 1:
            raise _mismatch(commits[-1].version, path, at_path)
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
        metadatas=[commit.metadata for commit in commits if commit.metadata],
        protocol=next((commit.protocol for commit in reversed(commits) if commit.protocol), None),
        operation=join_operations(commit.operation for commit in commits),
        data_change=any(action.data_change for commit in commits for action in commit.file_actions),
        uris_changed={path: add.uri for path, add in newest.items() if path in stayed and stayed[path][0] != add.uri},
    )


def _mismatch(version: int, path: str, identities: Iterable[Identity]) -> StateMismatch:
    return StateMismatch(
        f"after version {version}, {path} may be live more than once: {'; '.join(sorted(map(describe, identities)))}",
        version=version,
        path=path,
        hint="dvsync rebuilds its state from the Iceberg table and compares it with Delta's newest state.",
    )
