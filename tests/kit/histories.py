"""Random histories of a Delta table, made by hand, and what each version must show. Nothing here knows dvsync.

A step names files and positions by numbers that always fit (modulo what is there), so that any history can be played
and a failing one shrinks to few small steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

from tests.kit.handmade import HandmadeTable

PARTS = ("x", "ü 50%")
# More rows than one Roaring container has positions.
BIG_ROWS = 65_540
BIG_POSITIONS = (65_535, 65_536, 0, 65_539, 1, 65_534)

Row = tuple[int, str, str]


@dataclass(frozen=True)
class Append:
    """New files: (rows, part) of each."""

    files: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Delete:
    """Rows deleted: (file, bits of positions) of each; a file without live rows is removed. `update` adds them anew."""

    picks: tuple[tuple[int, int], ...]
    storage: str = "u"
    update: bool = False


@dataclass(frozen=True)
class Swap:
    """Another deletion vector for a file, whatever it had; by another spelling of its path if `respell`."""

    file: int
    bits: int
    storage: str = "u"
    respell: bool = False


@dataclass(frozen=True)
class Readd:
    """The same logical files once more, with fresh statistics."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class Remove:
    """All rows of some files deleted."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class Stray:
    """Removes of live files by other spellings than those of their adds, and of the files that went: no effect."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class Optimize:
    """Some files rewritten into one for each part, their deletion vectors purged."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class Restore:
    """The state of some versions ago."""

    versions: int


@dataclass(frozen=True)
class Comment:
    """A version without a file action."""


@dataclass(frozen=True)
class Sync:
    """dvsync follows; in a new process when `restart`."""

    restart: bool = False


Step = Append | Delete | Swap | Readd | Remove | Stray | Optimize | Restore | Comment | Sync

# A bit of everything, so that no run depends on its luck alone.
TOUR: list[Step] = [
    Append(((6, 0), (5, 0), (4, 1))),
    Sync(),
    Delete(((0, 0b11), (1, 0b1), (2, 0b10))),
    Sync(),
    Delete(((0, 0b100),), "i"),
    Sync(restart=True),
    Swap(0, 0b1000, "p"),
    Restore(2),
    Sync(),
    Remove((0,)),
    Sync(),
    Restore(3),
    Sync(),
    Swap(0, 0b100, respell=True),
    Readd((0, 1)),
    Stray((0, 1)),
    Sync(),
    Swap(0, 0b100, respell=True),
    Sync(),
    Swap(2, 0),
    Sync(),
    Optimize((1, 2)),
    Sync(),
    Restore(1),
    Comment(),
    Sync(restart=True),
    Delete(((0, 0b10), (1, 0b10), (2, 0b10)), update=True),
    Remove((1,)),
]

_file = st.integers(0, 3)
_files = st.lists(_file, min_size=1, max_size=3).map(tuple)
_bits = st.integers(1, 63)
_storage = st.sampled_from("upi")
_picks = st.lists(st.tuples(_file, _bits), min_size=1, max_size=3).map(tuple)
_sizes = st.lists(st.tuples(st.integers(2, 6), st.integers(0, 1)), min_size=1, max_size=3).map(tuple)
_append = st.builds(Append, _sizes)
# Nothing comes first, for a failing history to shrink to; deletion vectors that grow and shrink come most often.
_change: st.SearchStrategy[Step | None] = st.one_of(
    st.none(),
    *(3 * [st.builds(Delete, _picks, _storage)]),
    *(4 * [st.builds(Swap, _file, st.integers(0, 63), _storage, st.booleans())]),
    *(3 * [st.builds(Restore, st.integers(1, 4))]),
    st.builds(Delete, _picks, _storage, st.just(True)),
    st.builds(Optimize, _files),
    st.builds(Readd, _files),
    st.builds(Remove, _files),
    st.builds(Stray, _files),
    _append,
    st.just(Comment()),
)


def steps(*, changes_max: int, more: Sequence[st.SearchStrategy[Any]] = ()) -> st.SearchStrategy[list[Any]]:
    """Histories that begin with some rows and a sync; a sync after about every other change. `more` are other steps."""
    sync = st.sampled_from([None, Sync(), Sync(), Sync(restart=True)])
    rest = st.tuples(*(changes_max * [st.one_of(_change, *more), sync]))
    return st.builds(lambda first, rest: [first, Sync(), *(step for step in rest if step)], _append, rest)


@dataclass(frozen=True)
class State:
    """A version: the deleted positions of each live file, and the add actions as they were written.

    `only_moved` says that no action of it changes data.
    """

    deleted: Mapping[str, frozenset[int]]
    actions: Mapping[str, dict[str, Any]]
    only_moved: bool = False


@dataclass
class History:
    """A table on which steps are played; `states[v]` is version v."""

    folder: Path
    partitioned: bool
    big: bool = False
    states: list[State] = field(default_factory=lambda: [State({}, {})])
    _ids: int = 0

    def __post_init__(self) -> None:
        self.table = HandmadeTable(self.folder, partitioned=self.partitioned)
        self.table.create()

    def play(self, step: Step) -> None:
        """Write the step's version; a step that finds nothing to do writes none, as Delta does."""
        match step:
            case Append(files):
                self._commit([self._new_file(*file) for file in self._sized(files)])
            case Delete(picks, storage, update):
                self._delete(picks, storage, update=update)
            case Swap(file, bits, storage, respell):
                self._swap(file, bits, storage, respell=respell)
            case Readd(files):
                self._commit([self._readd(path) for path in self._pick(files)], only_moved=True)
            case Remove(files):
                self._commit([self.table.remove(path) for path in self._pick(files)])
            case Stray(files):
                self._stray(self._pick(files))
            case Optimize(files):
                self._commit(self._rewrite(self._pick(files)), only_moved=True)
            case Restore(versions):
                self._restore(self.states[max(0, self.table.version - versions)])
            case Comment():
                self._commit([{"txn": {"appId": "a", "version": self.table.version}}], only_moved=True)

    def rows(self, version: int) -> list[Row]:
        """What every reader must show at `version`, sorted."""
        return sorted(
            row
            for path, deleted in self.states[version].deleted.items()
            for position, row in enumerate(self.table.rows[path])
            if position not in deleted
        )

    def _commit(self, actions: Sequence[dict[str, Any]], *, only_moved: bool = False) -> None:
        if actions:
            self.table.commit(actions)
            deleted = {path: frozenset(positions) for path, positions in self.table.deleted.items()}
            self.states.append(State(deleted, dict(self.table.live), only_moved))

    def _sized(self, files: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        sized = list(files)
        if self.big and not self.table.rows:
            sized[0] = (BIG_ROWS, sized[0][1])
        return sized

    def _new_file(self, count: int, part: int) -> dict[str, Any]:
        first = self._ids + 1
        self._ids += count
        return self._write([(number, PARTS[part], f"v{number}") for number in range(first, first + count)])

    def _write(self, rows: Sequence[Row], *, data_change: bool = True) -> dict[str, Any]:
        path = self.table.write_file(rows, name=f"part-{len(self.table.rows):03d}")
        return self.table.add(path, data_change=data_change)

    def _pick(self, files: Iterable[int]) -> list[str]:
        live = list(self.table.live)
        return list(dict.fromkeys(live[number % len(live)] for number in files)) if live else []

    def _positions(self, path: str, bits: int) -> set[int]:
        count = len(self.table.rows[path])
        candidates = BIG_POSITIONS if count == BIG_ROWS else range(count)
        return {position for bit, position in enumerate(candidates) if bits >> bit & 1}

    def _delete(self, picks: Iterable[tuple[int, int]], storage: str, *, update: bool) -> None:
        wanted: dict[str, set[int]] = {}
        for number, bits in picks:
            for path in self._pick([number]):
                wanted.setdefault(path, set(self.table.deleted[path])).update(self._positions(path, bits))
        wanted = {path: positions for path, positions in wanted.items() if positions != self.table.deleted[path]}
        changed = [
            self.table.rows[path][position]
            for path, positions in wanted.items()
            for position in sorted(positions - self.table.deleted[path])
        ]
        actions = self._with_dvs(wanted, storage)
        if update:
            for part in PARTS:
                if rows := [(number, part, f"{value}'") for number, of, value in changed if of == part]:
                    actions.append(self._write(rows))
        self._commit(actions)

    def _with_dvs(self, wanted: Mapping[str, set[int]], storage: str) -> list[dict[str, Any]]:
        """Actions that give the files these deletion vectors, all in one file."""
        kept = {path: positions for path, positions in wanted.items() if len(positions) < len(self.table.rows[path])}
        descriptors = self.table.write_dvs({path: dv for path, dv in kept.items() if dv}, storage)
        actions = []
        for path, positions in wanted.items():
            actions.append(self.table.remove(path))
            if path in kept:
                actions.append(self.table.add(path, deleted=positions, descriptor=descriptors.get(path)))
        return actions

    def _swap(self, file: int, bits: int, storage: str, *, respell: bool) -> None:
        for path in self._pick([file]):
            positions = self._positions(path, bits)
            # The same positions inline again would be the same logical file again.
            if positions != self.table.deleted[path] or (positions and storage != "i"):
                actions, live = self._with_dvs({path: positions}, storage), self.table.live
                if respell and path in live:
                    live[path]["path"] = respelled(live[path]["path"])
                self._commit(actions)

    def _readd(self, path: str) -> dict[str, Any]:
        deleted, before = self.table.deleted[path], self.table.live[path]
        action = self.table.add(path, deleted=deleted, descriptor=before.get("deletionVector"), data_change=False)
        action["add"]["path"] = before["path"]
        return action

    def _stray(self, paths: Sequence[str]) -> None:
        strays = [{**self.table.live[path], "path": respelled(self.table.live[path]["path"])} for path in paths]
        strays += [{"path": quote(path)} for path in self.table.rows if path not in self.table.live][:2]
        actions = [{key: stray[key] for key in ("path", "deletionVector") if key in stray} for stray in strays]
        self._commit([{"remove": {**action, "deletionTimestamp": 0, "dataChange": True}} for action in actions])

    def _rewrite(self, paths: Sequence[str]) -> list[dict[str, Any]]:
        live: dict[str, list[Row]] = {}
        for path in paths:
            rows = [row for at, row in enumerate(self.table.rows[path]) if at not in self.table.deleted[path]]
            live.setdefault(rows[0][1] if self.partitioned else "", []).extend(rows)
        actions = [self.table.remove(path, data_change=False) for path in paths]
        return actions + [self._write(rows, data_change=False) for rows in live.values()]

    def _restore(self, target: State) -> None:
        dvs = {path: action.get("deletionVector") for path, action in target.actions.items()}
        actions = [
            self.table.remove(path)
            for path, action in list(self.table.live.items())
            if path not in dvs or dvs[path] != action.get("deletionVector")
        ]
        for path, action in target.actions.items():
            if path not in self.table.live:
                self.table.live[path] = {**action, "dataChange": True}
                self.table.deleted[path] = set(target.deleted[path])
                actions.append({"add": self.table.live[path]})
        self._commit(actions)


def respelled(path: str) -> str:
    """Another path of the same file, whose name begins with `p`, and for that path the first one."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{f'p{name[3:]}' if name.startswith('%70') else f'%70{name[1:]}'}"
