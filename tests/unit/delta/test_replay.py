"""The fold over commits: each case of the protocol by name, and any sequence of actions against a naive replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.delta.actions import AddFile, Commit, Metadata, Protocol, RemoveFile
from daemon.delta.replay import OPERATIONS_CHARACTERS_MAX, TableChange, fold_commits, touched_paths
from daemon.errors import StateMismatch
from state import DeletionVectorDescriptor

TABLE = "file:///lake/t"
LogicalFile = tuple[str, str | None]


def dv(name: str | None) -> DeletionVectorDescriptor | None:
    return DeletionVectorDescriptor("u", name, 40, 1, 1) if name else None


def dv_id(name: str | None) -> str | None:
    return f"u{name}@1" if name else None


def add(path: str, name: str | None = None, *, data_change: bool = True) -> AddFile:
    return AddFile(f"{TABLE}/{path}", {}, 1, data_change, None, dv(name))


def remove(path: str, name: str | None = None, *, data_change: bool = True) -> RemoveFile:
    return RemoveFile(f"{TABLE}/{path}", data_change, dv(name))


def commit(version: int, *actions: AddFile | RemoveFile, operation: str | None = None) -> Commit:
    return Commit(
        version=version,
        timestamp_ms=1000 * version,
        adds=tuple(action for action in actions if isinstance(action, AddFile)),
        removes=tuple(action for action in actions if isinstance(action, RemoveFile)),
        operation=operation,
    )


def fold(live: Mapping[str, str | None], *commits: Commit) -> TableChange:
    return fold_commits(commits, {f"{TABLE}/{path}": dv_id(name) for path, name in live.items()})


def names(change: TableChange) -> tuple[dict[str, str | None], set[str], dict[str, str | None]]:
    """Added, removed and changed files by short path, with the deletion vector that they have now."""

    def short(adds: Mapping[str, AddFile]) -> dict[str, str | None]:
        return {path.removeprefix(f"{TABLE}/"): file.dv_unique_id for path, file in adds.items()}

    removed = {path.removeprefix(f"{TABLE}/") for path in change.removed}
    return short(change.added), removed, short(change.dv_changed)


NOTHING: tuple[dict[str, str | None], set[str], dict[str, str | None]] = ({}, set(), {})


def test_an_added_and_a_removed_file() -> None:
    """A new path is added, a live one with a remove of just that logical file is removed."""
    assert names(fold({"a": None}, commit(1, add("b"), remove("a")))) == ({"b": None}, {"a"}, {})


def test_a_dv_swap_is_no_removal() -> None:
    """Churn: remove(P, old) with add(P, new) in one commit changes the deletion vector and nothing else."""
    for old, new in ((None, "1"), ("1", "2"), ("1", None)):
        assert names(fold({"a": old}, commit(1, remove("a", old), add("a", new)))) == ({}, set(), {"a": dv_id(new)})


def test_an_add_alone_replaces_the_older_logical_file() -> None:
    """The newest add of a path wins, with or without a remove of the one before."""
    assert names(fold({"a": "1"}, commit(1, add("a", "2")))) == ({}, set(), {"a": dv_id("2")})


def test_a_readd_changes_nothing() -> None:
    """The very logical file that is live, added again with fresh statistics: nothing, however often."""
    for name in (None, "1"):
        change = fold({"a": name}, commit(1, add("a", name)), commit(2, add("a", name, data_change=False)))
        assert names(change) == NOTHING


@pytest.mark.parametrize(
    "stray",
    [
        [commit(1, remove("a"))],
        [commit(1, remove("a", "0"))],
        [commit(1, remove("z"))],
        [commit(1, remove("a", "0"), add("a", "2"))],
        [commit(1, remove("z"), add("z", "2"))],
        [commit(1, add("a", "2")), commit(2, remove("a", "1"))],
        [commit(1, remove("a", "1")), commit(2, remove("a", "1"))],
    ],
)
def test_a_remove_of_what_is_not_live_is_a_mismatch(stray: list[Commit]) -> None:
    """Another deletion vector, or a path never seen: a mere tombstone, or a wrong memory. It is not passed over."""
    with pytest.raises(StateMismatch, match="the state store does not have it as live") as caught:
        fold({"a": "1"}, *stray)
    assert caught.value.version == stray[-1].version


def test_a_file_that_came_and_went_was_never_there() -> None:
    """Added and removed within the folded versions: not a word of it."""
    assert names(fold({}, commit(1, add("a")), commit(2, remove("a")))) == NOTHING
    assert (
        names(fold({}, commit(1, add("a")), commit(2, remove("a"), add("a", "1")), commit(3, remove("a", "1"))))
        == NOTHING
    )


def test_a_file_that_went_and_came_back_is_another() -> None:
    """Removed and added by later versions: written anew under its old name, perhaps. What never showed is not told."""
    went = commit(1, remove("a", "1"))
    assert names(fold({"a": "1"}, went, commit(2, add("a", "1")))) == ({"a": dv_id("1")}, {"a"}, {})
    assert names(fold({"a": "1"}, went, commit(2, add("a")))) == ({"a": None}, {"a"}, {})
    assert names(fold({"a": "1"}, went, commit(2, add("a")), commit(3, remove("a")))) == ({}, {"a"}, {})
    assert names(fold({}, commit(1, add("a")), commit(2, remove("a")), commit(3, add("a")))) == ({"a": None}, set(), {})


def test_several_dvs_fold_into_the_last() -> None:
    """Only the last deletion vector of the folded versions counts."""
    commits = [
        commit(1, remove("a"), add("a", "1")),
        commit(2, remove("a", "1"), add("a", "2")),
        commit(3, remove("a", "2"), add("a", "3")),
    ]
    assert names(fold({"a": None}, *commits)) == ({}, set(), {"a": dv_id("3")})


def test_a_new_file_keeps_the_newest_add() -> None:
    """A path added twice before it is shown is one new file with its latest statistics."""
    fresh = AddFile(f"{TABLE}/a", {}, 1, False, stats='{"numRecords": 1}')
    change = fold({}, commit(1, add("a")), commit(2, fresh))
    assert change.added == {f"{TABLE}/a": fresh}


def test_what_a_fold_says_of_its_versions() -> None:
    """Versions are inclusive, the time is the last one's, operations are told once, the newest metadata holds."""
    first, second = (Metadata(id, "{}", [], {}) for id in "12")
    protocol = Protocol(3, 7)
    commits = [
        Commit(version=4, timestamp_ms=40, metadata=first, protocol=protocol, operation="DELETE"),
        Commit(version=5, timestamp_ms=30, metadata=second, operation="WRITE"),
        Commit(version=6, timestamp_ms=35, operation="DELETE"),
        Commit(version=7, timestamp_ms=20),
    ]
    change = fold({}, *commits)
    assert (change.from_version, change.to_version, change.timestamp_ms) == (4, 7, 20)
    assert (change.metadata, change.protocol, change.operation) == (second, protocol, "DELETE, WRITE")
    assert not change.data_change
    assert fold({}, commit(1)).operation is None


def test_names_of_operations_are_bounded() -> None:
    """However many versions share a snapshot, its summary stays small."""
    commits = [commit(version, operation=f"{version}: {'x' * 90}") for version in range(1, 200)]
    operation = fold({}, *commits).operation
    assert operation is not None
    assert len(operation) == OPERATIONS_CHARACTERS_MAX
    assert operation.startswith(f"1: {'x' * 90}, 2: xx")


def test_data_change_is_that_of_any_action() -> None:
    """One action that changes data makes the whole fold change data."""
    quiet = commit(1, remove("a", data_change=False), add("b", data_change=False))
    assert not fold({"a": None}, quiet).data_change
    assert fold({"a": None}, quiet, commit(2, remove("b"))).data_change


# --- any sequence ---

_paths, _dvs = st.sampled_from("abc"), st.sampled_from([None, "1", "2"])
_logical = st.tuples(_paths, _dvs)


@st.composite
def _histories(draw: st.DrawFn) -> tuple[dict[str, str | None], list[Commit]]:
    """What is live, and valid commits: one add a path, removes of what is live, none of what the commit adds."""
    live = draw(st.dictionaries(_paths, _dvs))
    files, commits = dict(live), []
    for version in range(1, draw(st.integers(1, 5)) + 1):
        adds = dict(draw(st.lists(_logical, max_size=3)))
        removed = draw(st.sets(st.sampled_from(sorted(files)))) if files else set()
        removes = {path: files[path] for path in sorted(removed) if (path, files[path]) not in adds.items()}
        files = {path: name for path, name in files.items() if path not in removes} | adds
        commits.append(
            commit(version, *(add(*file) for file in adds.items()), *(remove(*file) for file in removes.items()))
        )
    return live, commits


def replay_naively(live: Iterable[LogicalFile], commits: Iterable[Commit]) -> set[LogicalFile]:
    """PROTOCOL.md, "Action Reconciliation", to the letter: the set of logical files after the commits."""
    files = set(live)
    for one in commits:
        for action in one.removes:
            files.discard((action.path.removeprefix(f"{TABLE}/"), action.dv_unique_id))
        for action in one.adds:
            path = action.path.removeprefix(f"{TABLE}/")
            files = {file for file in files if file[0] != path} | {(path, action.dv_unique_id)}
    return files


@given(history=_histories())
def test_a_fold_equals_a_naive_replay(history: tuple[dict[str, str | None], list[Commit]]) -> None:
    """Applied to what was live, a fold gives what a replay action by action gives, and says no more than needed."""
    live, commits = history
    before = {path: dv_id(name) for path, name in live.items()}
    change = fold(live, *commits)
    added, removed, changed = names(change)
    after = {path: name for path, name in before.items() if path not in removed} | added | changed
    assert set(after.items()) == replay_naively(before.items(), commits)
    seen = [{path for path, _ in replay_naively(before.items(), commits[: n + 1])} for n in range(len(commits))]
    assert set(added) & set(before) == {
        path for path in after if path in before and any(path not in now for now in seen)
    }
    assert removed <= set(before) and not removed & set(changed)
    assert all(path in before and before[path] != name for path, name in changed.items())
    touched = {path.removeprefix(f"{TABLE}/") for path in touched_paths(commits)}
    assert {*added, *removed, *changed} <= touched


@given(history=_histories(), cut=st.integers(0, 5))
def test_folding_in_two_parts_is_the_same(history: tuple[dict[str, str | None], list[Commit]], cut: int) -> None:
    """Versions folded in one snapshot or in two lead to the same files, deletion vectors and statistics."""
    live, commits = history
    first, second = commits[:cut], commits[cut:]
    state = dict(live)
    for part in (first, second):
        if part:
            added, removed, changed = names(fold(state, *part))
            state = {path: name for path, name in state.items() if path not in removed}
            state |= {path: (name[1:-2] if name else None) for path, name in {**added, **changed}.items()}
    assert set(state.items()) == {
        (path, name[1:-2] if name else None)
        for path, name in replay_naively({path: dv_id(name) for path, name in live.items()}.items(), commits)
    }
