"""Mirrors in the place of Delta's files. Pure: what reads Delta's actions next sees a mirror's path and size.

A mirror's name is made of what tells it from all others, so that a rebuild recognises it in the Iceberg table alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from hashlib import blake2b
from typing import NamedTuple, Self, TypeVar

import pyarrow as pa
from msgspec.structs import replace as with_fields

from daemon.delta.actions import AddFile, Commit, FileAction
from daemon.delta.table_state import TableState
from daemon.delta.uri import usual_uri
from state import MirrorRecord

T = TypeVar("T")
Action = TypeVar("Action", bound=FileAction)

# The intent that made it, the data file, what was made of it, and how.
MIRROR_NAME = re.compile(r"\d+-([0-9a-f]{32})-([0-9a-f]{16})-(footer|copy|rewrite)-mirror\.parquet")


class MirrorName(NamedTuple):
    """What a mirror's name says. Those of one data file that are made alike have the same bytes."""

    data_file: str  # a hash of its path
    made: str
    kind: str


def name_mirror(intent_id: int, data_file: str, made: str, kind: str) -> str:
    """Return a file name that no other mirror has: cleanup may be about to remove an older one of the same bytes."""
    return f"{intent_id}-{hash_path(data_file)}-{made}-{kind}-mirror.parquet"


def find_mirror_name(path: str) -> MirrorName | None:
    """Return what the name of a file says; None if it is no mirror."""
    found = MIRROR_NAME.fullmatch(path.rpartition("/")[2]) if path.endswith("-mirror.parquet") else None
    return MirrorName(*found.groups()) if found else None


def hash_path(data_file: str) -> str:
    return blake2b(data_file.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Mirrors:
    """The mirrors that stand for files of the Delta table at `location`, by these files' paths."""

    location: str
    by_data_file: Mapping[str, MirrorRecord]

    @classmethod
    def of(cls, location: str, mirrors: Iterable[MirrorRecord]) -> Self:
        return cls(location, {mirror.data_file: mirror for mirror in mirrors})

    def applied(self, action: Action) -> Action:
        """Return an action of a mirrored file as one of its mirror.

        Its `uri` is always named, and so its identity is Delta's: what Delta compares, and `fold_identity` folds, is
        independent of where the mirror is.
        """
        mirror = self.by_data_file.get(action.path)
        if mirror is None:
            return action
        uri = usual_uri(self.location, action.path) if action.uri is None else action.uri
        sizes = {"size": mirror.size_bytes} if isinstance(action, AddFile) else {}
        return with_fields(action, path=mirror.path, uri=uri, **sizes)

    def place_of(self, data_file: str) -> str:
        """Return the path at which Iceberg shows a file of Delta."""
        mirror = self.by_data_file.get(data_file)
        return mirror.path if mirror else data_file

    def undone(self, add: AddFile) -> AddFile:
        """Return an add as Delta has it; one that is of no mirror as it is."""
        mirror = self._by_path.get(add.path)
        return with_fields(add, path=mirror.data_file, size=mirror.data_file_bytes) if mirror else add

    @property
    def surplus_bytes(self) -> int:
        """By how much the mirrors are larger than their data files."""
        return sum((mirror.size_bytes or 0) - mirror.data_file_bytes for mirror in self.by_data_file.values())

    @cached_property
    def _by_path(self) -> dict[str, MirrorRecord]:
        return {mirror.path: mirror for mirror in self.by_data_file.values()}

    def applied_to_all(self, actions: Iterable[Action]) -> Iterator[Action]:
        return map(self.applied, actions)

    def applied_to_live(self, adds: Iterable[AddFile]) -> Iterator[AddFile]:
        """As `applied`, to the files of a state. One of another size is another file, which came to the path later."""
        for add in adds:
            mirror = self.by_data_file.get(add.path)
            yield self.applied(add) if mirror and mirror.data_file_bytes == add.size else add

    def applied_to_commits(self, commits: Sequence[Commit], table_id: str | None) -> list[Commit]:
        """Return commits of the Delta table of which the mirrors are.

        If they bring another `table_id`, what they add are other files, even if these have the same names.
        """
        is_same = all(commit.metadata is None or commit.metadata.id == table_id for commit in commits)
        return [
            with_fields(
                commit,
                adds=tuple(self.applied_to_all(commit.adds)) if is_same else commit.adds,
                removes=tuple(self.applied_to_all(commit.removes)),
            )
            for commit in commits
        ]


@dataclass(frozen=True)
class MirroredState(TableState):
    """The state of a Delta table with mirrors in the place of some of its files."""

    delta: TableState
    mirrors: Mirrors

    @classmethod
    def over(cls, state: TableState, mirrors: Mirrors) -> TableState:
        """Return `state` as it is if there are no mirrors."""
        known = {each.name: getattr(state, each.name) for each in fields(TableState)}
        return cls(**known, delta=state, mirrors=mirrors) if mirrors.by_data_file else state

    def size_in_delta(self, add: AddFile) -> int:
        return self.mirrors.undone(add).size

    def read_adds(self, *, with_dv_only: bool = False) -> Iterator[AddFile]:
        return self.mirrors.applied_to_live(self.delta.read_adds(with_dv_only=with_dv_only))

    def find_adds(self, is_wanted: pa.BooleanArray) -> Iterator[AddFile]:
        return self.mirrors.applied_to_live(self.delta.find_adds(is_wanted))

    def map_adds(
        self,
        function: Callable[[int, Iterable[AddFile]], Iterator[T]],
        parts: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Iterable[T]:
        """As `TableState.map_adds`, but a part is sorted by the paths of Delta's files."""
        return self.delta.map_adds(partial(_on_mirrors, self.mirrors, function), parts, on_progress)


def _on_mirrors(
    mirrors: Mirrors, function: Callable[[int, Iterable[AddFile]], Iterator[T]], part: int, adds: Iterable[AddFile]
) -> Iterator[T]:
    return function(part, mirrors.applied_to_live(adds))
