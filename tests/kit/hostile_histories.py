"""Histories with what other writers do to a Delta log, and what Delta shows then. Nothing here knows dvsync.

A logical file is a path as the log writes it, normalised as a URI but never decoded, and a deletion vector's id. What
Iceberg cannot show, such as a physical file that is live twice, must be refused until a later version mends it.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from tests.kit.handmade import COLUMNS, HandmadeTable
from tests.kit.histories import PARTS, Append, Comment, Delete, History, Optimize, Restore, State, Step, Swap, Sync

FEATURES = ["deletionVectors", "typeWidening"]
# The second partition column's text for each of the first one's: 0.1 is another number as a float than as a double.
FACTORS = {PARTS[0]: "0.1", PARTS[1]: "0.5"}


@dataclass(frozen=True)
class Respell:
    """A file removed, and added by another spelling of its path; `keep` adds it without the remove."""

    file: int
    spelling: str
    keep: bool = False


@dataclass(frozen=True)
class StrayRemove:
    """A remove that names a live file by another spelling, or with another deletion vector or none."""

    file: int
    spelling: str | None
    vector: str = "same"


@dataclass(frozen=True)
class RepeatRemove:
    """An earlier remove once more."""

    back: int


@dataclass(frozen=True)
class LoseRemove:
    """Another deletion vector for a file; the remove of the former is missing, or does not name its vector."""

    file: int
    bits: int
    remove: bool


@dataclass(frozen=True)
class Hidden:
    """A file with a column that it alone may have: `same` as the one that Delta may add, in another `case`, of
    another `type`, or another one that carries the next field `id`.
    """

    column: int
    kind: str
    part: int = 0


@dataclass(frozen=True)
class AddColumn:
    """Delta's schema gets a column."""

    column: int


@dataclass(frozen=True)
class Tight:
    """A new file with a deletion vector from the start, whose statistics are those of its live rows."""

    bits: int
    part: int = 0


@dataclass(frozen=True)
class ReplaceOlder:
    """A commit below the newest one is replaced by another: a new file in the place of each of its files."""


@dataclass(frozen=True)
class Widen:
    """The second partition column becomes a double."""


HostileStep = Respell | StrayRemove | RepeatRemove | LoseRemove | Hidden | AddColumn | Tight | ReplaceOlder | Widen
AnyStep = Step | HostileStep

SPELLINGS: Mapping[str, Callable[[str, str], str]] = {
    "absolute": lambda path, location: f"{location}/{path}",
    "decoded": lambda path, _: path.replace("%C3%A4", "ä").replace("%C3%BC", "ü"),
    "dots": lambda path, _: f"./x/../{path}",
    "encoded": lambda path, _: path.replace("-", "%2D"),
    "hex case": lambda path, _: re.sub("%..", lambda escape: escape[0].lower(), path),
    "slashes": lambda path, _: ".//" + path.replace("/", "//"),
}
KINDS = ("same", "case", "type", "id")

_file, _part, _column = st.integers(0, 3), st.integers(0, 1), st.integers(0, 1)
_bits, _spelling = st.integers(1, 62), st.sampled_from(sorted(SPELLINGS))
# By their names, so that a run can leave some out.
VERBS: Mapping[str, st.SearchStrategy[Any]] = {
    "spellings": st.builds(Respell, _file, _spelling, st.booleans()) | st.builds(StrayRemove, _file, _spelling),
    "removes": st.builds(StrayRemove, _file, st.none(), st.sampled_from(["other", "none"]))
    | st.builds(RepeatRemove, st.integers(1, 3))
    | st.builds(LoseRemove, _file, _bits, st.booleans()),
    "columns": st.builds(Hidden, _column, st.sampled_from(KINDS), _part) | st.builds(AddColumn, _column),
    "bounds": st.builds(Tight, _bits, _part),
    "older": st.just(ReplaceOlder()),
    "widening": st.just(Widen()),
}
_first = Append(((6, 0), (5, 1)))
# The faults that were found, one history for each; a sync after every step.
TOURS: Mapping[str, Sequence[AnyStep]] = {
    "spellings": [
        *(StrayRemove(0, spelling) for spelling in ("encoded", "decoded", "absolute")),
        *(Respell(1, spelling, keep) for spelling in SPELLINGS for keep in (False, True)),
        Delete(((0, 0b1), (1, 0b1))),
        StrayRemove(0, "slashes"),
        Restore(1),
    ],
    "removes": [
        StrayRemove(0, None, "other"),
        Delete(((0, 0b11), (1, 0b1))),
        StrayRemove(0, None, "none"),
        LoseRemove(0, 0b100, remove=True),
        LoseRemove(1, 0b110, remove=False),
        Restore(4),
        RepeatRemove(1),
    ],
    "columns": [
        step
        for number, kind in enumerate(KINDS)
        for step in (Hidden(number, kind), AddColumn(number), Hidden(number, kind, 1), Restore(3))
    ],
    "bounds": [Tight(0b11), Swap(2, 0b10), Tight(0b11100, 1), Restore(1), Swap(3, 0), Optimize((2, 3))],
    "older": [_first, Comment(), ReplaceOlder(), Delete(((0, 0b1),)), ReplaceOlder(), Comment()],
    "widening": [Widen(), _first, Restore(3), Delete(((0, 0b1), (1, 0b1)))],
}


def tour(verbs: Iterable[str]) -> list[AnyStep]:
    """The tours of these verbs, one after the other."""
    return [each for verb in verbs for step in [_first, *TOURS[verb]] for each in (step, Sync())]


def delta_key(path: str) -> str:
    """The path as Delta compares it: `java.net.URI` ignores the case of escapes."""
    return re.sub("%..", lambda escape: escape[0].upper(), normalized(path))


def normalized(path: str) -> str:
    """The path as Hadoop's `Path` has it, which is a URI's normal form."""
    scheme, separator, rest = path.rpartition("://")
    return scheme + separator + posixpath.normpath(rest)


def logical_file(action: Mapping[str, Any]) -> tuple[str, str | None]:
    """Delta PROTOCOL.md, "Action Reconciliation": what an add or a remove names."""
    dv = action.get("deletionVector")
    offset = f"@{dv['offset']}" if dv and "offset" in dv else ""
    return delta_key(action["path"]), dv and dv["storageType"] + dv["pathOrInlineDv"] + offset


@dataclass(frozen=True)
class HostileState(State):
    """A version, with its schema; `twins` are files that are live once more, with the positions deleted there."""

    columns: tuple[str, ...] = ()
    is_widened: bool = False
    twins: tuple[tuple[str, frozenset[int]], ...] = ()
    # Files that are gone for a Delta that compares as `java.net.URI` does, and live for one that compares texts.
    doubted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Refusal:
    """Why a version may be refused, or `must` be: Delta's rows cannot be shown, or Delta has none. `names` are the
    files or columns, one of which the error must name.
    """

    names: frozenset[str]
    must: bool


@dataclass
class HostileTable(HandmadeTable):
    """Statistics of ids and values; files with columns of their own: their kinds and values by path and column."""

    columns: list[str] = field(default_factory=list)
    is_widened: bool = False
    kinds: dict[str, dict[str, str]] = field(default_factory=dict)
    values: dict[str, dict[str, list[str | None]]] = field(default_factory=dict)
    # The files from before the widening.
    narrow: set[str] = field(default_factory=set)
    # All spellings of files that the log names by some that differ in the case of escapes alone: Delta compares them
    # as texts or as `java.net.URI` does, as chance in its replay has it.
    doubtful: dict[str, set[str]] = field(default_factory=dict)
    _spelled: dict[str, str] = field(default_factory=dict)

    def protocol(self, features: Sequence[str] = FEATURES) -> dict[str, Any]:
        return super().protocol(features)

    def metadata(self, columns: Sequence[tuple[str, str]] = COLUMNS) -> dict[str, Any]:
        factor = [("factor", "double" if self.is_widened else "float")] if self.partitioned else []
        metadata = super().metadata([*columns, *factor, *((name, "string") for name in self.columns)])
        metadata["configuration"]["delta.enableTypeWidening"] = "true"
        if self.partitioned:
            metadata["partitionColumns"].append("factor")
        if self.is_widened:
            schema = json.loads(metadata["schemaString"])
            changes = [{"fromType": "float", "toType": "double"}]
            schema["fields"][len(columns)]["metadata"]["delta.typeChanges"] = changes
            metadata["schemaString"] = json.dumps(schema)
        return metadata

    def write_file(
        self, rows: Sequence[tuple[int, str, str]], *, name: str | None = None, hidden: tuple[str, str] | None = None
    ) -> str:
        part = rows[0][1]
        path = f"{f'part={part}/' if self.partitioned else ''}{name}.parquet"
        kinds = {} if hidden and hidden[1] == "id" else dict.fromkeys(self.columns, "same")
        if hidden:
            kinds[hidden[0]] = hidden[1]
        texts = [f"own-{row[0]}" if hidden else None for row in rows]
        columns = {"id": pa.array([row[0] for row in rows], pa.int64())}
        if not self.partitioned:
            columns["part"] = pa.array([row[1] for row in rows], pa.string())
        columns["value"] = pa.array([row[2] for row in rows], pa.string())
        if self.partitioned and self.is_widened:
            # Without it PyIceberg takes the partition's value for a float.
            columns["factor"] = pa.array([float(FACTORS[part])] * len(rows), pa.float64())
        for column, kind in kinds.items():
            stored = pa.array([row[0] for row in rows], pa.int64()) if kind == "type" else pa.array(texts, pa.string())
            columns[column.upper() if kind == "case" else column] = stored
        table = pa.table(columns)
        if "id" in kinds.values():
            first = [*(name for name, _ in COLUMNS), "factor"]
            ids = [first.index(name) + 1 if name in first else self._next_id() for name in table.column_names]
            carried = [
                each.with_metadata({"PARQUET:field_id": str(n)}) for each, n in zip(table.schema, ids, strict=True)
            ]
            table = table.cast(pa.schema(carried))
        (self.folder / path).parent.mkdir(exist_ok=True)
        pq.write_table(table, self.folder / path)
        self.rows[path], self.kinds[path] = list(rows), kinds
        self.values[path] = {column: texts for column, kind in kinds.items() if kind in ("same", "case")}
        return path

    def _next_id(self) -> int:
        """The id that the next column gets if ids are counted, and none is skipped."""
        return len(COLUMNS) + self.partitioned + len(self.columns) + 1

    def add(self, path: str, *, deleted: Iterable[int] = (), tight: bool = False, **options: Any) -> dict[str, Any]:
        spelled = self.live[path]["path"] if path in self.live else self._spelled.get(path)
        action = super().add(path, deleted=deleted, **options)["add"]
        action["path"] = spelled or action["path"]
        dead = set(deleted)
        rows = [row for at, row in enumerate(self.rows[path]) if not (tight and at in dead)]
        texts = [row[2] for row in rows if row[2] is not None]
        told = {"id": [row[0] for row in rows], **({"value": texts} if texts else {})}
        stats = {
            "numRecords": len(self.rows[path]),
            "minValues": {name: min(values) for name, values in told.items()},
            "maxValues": {name: max(values) for name, values in told.items()},
            "nullCount": {"id": 0, "value": len(rows) - len(texts)},
            "tightBounds": tight or not dead,
        }
        action["stats"] = json.dumps(stats)
        if self.partitioned:
            action["partitionValues"]["factor"] = FACTORS[self.rows[path][0][1]]
        return {"add": action}

    def respell(self, path: str, spelled: str) -> dict[str, Any]:
        """The add action of a live file by another spelling, which it keeps."""
        self._spelled[path] = spelled
        self.live[path] = {**self.live[path], "path": spelled}
        return {"add": self.live[path]}


@dataclass
class HostileHistory(History):
    """A table on which hostile steps are played, too; what must be refused is mended before the next step."""

    commits: list[Sequence[dict[str, Any]]] = field(default_factory=lambda: [()])
    is_replaced: bool = False
    # An older commit was replaced, and all since then is refused: readers may have the rows of before.
    is_stale: bool = False
    # The version that was shown last, and its rows then.
    shown: tuple[int, list[Any]] = (0, [])
    # The second add of a file that is live twice, with its path and what is deleted there.
    _twins: list[tuple[str, frozenset[int], dict[str, Any]]] = field(default_factory=list)
    # The adds of `doubted` files, by path.
    _doubted: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table: HostileTable = HostileTable(self.folder, partitioned=self.partitioned)
        self.table.create()
        self.states = [HostileState({}, {})]

    def play_any(self, step: AnyStep) -> None:
        """Write the step's version, after one that mends the newest if that cannot be shown."""
        self.mend()
        match step:
            case Respell() | StrayRemove() | LoseRemove():
                for path in self._pick([step.file]):
                    self._disturb(path, step)
            case RepeatRemove(back):
                self._repeat_remove(back)
            case Hidden(column, kind, part):
                name = "own" if kind == "id" else f"c{column}"
                path = self.table.write_file(self._new_rows(4, part), name=self._new_name(), hidden=(name, kind))
                self._commit([self.table.add(path)])
            case AddColumn(column) if f"c{column}" not in self.table.columns:
                self.table.columns.append(f"c{column}")
                self._commit([{"metaData": self.table.metadata()}], only_moved=True)
            case Tight(bits, part):
                path = self.table.write_file(self._new_rows(6, part), name=self._new_name())
                self._commit([self.table.add(path, deleted=self._positions(path, bits), tight=True)])
            case ReplaceOlder():
                self._replace_older()
            case Widen() if self.partitioned and not self.table.is_widened:
                self.table.is_widened = True
                self.table.narrow = set(self.table.rows)
                self._commit([{"metaData": self.table.metadata()}], only_moved=True)
            case _:
                self.play(step)

    def _disturb(self, path: str, step: Respell | StrayRemove | LoseRemove) -> None:
        match step:
            case Respell(_, spelling, keep):
                self._respell(path, self._spell(path, spelling), keep=keep)
            case StrayRemove(_, spelling, vector):
                self._stray_remove(path, spelling, vector)
            case LoseRemove(_, bits, remove):
                self._lose_remove(path, bits, remove=remove)

    def mend(self) -> None:
        """Remove second logical files and what Delta cannot read, and rewrite what else Iceberg may not show."""
        state = self._state(-1)
        removes = [_remove_of(add) for add in (*(add for *_, add in self._twins), *self._doubted.values())]
        kinds = {path: set(self._misfits(path, state).values()) for path in self.table.live}
        rewritten = [path for path, found in kinds.items() if found & {"case", "narrow", "doubtful"}]
        for path in rewritten:
            live = self.table.live[path]
            texts = self.table.doubtful.get(path, {live["path"]}) - {live["path"]}
            removes += [_remove_of({**live, "path": text}) for text in texts]
        removes += [self.table.remove(path) for path, found in kinds.items() if "type" in found]
        self._twins, self._doubted = [], {}
        self._commit([*removes, *self._rewrite([path for path in rewritten if path in self.table.live])])

    def refusal(self, version: int) -> Refusal | None:
        """Whether a version may be refused."""
        state = self._state(version)
        if state.twins:
            return Refusal(frozenset(_named(path) for path, _ in state.twins), must=True)
        found = [self._misfits(path, state) for path in state.deleted]
        names = frozenset(name for misfits in found for name in misfits) | state.doubted
        return Refusal(names, must=self.is_unreadable(version)) if names else None

    def is_unreadable(self, version: int) -> bool:
        """Whether Delta itself cannot read a version: a column of a file has another type."""
        state = self._state(version)
        return any("type" in self._misfits(path, state).values() for path in state.deleted)

    def rows(self, version: int) -> list[Any]:
        """Delta's rows at `version`."""
        state, rows = self._state(version), []
        for path, deleted in (*state.deleted.items(), *state.twins):
            factor = pa.scalar(
                float(FACTORS[self.table.rows[path][0][1]]), pa.float64() if state.is_widened else pa.float32()
            )
            own = [self.table.values[path].get(column) for column in state.columns]
            rows += [
                (
                    *row,
                    *([factor.as_py()] if self.partitioned else []),
                    *(values and values[position] for values in own),
                )
                for position, row in enumerate(self.table.rows[path])
                if position not in deleted
            ]
        return rows

    def _state(self, version: int) -> HostileState:
        state = self.states[version]
        assert isinstance(state, HostileState)
        return state

    def _misfits(self, path: str, state: HostileState) -> dict[str, str]:
        """The columns of a file that may stand in the way of `state`, with the reason."""
        kinds = {name: kind for name, kind in self.table.kinds[path].items() if kind != "same"}
        found = {name: kind for name, kind in kinds.items() if kind == "id" or name in state.columns}
        found |= {"factor": "narrow"} if state.is_widened and path in self.table.narrow else {}
        return found | ({_named(path): "doubtful"} if path in self.table.doubtful else {})

    def _commit(self, actions: Sequence[dict[str, Any]], *, only_moved: bool = False) -> None:
        before = len(self.states)
        super()._commit(actions, only_moved=only_moved)
        if len(self.states) > before:
            twins = tuple((path, dead) for path, dead, _ in self._twins)
            schema = (tuple(self.table.columns), self.table.is_widened)
            doubted = frozenset(map(_named, self._doubted))
            plain = self.states[-1]
            self.states[-1] = HostileState(plain.deleted, plain.actions, only_moved, *schema, twins, doubted)
            self.commits.append(actions)

    def _new_name(self) -> str:
        return f"pärt-{len(self.table.rows):03d}"

    def _write(self, rows: Sequence[Any], *, data_change: bool = True) -> dict[str, Any]:
        return self.table.add(self.table.write_file(rows, name=self._new_name()), data_change=data_change)

    def _new_file(self, count: int, part: int) -> dict[str, Any]:
        return self._write(self._new_rows(count, part))

    def _new_rows(self, count: int, part: int) -> list[Any]:
        """Rows with a null value now and then."""
        first = self._ids + 1
        self._ids += count
        return [(id_, PARTS[part], f"v{id_}" if id_ % 3 else None) for id_ in range(first, first + count)]

    def _spell(self, path: str, spelling: str) -> str:
        """Another spelling of a live file's path."""
        live, spelled = self.table.live[path]["path"], SPELLINGS[spelling](quote(path), self.table.location)
        if normalized(live) != normalized(spelled) and delta_key(live) == delta_key(spelled):
            self.table.doubtful.setdefault(path, set()).update((live, spelled))
        return spelled

    def _respell(self, path: str, spelled: str, *, keep: bool) -> None:
        old = self.table.live[path]
        is_same = delta_key(spelled) == delta_key(old["path"])
        add = self.table.respell(path, spelled)
        if keep and not is_same:
            self._twins = [(path, frozenset(self.table.deleted[path]), old)]
        removes = [] if keep or is_same else [_remove_of(old)]
        self._commit([*removes, add], only_moved=True)

    def _stray_remove(self, path: str, spelling: str | None, vector: str) -> None:
        live = self.table.live[path]
        remove = _remove_of(live)
        if spelling:
            remove["remove"]["path"] = self._spell(path, spelling)
        if vector != "same":
            remove["remove"].pop("deletionVector", None)
        if vector == "other":
            remove["remove"]["deletionVector"] = self.table.write_dvs({path: {5}}, "i")[path]
        if logical_file(remove["remove"]) == logical_file(live):
            self.table.remove(path)
            if path in self.table.doubtful:
                self._doubted = {path: live}
        self._commit([remove], only_moved=path in self.table.live)

    def _repeat_remove(self, back: int) -> None:
        live = set(map(logical_file, self.table.live.values()))
        told = [action for commit in self.commits for action in commit if "remove" in action]
        dead = [action for action in told if logical_file(action["remove"]) not in live]
        self._commit(dead[-back:][:1], only_moved=True)

    def _lose_remove(self, path: str, bits: int, *, remove: bool) -> None:
        old, dead, positions = self.table.live[path], self.table.deleted[path], self._positions(path, bits)
        if positions == dead or len(positions) in (0, len(self.table.rows[path])):
            return
        add = self.table.add(path, deleted=positions)
        without = {name: value for name, value in old.items() if name != "deletionVector"}
        self._twins = [(path, frozenset(dead), old)] if not remove or "deletionVector" in old else []
        self._commit([*([_remove_of(without)] if remove else []), add])

    def _replace_older(self) -> None:
        """Replace the newest older commit of new files that are live in all versions since."""
        for version in range(self.table.version - 1, 0, -1):
            adds = [action.get("add") for action in self.commits[version]]
            since, before = self.states[version:], self.states[version - 1].actions
            paths = [path for path, add in since[0].actions.items() if add in adds and path not in before]
            if len(paths) == len(adds) and all(state.actions.get(path) in adds for state in since for path in paths):
                self._replace(version, paths)
                return

    def _replace(self, version: int, paths: Sequence[str]) -> None:
        new = {path: self._new_file(3, PARTS.index(self.table.rows[path][0][1])) for path in paths}
        fresh = {path: list(self.table.live)[at - len(paths)] for at, path in enumerate(paths)}
        for path in paths:
            self.table.remove(path)
        for at in range(version, len(self.states)):
            state = self.states[at]
            deleted = {fresh.get(path, path): () if path in fresh else dead for path, dead in state.deleted.items()}
            actions = {
                fresh.get(path, path): new[path]["add"] if path in fresh else add for path, add in state.actions.items()
            }
            self.states[at] = replace(
                state, deleted={path: frozenset(dead) for path, dead in deleted.items()}, actions=actions
            )
        newest, self.table.version = self.table.version, version - 1
        self.table.commit(list(new.values()))
        self.table.version, self.is_replaced = newest, True
        self.commits[version] = list(new.values())


def _named(path: str) -> str:
    """The end of a file's name, which is the same in every spelling."""
    return path[-len("000.parquet") :]


def _remove_of(add: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: add[name] for name in ("path", "deletionVector") if name in add}
    return {"remove": {**named, "deletionTimestamp": 0, "dataChange": True}}
