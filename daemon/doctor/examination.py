"""Examines a table's files for `dvsync doctor`: reads every footer and counts every fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache

from pyiceberg.types import TimestamptzType

from daemon.delta.actions import AddFile
from daemon.delta.deletion_vector import find_place
from daemon.errors import MirrorKind, SyncError, Unsupported
from daemon.mirror.copying import is_copied_by_store
from daemon.pipeline.inspection import Inspector
from daemon.pipeline.mirrors import MirrorPlanner, WantedMirror
from daemon.store.storage import FileIOStorage
from daemon.translate.readers import Fault
from daemon.translate.schema import TableSchema


@dataclass
class Examination:
    """A summary of a table's live files. Columns have their full names.

    `refusals` counts the files that are refused, by message and hint; `refused` has the path of one of each. `mirrors`
    counts the files that some reader would misread, and not their mirrors, by the kind of these; `mirror_bytes` are the
    bytes of these, `passing_bytes` those of the copied ones that would pass through dvsync. `faults` are those that no
    reader of the table misreads, with their columns.
    """

    files: int = 0
    physical_rows: int = 0
    files_with_deletions: int = 0
    deleted_rows: int = 0
    files_without_stats: int = 0
    int96_columns: set[str] = field(default_factory=set)
    millis_columns: set[str] = field(default_factory=set)
    view_columns: set[str] = field(default_factory=set)
    hidden_columns: set[str] = field(default_factory=set)
    partitions_without_zone: set[str] = field(default_factory=set)
    faults: set[tuple[Fault, str]] = field(default_factory=set)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    mirrors: Counter[MirrorKind] = field(default_factory=Counter)
    mirror_bytes: Counter[MirrorKind] = field(default_factory=Counter)
    passing_bytes: Counter[MirrorKind] = field(default_factory=Counter)

    def refuse(self, message: str, hint: str, path: str) -> None:
        self.refusals[message, hint] += 1
        self.refused.setdefault((message, hint), path)

    def add(self, other: Examination) -> None:
        for each in fields(self):
            mine, more = getattr(self, each.name), getattr(other, each.name)
            # Numbers are added, columns and paths united.
            setattr(self, each.name, mine + more if isinstance(mine, int | Counter) else more | mine)


@dataclass(frozen=True)
class ExaminationTask:
    """Inspects one part of the live files of the table at `location`. Those with mirrors of `kinds` are followed.

    `planner` plans mirrors of all kinds, which would be in the folder `mirrors`.
    """

    location: str
    mirrors: str
    planner: MirrorPlanner
    kinds: Container[MirrorKind]

    @property
    def table(self) -> TableSchema:
        return self.planner.table

    @property
    def storage(self) -> FileIOStorage:
        return self.planner.storage

    def __call__(self, _part: int, adds: Iterable[AddFile]) -> Iterator[Examination]:
        seen, inspector = Examination(), Inspector(self.storage, self.table)
        # A file of deletion vectors serves many data files, and is asked for once.
        stat = cache(self.storage.stat)
        for add in adds:
            self._examine(add, inspector, seen)
            try:
                place = find_place(self.location, add.deletion_vector) if add.deletion_vector else None
                if place and place.offset is not None:
                    stat(place.path)
            except SyncError as error:
                seen.refuse(f"its deletion vector: {error}", error.hint, add.path)
        yield seen

    def _examine(self, add: AddFile, inspector: Inspector, seen: Examination) -> None:
        seen.files += 1
        if add.deletion_vector:
            seen.files_with_deletions += 1
            seen.deleted_rows += add.deletion_vector.cardinality
        if not add.stats:
            seen.files_without_stats += 1
        try:
            metrics, file = inspector.inspect_file(add)
        except SyncError as error:
            mirror: WantedMirror | None = None
            record_count = 0
            if isinstance(error, Unsupported) and error.lifted_by:
                mirror, record_count = self._find_mirror(add)
                # The file may have another fault, which needs more.
                error.lift_by(mirror.kind if mirror else None)
            if mirror:
                seen.mirrors[mirror.kind] += 1
                seen.mirror_bytes[mirror.kind] += mirror.size_bytes
                place, told = f"{self.mirrors}/mirror.parquet", self.storage.properties
                if not is_copied_by_store(mirror.data_file, mirror.kept_bytes, place, told, told):
                    seen.passing_bytes[mirror.kind] += mirror.kept_bytes
            if mirror and mirror.kind in self.kinds:
                seen.physical_rows += record_count
            else:
                seen.refuse(error.message, error.hint, add.path)
            return
        seen.physical_rows += metrics.record_count
        schema, ids = self.table.schema, self.table.field_ids
        seen.int96_columns |= {str(schema.find_column_name(field_id)) for field_id in file.int96}
        millis = {name.lower() for name in file.millis} & ids.keys()
        seen.millis_columns |= {str(schema.find_column_name(ids[name])) for name in millis}
        seen.view_columns |= {str(schema.find_column_name(field_id)) for field_id in file.views}
        seen.hidden_columns |= {".".join(column) for column in file.hidden}
        seen.faults |= file.faults
        for partition in self.table.spec.fields:
            value = add.partition_values.get(self.table.physical_names[partition.source_id])
            zoned = isinstance(schema.find_type(partition.source_id), TimestamptzType)
            if value and zoned and not value.endswith("Z"):
                seen.partitions_without_zone.add(partition.name)

    def _find_mirror(self, add: AddFile) -> tuple[WantedMirror | None, int]:
        """Return the mirror that lifts the refusal of a file, and its rows; None if none does."""
        with suppress(SyncError):
            planned = self.planner.plan([add])
            return next(iter(planned.mirrors), None), planned.metrics[add.path].record_count
        return None, 0
