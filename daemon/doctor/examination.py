"""Examines a table's files for `dvsync doctor`: reads every footer and counts every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from pyiceberg.types import TimestamptzType

from daemon.delta.actions import AddFile
from daemon.delta.deletion_vector import find_place
from daemon.delta.table_state import TableState
from daemon.errors import SyncError
from daemon.pipeline.data_manifests import manifests_needed
from daemon.pipeline.inspection import Inspector
from daemon.store.storage import FileIOStorage
from daemon.translate.schema import TableSchema
from state import DeletionVectorDescriptor


@dataclass(frozen=True)
class Refusal:
    """A reason why files are refused, the number of these files, and the path of one of them."""

    message: str
    hint: str
    path: str
    files: int


@dataclass
class Examination:
    """A summary of a table's live files. Columns have their full names; `refusals` have the key (message, hint)."""

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
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)

    def add_refusal(self, refusal: Refusal) -> None:
        """Count further files that are refused for the same reason."""
        known = self.refusals.setdefault((refusal.message, refusal.hint), replace(refusal, files=0))
        self.refusals[refusal.message, refusal.hint] = replace(known, files=known.files + refusal.files)

    def add(self, other: Examination) -> None:
        """Count other files of the same table."""
        self.files += other.files
        self.physical_rows += other.physical_rows
        self.files_with_deletions += other.files_with_deletions
        self.deleted_rows += other.deleted_rows
        self.files_without_stats += other.files_without_stats
        self.int96_columns |= other.int96_columns
        self.millis_columns |= other.millis_columns
        self.view_columns |= other.view_columns
        self.hidden_columns |= other.hidden_columns
        self.partitions_without_zone |= other.partitions_without_zone
        for refusal in other.refusals.values():
            self.add_refusal(refusal)


@dataclass(frozen=True)
class ExaminationTask:
    """Inspects one part of the live files of the table at `location`."""

    table: TableSchema
    location: str
    properties: Mapping[str, str]

    def __call__(self, _part: int, adds: Iterable[AddFile]) -> Iterator[Examination]:
        storage, seen = FileIOStorage(self.properties), Examination()
        inspector = Inspector(storage, self.table)
        # A file of deletion vectors serves many data files, and is asked for once.
        why_missing = cache(partial(_why_missing, storage))
        for add in adds:
            self._examine(add, inspector, seen)
            if error := self._fault_of_vector(add.deletion_vector, why_missing):
                seen.add_refusal(Refusal(f"its deletion vector: {error}", error.hint, add.path, 1))
        yield seen

    def _fault_of_vector(
        self, vector: DeletionVectorDescriptor | None, why_missing: Callable[[str], SyncError | None]
    ) -> SyncError | None:
        try:
            place = find_place(self.location, vector) if vector else None
        except SyncError as error:
            return error
        return why_missing(place.path) if place and place.offset is not None else None

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
            seen.add_refusal(Refusal(error.message, error.hint, add.path, 1))
            return
        seen.physical_rows += metrics.record_count
        seen.int96_columns |= {str(self.table.schema.find_column_name(field_id)) for field_id in file.int96}
        ids = self.table.field_ids
        millis = {name.lower() for name in file.millis} & ids.keys()
        seen.millis_columns |= {str(self.table.schema.find_column_name(ids[name])) for name in millis}
        seen.view_columns |= {str(self.table.schema.find_column_name(field_id)) for field_id in file.views}
        seen.hidden_columns |= {".".join(column) for column in file.hidden}
        for partition in self.table.spec.fields:
            value = add.partition_values.get(self.table.physical_names[partition.source_id])
            zoned = isinstance(self.table.schema.find_type(partition.source_id), TimestamptzType)
            if value and zoned and not value.endswith("Z"):
                seen.partitions_without_zone.add(partition.name)


def _why_missing(storage: FileIOStorage, path: str) -> SyncError | None:
    try:
        storage.stat(path)
    except SyncError as error:
        return error
    return None


def examine_files(state: TableState, task: ExaminationTask) -> Examination:
    """Inspect every live file of `state`. Raises `PipelineAway`."""
    every = Examination()
    for each in state.map_adds(task, max(1, manifests_needed(state.files))):
        every.add(each)
    return every
