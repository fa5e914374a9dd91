"""The fold over commits: each case of the protocol by name, and any sequence of actions against a naive replay."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from daemon.delta.actions import AddFile, Commit, Metadata, Protocol, RemoveFile
from daemon.delta.replay import OPERATIONS_CHARACTERS_MAX, TableChange, fold_commits, touched_paths
from daemon.delta.snapshot import _NewestFirst
from daemon.errors import StateMismatch
from state import DeletionVectorDescriptor

TABLE = "file:///lake/t"
# Path, deletion vector and URI.
LogicalFile = tuple[str, str | None, str | None]


def dv(name: str | None) -> DeletionVectorDescriptor | None:
    return DeletionVectorDescriptor("u", name, 40, 1, 1) if name else None


def dv_id(name: str | None) -> str | None:
    return f"u{name}@1" if name else None


def add(path: str, name: str | None = None, uri: str | None = None, *, data_change: bool = True) -> AddFile:
    return AddFile(f"{TABLE}/{path}", data_change, dv(name), uri, partition_values={}, size=1)


def remove(path: str, name: str | None = None, uri: str | None = None, *, data_change: bool = True) -> RemoveFile:
    return RemoveFile(f"{TABLE}/{path}", data_change, dv(name), uri)


def commit(version: int, *actions: AddFile | RemoveFile, operation: str | None = None) -> Commit:
    return Commit(
        version=version,
        timestamp_ms=1000 * version,
        adds=tuple(action for action in actions if isinstance(action, AddFile)),
        removes=tuple(action for action in actions if isinstance(action, RemoveFile)),
        operation=operation,
    )


def fold(live: Mapping[str, str | None], *commits: Commit) -> TableChange:
    return fold_commits(commits, {f"{TABLE}/{path}": (None, dv_id(name)) for path, name in live.items()})


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


def test_a_readd_changes_nothing() -> None:
    """The very logical file that is live, added again with fresh statistics: nothing, however often."""
    for name in (None, "1"):
        change = fold({"a": name}, commit(1, add("a", name)), commit(2, add("a", name, data_change=False)))
        assert names(change) == NOTHING


@pytest.mark.parametrize(
    "stray",
    [
        [commit(1, remove("a", "1", "%61"))],
        [commit(1, remove("z"))],
        [commit(1, remove("z"), add("z", "2")), commit(2, remove("z", "2"))],
        [commit(1, remove("z"), remove("z"))],
    ],
)
def test_a_remove_of_what_is_not_live_changes_nothing(stray: list[Commit]) -> None:
    """Another spelling, or a path never seen, or one that is removed already."""
    assert names(fold({"a": "1"}, *stray)) == NOTHING
    twice = fold({"a": "1"}, commit(1, remove("a", "1"), remove("a")), commit(2, remove("a", "1")))
    assert names(twice) == ({}, {"a"}, {})


@pytest.mark.parametrize(
    "stray",
    [
        [commit(1, remove("a"))],
        [commit(1, remove("a", "0"))],
        [commit(1, remove("a"), remove("a", "1"), add("a", "2")), commit(2, remove("a", "1"), add("a", "3"))],
    ],
)
def test_another_deletion_vector_is_a_mismatch(stray: list[Commit]) -> None:
    """Delta would remove nothing; but the memory may be wrong, and deletions are computed from what it has."""
    with pytest.raises(StateMismatch, match="may be live more than once") as caught:
        fold({"a": "1"}, *stray)
    assert caught.value.version == stray[-1].version


@pytest.mark.parametrize(
    "twice",
    [
        [commit(1, add("a", "2"))],
        [commit(1, add("a", "1", "%61"))],
        [commit(1, add("b"), add("b", "2"))],
        [commit(1, remove("a", "1"), add("a", "2", "%61")), commit(2, add("a", "2"))],
    ],
)
def test_a_file_that_is_live_twice_needs_a_comparison(twice: list[Commit]) -> None:
    """By two deletion vectors or by two spellings, until one is removed again."""
    with pytest.raises(StateMismatch, match=r"may be live more than once: .*; ") as caught:
        fold({"a": "1"}, *twice)
    assert caught.value.version == twice[-1].version
    both = [add("a", "1"), add("a", "2"), add("a", "1", "%61"), add("a", "2", "%61"), add("b"), add("b", "2")]
    removes = [RemoveFile(file.path, True, file.deletion_vector, file.uri) for file in both]
    assert names(fold({"a": "1"}, *twice, commit(3, *removes))) == ({}, {"a"}, {})


def test_another_spelling_changes_the_memory_alone() -> None:
    """The file stays where it is, whether its deletion vector changes or not."""
    change = fold({"a": "1", "b": None}, commit(1, remove("a", "1"), add("a", "1", "%61")))
    assert (names(change), change.uris_changed) == (NOTHING, {f"{TABLE}/a": "%61"})
    change = fold({"a": "1"}, commit(1, remove("a", "1"), add("a", "2", "%61")))
    assert (names(change), change.uris_changed) == (({}, set(), {"a": dv_id("2")}), {f"{TABLE}/a": "%61"})


@pytest.mark.parametrize(
    ("live", "removed"), [("%C3%A9%5B", "%c3%a9%5B"), (None, "é%5b"), ("file:/lake/t/é%5B", "FILE:///lake/t/é%5B")]
)
def test_what_delta_compares_by_chance_needs_a_comparison(live: str | None, removed: str) -> None:
    """Equal URIs in different texts: a remove of one may remove the other."""
    path = f"{TABLE}/é["
    for name in (None, "1"):
        stray = Commit(1, 1, removes=(RemoveFile(path, True, dv(name), removed),))
        with pytest.raises(StateMismatch, match="may be live more than once"):
            fold_commits([stray], {path: (live, dv_id(name))})
        assert not fold_commits([stray], {path: ("./é%5B", dv_id(name))}).removed


def test_many_actions_of_one_path_are_folded_in_time() -> None:
    """Adds of one path, each with a vector, and as many removes of another spelling: not compared in pairs."""
    names = [str(number) for number in range(5_000)]
    history = [commit(1, *(add("a", name) for name in names), *(remove("a", name, "%61") for name in names))]
    started_s = time.process_time()
    with pytest.raises(StateMismatch, match="may be live more than once"):
        fold({}, *history)
    newest = _NewestFirst(TABLE)
    newest.take_commit(history[0])
    assert time.process_time() - started_s < 3


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
    fresh = AddFile(f"{TABLE}/a", False, partition_values={}, size=1, stats='{"numRecords": 1}')
    change = fold({}, commit(1, add("a")), commit(2, fresh))
    assert change.added == {f"{TABLE}/a": fresh}


def test_what_a_fold_says_of_its_versions() -> None:
    """Versions are inclusive, the time is the last one's, operations come once, newest metadata and protocol hold."""
    first, second = (Metadata(id, "{}", [], {}) for id in "12")
    older, protocol = Protocol(1, 2), Protocol(3, 7)
    commits = [
        Commit(version=4, timestamp_ms=40, metadata=first, protocol=older, operation="DELETE"),
        Commit(version=5, timestamp_ms=30, metadata=second, protocol=protocol, operation="WRITE"),
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

_logical = st.tuples(st.sampled_from("abc"), st.sampled_from([None, "1", "2"]), st.sampled_from([None, "other"]))


@st.composite
def _histories(draw: st.DrawFn) -> tuple[set[LogicalFile], list[Commit]]:
    """What is live, each path once, and valid commits: any logical files, but one action for each in a commit."""
    live = {path: file for path, *file in draw(st.lists(_logical))}
    commits = []
    for version in range(1, draw(st.integers(1, 5)) + 1):
        files = draw(st.dictionaries(_logical, st.booleans(), max_size=5))
        actions = [add(*file) if is_add else remove(*file) for file, is_add in files.items()]
        commits.append(commit(version, *actions))
    return {(path, *file) for path, file in live.items()}, commits


def replay_naively(live: Iterable[LogicalFile], commits: Iterable[Commit]) -> set[LogicalFile]:
    """As Delta's InMemoryLogReplay: an add makes its logical file live, and a remove ends exactly its own."""
    files = set(live)
    for one in commits:
        files -= {_logical_file(remove) for remove in one.removes}
        files |= {_logical_file(add) for add in one.adds}
    return files


def _logical_file(action: AddFile | RemoveFile) -> LogicalFile:
    name = action.deletion_vector.path_or_inline_dv if action.deletion_vector else None
    return action.path.removeprefix(f"{TABLE}/"), name, action.uri


def apply(live: set[LogicalFile], commits: Sequence[Commit]) -> tuple[set[LogicalFile], TableChange]:
    """Fold over `live`, and do to it what the change says."""
    change = fold_commits(commits, {f"{TABLE}/{path}": (uri, dv_id(name)) for path, name, uri in live})
    removed, uris = names(change)[1], change.uris_changed
    dvs = {
        path: add.deletion_vector and add.deletion_vector.path_or_inline_dv for path, add in change.dv_changed.items()
    }
    stayed = {file for file in live if file[0] not in removed}
    after = {(path, dvs.get(f"{TABLE}/{path}", name), uris.get(f"{TABLE}/{path}", uri)) for path, name, uri in stayed}
    assert not {path for path, *_ in after} & names(change)[0].keys(), "a file is added where none is live"
    return after | {_logical_file(add) for add in change.added.values()}, change


def is_shown(files: Collection[LogicalFile]) -> bool:
    """Whether Iceberg can show it: each path once."""
    return len({path for path, *_ in files}) == len(files)


def names_another_vector(before: set[LogicalFile], one: Commit) -> bool:
    removed = set(map(_logical_file, one.removes))
    left = {(path, uri) for path, _, uri in before - removed}
    return any((path, uri) in left for path, _, uri in removed - before)


@given(history=_histories())
def test_a_fold_equals_a_naive_replay(history: tuple[set[LogicalFile], list[Commit]]) -> None:
    """Applied to what was live, a fold gives what a replay action by action gives, and says no more than needed."""
    live, commits = history
    states = [replay_naively(live, commits[:number]) for number in range(len(commits) + 1)]
    if any(map(names_another_vector, states, commits)) or not is_shown(states[-1]):
        with pytest.raises(StateMismatch, match="may be live more than once"):
            apply(live, commits)
        return
    after, change = apply(live, commits)
    assert after == states[-1]
    added, removed, changed = names(change)
    paths = [{path for path, *_ in files} for files in states]
    assert set(added) & paths[0] == {path for path in paths[0] & paths[-1] if any(path not in now for now in paths)}
    assert removed == {path for path in paths[0] if any(path not in now for now in paths)}
    assert not removed & (set(changed) | {path.removeprefix(f"{TABLE}/") for path in change.uris_changed})
    touched = {path.removeprefix(f"{TABLE}/") for path in touched_paths(commits)}
    assert {*added, *removed, *changed} <= touched


@given(history=_histories(), cut=st.integers(0, 5))
def test_folding_in_two_parts_is_the_same(history: tuple[set[LogicalFile], list[Commit]], cut: int) -> None:
    """Versions folded in one snapshot or in two lead to the same logical files."""
    live, commits = history
    states = [replay_naively(live, commits[:number]) for number in (cut, len(commits))]
    every = [replay_naively(live, commits[:number]) for number in range(len(commits))]
    assume(all(map(is_shown, states)) and not any(map(names_another_vector, every, commits)))
    for part in filter(None, (commits[:cut], commits[cut:])):
        live, _ = apply(live, part)
    assert live == states[-1]
