"""Plans which data files need a mirror, and makes mirrors: in this process, or in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from hashlib import blake2b
from operator import attrgetter, or_

import pyarrow.parquet as pq

from daemon.config.settings import MirrorSetting
from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput, MirrorKind, Unsupported, errors_at
from daemon.mirror.copying import MirrorCopy, copy_bytes
from daemon.mirror.decision import plan_mirror
from daemon.mirror.footer import mend_footer
from daemon.mirror.parquet import encode_footer, load_footer
from daemon.pipeline.inspection import Inspector
from daemon.store.durable import force_to_disk
from daemon.store.storage import FileIOStorage, map_files
from daemon.translate.file_schema import FileTraits
from daemon.translate.schema import TableSchema

# Each includes those before. Mirrors of kind `rewrite` are not made yet.
KINDS: Mapping[MirrorSetting, tuple[MirrorKind, ...]] = {
    "refuse": (),
    "footer": ("footer",),
    "copy": ("footer", "copy"),
    "rewrite": ("footer", "copy"),
}


@dataclass(frozen=True)
class WantedMirror:
    """A mirror that a file of Delta needs. `made` tells what its bytes are; `size_bytes` counts them.

    The first `kept_bytes` are the data file's, `tail` the others; None if they have to be made again.
    """

    data_file: str
    data_file_bytes: int
    kind: MirrorKind
    why: str
    made: str
    kept_bytes: int
    size_bytes: int
    tail: bytes | None

    @property
    def surplus_bytes(self) -> int:
        return self.size_bytes - self.data_file_bytes


@dataclass(frozen=True)
class MirrorTask:
    """The mirror to make at `path`."""

    wanted: WantedMirror
    path: str


@dataclass(frozen=True)
class WantedMirrors:
    """What some files need, and the traits of these files as they will be shown."""

    mirrors: tuple[WantedMirror, ...]
    traits: FileTraits


@dataclass(frozen=True)
class MirrorPlanner:
    """Inspects files of Delta, and plans the mirrors of those that readers would misread.

    `kinds` are those that may be made. Files of the Delta table `table_id` at one path are the same file.
    """

    storage: FileIOStorage
    table: TableSchema
    kinds: tuple[MirrorKind, ...]
    table_id: str

    def plan(self, adds: Sequence[AddFile]) -> WantedMirrors:
        """Raises as `Inspector.inspect` does for a file that no mirror of these kinds helps."""
        inspector = Inspector(self.storage, self.table)
        found = map_files(partial(self._plan_file, inspector), adds, attrgetter("path"))
        return WantedMirrors(
            tuple(mirror for mirror, _ in found if mirror), reduce(or_, (traits for _, traits in found), FileTraits())
        )

    def plan_part(self, _part: int, adds: Iterable[AddFile]) -> Iterator[WantedMirrors]:
        """Plan the files of one part of a table's state."""
        planned = self.plan(list(adds))
        # Thousands of footers would not fit into memory.
        yield replace(planned, mirrors=tuple(replace(each, tail=None) for each in planned.mirrors))

    def _plan_file(self, inspector: Inspector, add: AddFile) -> tuple[WantedMirror | None, FileTraits]:
        """Return the mirror that a file needs, if any, and the traits that it is shown with."""
        accepted: list[FileTraits] = []

        def check(footer: pq.FileMetaData) -> None:
            accepted.append(inspector.check_file(add, footer)[1].traits)

        try:
            return None, inspector.inspect_file(add)[1].traits
        except Unsupported as error:
            if error.lifted_by not in self.kinds:
                raise
            refused = error
        with errors_at(path=add.path):
            footer = load_footer(self.storage, add.path)
            planned = plan_mirror(add.path, footer.metadata, self.table, check)
        if planned is None or planned.kind not in self.kinds:
            refused.lifted_by = planned.kind if planned else None
            raise refused
        is_copy = planned.footer is None
        tail = b"" if planned.footer is None else encode_footer(planned.footer)
        kept_bytes = add.size if is_copy else footer.start
        wanted = WantedMirror(
            data_file=add.path,
            data_file_bytes=add.size,
            kind=planned.kind,
            why=planned.reason,
            made=self._hash(add.size, planned.kind, tail),
            kept_bytes=kept_bytes,
            size_bytes=kept_bytes + len(tail),
            tail=tail,
        )
        return wanted, accepted[-1] | FileTraits(has_mirrors=True)

    def _hash(self, data_file_bytes: int, kind: MirrorKind, tail: bytes) -> str:
        before = f"{self.table_id} {data_file_bytes} {kind} ".encode()
        return blake2b(before + tail, digest_size=8).hexdigest()

    def make(self, tasks: Sequence[MirrorTask], target_properties: Mapping[str, str]) -> None:
        """Make mirrors. They are whole and on the disk when this returns.

        Raises `ObjectMissing`, `ObjectStoreAway`, and `CorruptInput` if a data file has changed since it was planned.
        """
        map_files(partial(self._make_file, target_properties), tasks, attrgetter("path"))
        force_to_disk([task.path for task in tasks])

    def _make_file(self, target_properties: Mapping[str, str], task: MirrorTask) -> None:
        wanted = task.wanted
        with errors_at(path=wanted.data_file):
            tail = self._tail_of(wanted) if wanted.tail is None else wanted.tail
            copy = MirrorCopy(wanted.data_file, wanted.kept_bytes, tail, task.path)
            copy_bytes(copy, self.storage, target_properties)

    def _tail_of(self, wanted: WantedMirror) -> bytes:
        if wanted.kind == "copy":
            return b""
        footer = load_footer(self.storage, wanted.data_file)
        tail = encode_footer(mend_footer(footer.metadata, self.table))
        if self._hash(wanted.data_file_bytes, wanted.kind, tail) != wanted.made:
            what = "the file has another footer than when it was inspected"
            raise CorruptInput(what, path=wanted.data_file, hint="Restore the file in the Delta table.")
        return tail


def make_on_spark(
    planner: MirrorPlanner, target_properties: Mapping[str, str], tasks: Iterable[MirrorTask]
) -> Iterator[Sequence[MirrorTask]]:
    """Make the mirrors that one Spark task is given, and yield them."""
    given = list(tasks)
    planner.make(given, target_properties)
    yield given
