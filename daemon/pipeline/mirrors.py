"""Plans which data files need a mirror, and makes mirrors: in this process, or in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from hashlib import blake2b
from operator import attrgetter, or_
from typing import Any

import pyarrow.parquet as pq

from daemon.config.settings import MirrorSetting
from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput, MirrorKind, SyncError, Unsupported, errors_at
from daemon.mirror.compact import Struct
from daemon.mirror.copying import MirrorCopy
from daemon.mirror.decision import plan_mirror
from daemon.mirror.defaults import parse_default
from daemon.mirror.footer import mend_footer
from daemon.mirror.making import make_mirrors
from daemon.mirror.parquet import ROWS, encode_footer, load_footer, parse_footer
from daemon.mirror.rewriting import RewriteTask, check_rewrite
from daemon.pipeline.inspection import Inspector
from daemon.store.storage import FileIOStorage, map_files
from daemon.translate.file_schema import FileSchema, FileTraits
from daemon.translate.metrics import Metrics, metrics_of
from daemon.translate.partition_values import partition_of
from daemon.translate.schema import TableSchema

# Each includes those before.
KINDS: Mapping[MirrorSetting, tuple[MirrorKind, ...]] = {
    "refuse": (),
    "footer": ("footer",),
    "copy": ("footer", "copy"),
    "rewrite": ("footer", "copy", "rewrite"),
}


@dataclass(frozen=True)
class WantedMirror:
    """A mirror that a file of Delta needs. Those of one data file with the same `made` have the same rows and schema.

    If it is not rewritten, its first `kept_bytes` are the data file's, then comes `tail`; None if it has to be made
    again. The size of one that is rewritten is a guess.
    """

    data_file: str
    data_file_bytes: int
    kind: MirrorKind
    why: str
    made: str
    size_bytes: int
    kept_bytes: int = 0
    tail: bytes | None = None
    partition: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MirrorTask:
    """The mirror to make at `path`."""

    wanted: WantedMirror
    path: str


@dataclass(frozen=True)
class WantedMirrors:
    """What some files need, and the traits and metrics of these files as they will be shown, by Delta's paths."""

    mirrors: tuple[WantedMirror, ...]
    traits: FileTraits
    metrics: Mapping[str, Metrics] = field(default_factory=dict)

    def __or__(self, other: WantedMirrors) -> WantedMirrors:
        return WantedMirrors(
            self.mirrors + other.mirrors, self.traits | other.traits, {**self.metrics, **other.metrics}
        )


@dataclass(frozen=True)
class MirrorPlanner:
    """Inspects files of Delta, plans the mirrors of those that readers would misread, and makes them.

    `kinds` are those that may be made. Files of the Delta table `table_id` at one path are the same file if they have
    the same size and footer. `defaults` has the texts of EXISTS_DEFAULT by physical name.
    """

    storage: FileIOStorage
    table: TableSchema
    kinds: tuple[MirrorKind, ...]
    table_id: str
    defaults: Mapping[str, str] = field(default_factory=dict)

    def plan(self, adds: Sequence[AddFile]) -> WantedMirrors:
        """Raises as `Inspector.inspect` does for a file that no mirror of these kinds helps."""
        inspector = Inspector(self.storage, self.table)
        found = map_files(partial(self._plan_file, inspector), adds, attrgetter("path"))
        return WantedMirrors(
            tuple(mirror for mirror, _, _ in found if mirror),
            reduce(or_, (traits for _, traits, _ in found), FileTraits()),
            {add.path: metrics for add, (_, _, metrics) in zip(adds, found, strict=True)},
        )

    def plan_on_spark(self, adds: Iterable[AddFile]) -> Iterator[WantedMirrors]:
        """Plan the files that one Spark task is given."""
        planned = self.plan(list(adds))
        # Thousands of footers would not fit into memory.
        yield replace(planned, mirrors=tuple(replace(each, tail=None) for each in planned.mirrors))

    def plan_part(self, _part: int, adds: Iterable[AddFile]) -> Iterator[WantedMirrors]:
        """Plan the files of one part of a table's state, without metrics."""
        for planned in self.plan_on_spark(adds):
            yield replace(planned, metrics={})

    def _plan_file(self, inspector: Inspector, add: AddFile) -> tuple[WantedMirror | None, FileTraits, Metrics]:
        """Return the mirror that a file needs, if any, and the traits and metrics that it is shown with."""
        accepted: list[tuple[Metrics, FileSchema]] = []

        def check(footer: pq.FileMetaData) -> None:
            accepted.append(inspector.check_file(add, footer))

        end = inspector.read_end(add)
        try:
            metrics, file = inspector.inspect_file(add, end)
            return None, file.traits, metrics
        except Unsupported as error:
            if error.lifted_by not in self.kinds:
                raise
            refused = error
        with errors_at(path=add.path):
            footer = parse_footer(end, add.size)
            planned = plan_mirror(add.path, footer.metadata, self.table, check)
            if planned is None or planned.kind not in self.kinds:
                raise refused.lift_by(planned.kind if planned else None)
            wanted = WantedMirror(add.path, add.size, planned.kind, planned.reason, "", add.size)
            # Another file that comes to the same path, even of the same size, has another footer.
            own_footer = end[footer.start - add.size :]
            if planned.kind == "rewrite":
                wanted, traits, metrics = self._plan_rewrite(wanted, add, footer.metadata, own_footer)
            else:
                tail = encode_footer(planned.footer) if planned.footer else b""
                kept_bytes = footer.start if planned.footer else add.size
                wanted = replace(wanted, size_bytes=kept_bytes + len(tail), kept_bytes=kept_bytes, tail=tail)
                metrics, file = accepted[-1]
                wanted, traits = self._named(wanted, tail or own_footer), file.traits
        return wanted, traits | FileTraits(has_mirrors=True), metrics

    def _plan_rewrite(
        self, wanted: WantedMirror, add: AddFile, footer: Struct, own_footer: bytes
    ) -> tuple[WantedMirror, FileTraits, Metrics]:
        values = partition_of(add, self.table, self.table.spec_id)
        sources = [each.source_id for each in self.table.spec.fields]
        wanted = replace(wanted, partition=dict(zip(sources, values, strict=True)))
        task = self._rewrite_task(wanted, "")
        plan, file, variants = check_rewrite(footer, task)
        values_in_it = (
            sorted(task.partition.items()),
            # Without the table's metadata, no defaults are known. A file that has the columns is planned alike.
            sorted((each, value) for each, value in task.defaults.items() if each in plan.lacking),
            self.table.time_zone,
            sorted(variants),
        )
        wanted = self._named(wanted, own_footer + plan.schema.serialize().to_pybytes() + repr(values_in_it).encode())
        return wanted, file.traits, metrics_of(add, self.table, footer[ROWS][1])

    def _rewrite_task(self, wanted: WantedMirror, path: str) -> RewriteTask:
        table, defaults = self.table, dict[int, Any]()
        for name in table.filled & self.defaults.keys():
            column = table.schema.find_field(table.field_ids[name.lower()])
            defaults[column.field_id] = parse_default(
                self.defaults[name], column.field_type, column.name, table.time_zone
            )
        return RewriteTask(wanted.data_file, path, table, wanted.partition, defaults)

    def _named(self, wanted: WantedMirror, contents: bytes) -> WantedMirror:
        of_file = f"{self.table_id} {wanted.data_file_bytes} {wanted.kind} ".encode()
        return replace(wanted, made=blake2b(of_file + contents, digest_size=8).hexdigest())

    def make(self, tasks: Sequence[MirrorTask], target_properties: Mapping[str, str]) -> Iterator[dict[str, int]]:
        """Make mirrors, and yield the sizes of some by path once they are whole and on the disk.

        Raises as `make_mirrors` does, and `CorruptInput` if a data file has changed since it was planned.
        """
        makings = map_files(self._making_of, tasks, lambda task: task.wanted.data_file)
        return make_mirrors(self.storage, target_properties, makings)

    def _making_of(self, task: MirrorTask) -> MirrorCopy | RewriteTask:
        wanted = task.wanted
        if wanted.kind == "rewrite":
            return self._rewrite_task(wanted, task.path)
        with errors_at(path=wanted.data_file):
            tail = self._tail_of(wanted) if wanted.tail is None else wanted.tail
        return MirrorCopy(wanted.data_file, wanted.kept_bytes, tail, task.path)

    def _tail_of(self, wanted: WantedMirror) -> bytes:
        if wanted.kind == "copy":
            return b""
        footer = load_footer(self.storage, wanted.data_file, wanted.data_file_bytes - wanted.kept_bytes)
        tail = encode_footer(mend_footer(footer.metadata, self.table))
        if self._named(wanted, tail) != wanted:
            what = "the file has another footer than when it was inspected"
            raise CorruptInput(what, hint="Restore the file in the Delta table.")
        return tail


def make_on_spark(
    planner: MirrorPlanner, target_properties: Mapping[str, str], tasks: Iterable[MirrorTask]
) -> Iterator[dict[str, int] | SyncError]:
    """Make the mirrors that one Spark task is given, and yield their sizes; at the end what it failed with, if so."""
    try:
        yield from planner.make(list(tasks), target_properties)
    except SyncError as error:
        # If it were raised, the sizes of all the job's mirrors would be lost.
        yield error
