"""The results of one commit: for the state store, for the log, and for the next step."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum

from msgspec.structs import replace as with_fields
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from daemon.delta.replay import TableChange, join_operations
from daemon.iceberg.account import Account
from daemon.iceberg.marker import Marker
from daemon.iceberg.row_delta import PreparedSnapshot
from daemon.mirror.substitution import find_mirror_name
from daemon.sync.context import TableContext
from daemon.translate.delete_files import delete_file_record, rewritten_record
from daemon.translate.partition_values import encode_partition
from daemon.translate.plan import CommitPlan
from state import DeleteFileRecord, DeletionVectorDescriptor, LiveFile, Outcome, TableRecord


class SyncOutcome(StrEnum):
    """The kind of result of a cycle."""

    WAITING = "waiting"  # the Delta table is not there yet
    UNCHANGED = "unchanged"
    ADVANCED = "advanced"
    REBUILT = "rebuilt"  # the state store's memory, from the Iceberg table

    @property
    def is_progress(self) -> bool:
        """Whether the Iceberg table or the state store has changed."""
        return self in (SyncOutcome.ADVANCED, SyncOutcome.REBUILT)


@dataclass(frozen=True)
class SyncResult:
    """The result of one cycle. Versions are Delta's, inclusive. With `more`, it stopped at a bound: go on at once."""

    outcome: SyncOutcome
    from_version: int | None
    to_version: int | None
    snapshot_id: int | None = None
    operation: str | None = None
    snapshots: int = 0
    data_files_added: int = 0
    data_files_removed: int = 0
    delete_files_added: int = 0
    delete_files_removed: int = 0
    positions_added: int = 0
    more: bool = False

    def figures(self) -> dict[str, str | int | bool | None]:
        """Return all but the outcome, for the log and for traces."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "outcome"}

    def then(self, later: SyncResult) -> SyncResult:
        """Join both results into one cycle's result."""
        return replace(
            later,
            outcome=later.outcome if later.outcome is not SyncOutcome.UNCHANGED else self.outcome,
            from_version=self.from_version if self.from_version is not None else later.from_version,
            operation=join_operations((self.operation, later.operation)),
            snapshot_id=later.snapshot_id or self.snapshot_id,
            snapshots=self.snapshots + later.snapshots,
            data_files_added=self.data_files_added + later.data_files_added,
            data_files_removed=self.data_files_removed + later.data_files_removed,
            delete_files_added=self.delete_files_added + later.delete_files_added,
            delete_files_removed=self.delete_files_removed + later.delete_files_removed,
            positions_added=self.positions_added + later.positions_added,
        )


@dataclass(frozen=True)
class Shown:
    """The Iceberg table and what the state store remembers of it; the two agree."""

    record: TableRecord
    table: Table


def remembered_account(context: TableContext, record: TableRecord) -> Account:
    """Add up the account in the state store. Reads every live file's row."""
    counts = context.store.count(record.id)
    physical_rows = counts.live_rows + counts.deleted_positions
    return Account(counts.live_data_files, physical_rows, counts.deleted_positions, counts.live_bytes)


def marker_of(outcome: Outcome) -> Marker:
    return Marker(outcome.delta_table_id, outcome.to_version, outcome.source_timestamp_ms)


def outcome_of_change(record: TableRecord, change: TableChange, completed: CommitPlan) -> Outcome:
    """Make the outcome of a change. The manifests of added files are not known yet."""
    unchanged = unchanged_outcome(record)
    return with_fields(
        unchanged,
        delta_table_id=change.metadata.id if change.metadata else unchanged.delta_table_id,
        to_version=change.to_version,
        source_timestamp_ms=change.timestamp_ms,
        must_compare=False,
        added_files=tuple(
            live_file(data_file, "", add.deletion_vector, add.uri)
            for data_file in completed.delta.added_data_files
            for add in [completed.added_files[data_file.file_path]]
        ),
        changed_dvs=tuple(completed.changed_dvs.items()),
        changed_uris=tuple(change.uris_changed.items()),
        removed_files=completed.removed_files,
        added_delete_files=delete_file_records(completed),
        removed_delete_files=tuple(completed.removed_delete_files.items()),
        dead_vectors=completed.dead_vectors,
        unwritten_files=completed.unwritten_files,
        removed_mirrors=tuple(
            path for path in completed.removed_files if path not in completed.added_files and find_mirror_name(path)
        ),
    )


def live_file(
    data_file: DataFile, manifest_path: str, deletion_vector: DeletionVectorDescriptor | None, uri: str | None
) -> LiveFile:
    """Make the state store's record of a manifest entry."""
    return LiveFile(
        path=data_file.file_path,
        record_count=data_file.record_count,
        size_bytes=data_file.file_size_in_bytes,
        spec_id=data_file.spec_id,
        manifest_path=manifest_path,
        deletion_vector=deletion_vector,
        partition=encode_partition(data_file.partition),
        uri=uri,
    )


def delete_file_records(completed: CommitPlan) -> tuple[DeleteFileRecord, ...]:
    """Make records of the written delete files, with the deletion vectors that they contain."""
    return (
        *(delete_file_record(task, file) for task, file in completed.written),
        *(rewritten_record(rewrite, file) for rewrite, file in completed.rewritten),
    )


def unchanged_outcome(record: TableRecord) -> Outcome:
    """Make an outcome that equals the record, for a commit that does not change the synced version."""
    assert record.delta_table_id is not None, "a table that is followed has been synced"
    assert record.synced_version is not None and record.source_timestamp_ms is not None, "so has its version"
    return Outcome(
        table_id=record.id,
        delta_table_id=record.delta_table_id,
        from_version=record.synced_version,
        to_version=record.synced_version,
        source_timestamp_ms=record.source_timestamp_ms,
        snapshot_id=record.snapshot_id,
        metadata_location=record.metadata_location,
        format_version=record.format_version,
        catalog=record.catalog,
        table_uuid=record.table_uuid,
        must_compare=record.must_compare,
    )


def shown_in(outcome: Outcome, table: Table) -> Outcome:
    """Return the outcome with what is recorded of `table`, which shows it: its metadata file, catalog, and so on."""
    return with_fields(
        outcome,
        metadata_location=table.metadata_location,
        format_version=table.metadata.format_version,
        catalog=table.catalog.name,
        table_uuid=str(table.metadata.table_uuid),
    )


def placed(outcome: Outcome, prepared: PreparedSnapshot) -> Outcome:
    """Return the outcome with the manifest of each added file."""
    place = prepared.placements
    return with_fields(
        outcome,
        snapshot_id=prepared.snapshot_id,
        added_files=tuple(with_fields(file, manifest_path=place[file.path]) for file in outcome.added_files),
        added_delete_files=tuple(
            with_fields(file, manifest_path=place[file.path]) for file in outcome.added_delete_files
        ),
        moved_manifests=tuple(prepared.moved_manifests.items()),
    )
