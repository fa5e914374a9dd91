"""Deletes that others made in the Iceberg table: what they are, and the commit by which Delta gets them, too.

Delta's commit names the Iceberg snapshot, so it is made once: after a crash, the log says that it is there. Only this
module of the syncs reaches what writes Delta logs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyroaring import BitMap64

from daemon.config.settings import NoticeKind
from daemon.delta.bitmap_format import DVPlace
from daemon.delta.commit_info import CommitInfo, read_commit_info
from daemon.delta.deletion_vector import FRAME_BYTES, SIZE_FIELD_BYTES, frame_bytes, read_position_sets
from daemon.delta.log import DeltaLog
from daemon.delta.position_set import as_bitmap, decode_positions
from daemon.delta_writer.deletion import RowsMoved, Tracking, delete_at
from daemon.errors import CorruptInput, ObjectMissing, TargetChanged
from daemon.iceberg.account import find_account
from daemon.iceberg.delete_file_writer import damaged_deletes
from daemon.iceberg.manifests import content_span, referenced_data_file
from daemon.iceberg.marker import Marker, find_own, marker_at
from daemon.iceberg.position_deletes import read_served
from daemon.iceberg.references import entries_only_of, live_entries
from daemon.mirror.substitution import find_mirror_name
from daemon.notices.notice import Deleted, Run, catalog_place
from daemon.observe import log as events
from daemon.store.locations import Span, canonical
from daemon.store.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.mirrors import find_mirrors_in
from daemon.sync.recovery import foreign_commits, target_changed
from daemon.texts import counted, some_of
from daemon.translate.existing_table import check_shape
from state import DeletionVectorDescriptor, SyncRun, TableRecord

# Of Delta's commit, among the parameters of its operation.
TARGET: Final = "icebergTable"
SNAPSHOT_ID: Final = "icebergSnapshotId"
COMMITS: Final = "icebergCommits"
# The outcomes of such runs in the history, of which so many are read.
DELETED: Final = "deleted"
REJECTED: Final = "rejected"
RUNS_MAX: Final = 100

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# Deleted rows by data file.
Rows = dict[str, BitMap64]


@dataclass(frozen=True)
class HandedOver:
    """What became of the deletes; `told` says it to people, as the notice `kind`.

    `marker` is that of dvsync's last snapshot. `vectors` are Delta's newest vectors of those data files of which the
    Iceberg table shows exactly these rows as deleted. There are none if Delta did not get the deletes.
    """

    marker: Marker
    told: str
    kind: NoticeKind = NoticeKind.TARGET_CHANGED
    vectors: Mapping[str, DeletionVectorDescriptor] = field(default_factory=dict)


def hand_over(context: TableContext, record: TableRecord, table: Table) -> HandedOver:
    """Delete from the Delta table what others deleted in the Iceberg table since dvsync's last snapshot.

    Raises `TargetChanged`, before anything is written, if they did anything else, or deleted too many rows; as
    `delete_at`, and what the stores raise. If nobody can tell where the rows are in Delta now, nothing is written.

    Example: dvsync's snapshot s1 shows Delta's version 4, s2 and s3 are Spark's. What s3 deletes and s1 does not is
    committed as version 5. If the process is killed then and Spark commits s4, the log has a commit of s3: what s4
    deletes and s3 does not becomes version 6.
    """
    check_shape(table, context.settings)
    own, current = find_own(table), table.current_snapshot()
    marker, who = marker_at(table, own), foreign_commits(table)
    if own is None or marker is None or current is None:
        raise target_changed(context, table, f"none of its snapshots is dvsync's any more: {who}")
    log = DeltaLog(context.storage, context.location, context.clock)
    taken = _find_taken(log, marker.version)
    ancestors = ancestors_of(current, table.metadata)
    before = next(each for each in ancestors if each.snapshot_id in {own.snapshot_id, *taken})
    deletes = _ForeignDeletes(context, table, own, current)
    rows = _difference(deletes.shown, deletes.shown_by_own)
    deletes.check_share(rows)
    version, committed = taken.get(before.snapshot_id), tuple[str, ...]()
    is_own = before.snapshot_id == own.snapshot_id
    if new := _difference(deletes.shown, deletes.shown_by_own if is_own else deletes.shown_by(before)):
        context.target.check_lease()
        mirrored = {each.path: each.data_file for each in context.store.list_live_mirrors(record.id)}
        if any(find_mirror_name(path) and path not in mirrored for path in new):
            # The state database was lost. If Delta's version is gone, too, the rows are not found.
            with suppress(CorruptInput, ObjectMissing), context.open_delta_state(marker.version) as state:
                mirrored |= {each.path: each.data_file for each in find_mirrors_in(table, own, state)}
        named = {mirrored.get(path, path): positions for path, positions in new.items()}
        parameters = {TARGET: context.settings.target, SNAPSHOT_ID: str(current.snapshot_id), COMMITS: who}
        try:
            tracking = Tracking(context.store, record.id)
            done = delete_at(
                log, context.clock, named, version=marker.version, parameters=parameters, tracking=tracking
            )
        except RowsMoved as moved:
            told = (
                f"{_told(new)} in Iceberg are back, because they could not be deleted in Delta: {moved}. It was {who}"
            )
            _log.warning(events.TARGET_OVERWRITTEN, reason=told)
            _record(context, record, SyncRun(record.id, context.clock.now_ms(), 0, REJECTED, message=told))
            return HandedOver(marker, told)
        version, committed = version if done.version is None else done.version, done.vector_files
    told, kind = f"{_told(rows)} in Iceberg, in Delta by version {version}: {who}", NoticeKind.ROWS_DELETED
    if version is None:
        told = f"{_told(rows)} in Iceberg, and not in Delta, which had all of that already: {who}"
        if not rows:
            told = f"no row was deleted in Iceberg, where others committed: {who}"
        kind = NoticeKind.TARGET_CHANGED
    else:
        _log.info(events.ROWS_DELETED, version=version, reason=told)
        run = SyncRun(record.id, context.clock.now_ms(), 0, DELETED, version, version, message=told, operation="DELETE")
        _record(context, record, run, committed)
        context.publish(_lineage_of(context, record, table, read_commit_info(log, version), version))
    return HandedOver(marker, told, kind, _find_equal_vectors(context, deletes))


def _lineage_of(context: TableContext, record: TableRecord, table: Table, info: CommitInfo, version: int) -> Run:
    """Return what the commit says of itself: after a kill, it is sent again as it was."""
    at_ms = info.timestamp if isinstance(info.timestamp, int) else context.clock.now_ms()
    rows, snapshot_id = info.metric("numDeletedRows") or "", info.parameter(SNAPSHOT_ID)
    return Run(
        record.name,
        record.source,
        record.target,
        at_ms,
        at_ms,
        version=version,
        snapshot_id=int(snapshot_id) if snapshot_id else None,
        location=table.location(),
        catalog=catalog_place(context.properties),
        deleted=Deleted(int(rows) if rows.isdecimal() else 0, info.parameter(COMMITS) or ""),
    )


def _find_taken(log: DeltaLog, after: int) -> dict[int, int]:
    """Return the versions after `after` that were made by `hand_over`, by the Iceberg snapshot that each names."""
    newest = log.find_newest(after)
    taken: dict[int, int] = {}
    for version in range(after + 1, (after if newest is None else newest) + 1):
        named = read_commit_info(log, version).parameter(SNAPSHOT_ID) or ""
        if named.isascii() and named.isdigit():
            taken[int(named)] = version
    return taken


def _difference(rows: Mapping[str, BitMap64], before: Mapping[str, BitMap64]) -> Rows:
    differing = {path: positions - before.get(path, BitMap64()) for path, positions in rows.items()}
    return {path: positions for path, positions in differing.items() if positions}


def _told(rows: Rows) -> str:
    return f"{counted(sum(map(len, rows.values())), 'row')} of {counted(len(rows), 'data file')} deleted"


def _record(context: TableContext, record: TableRecord, run: SyncRun, committed: Collection[str] = ()) -> None:
    """Put it into the history before the snapshot is made, unless a sync that was killed then has done so."""
    if all(each.message != run.message for each in context.store.list_runs(record.id, runs_max=RUNS_MAX)):
        context.store.record_run(run, committed=committed)


def _find_equal_vectors(context: TableContext, deletes: _ForeignDeletes) -> dict[str, DeletionVectorDescriptor]:
    """Return Delta's newest vectors of the data files of which Iceberg shows the same rows as deleted."""
    with context.open_state() as state:
        vectors = {
            add.path: add.deletion_vector
            for add in state.read_adds(with_dv_only=True)
            if add.deletion_vector and add.path in deletes.shown
        }
    found = read_position_sets(context.storage, context.location, list(vectors.values()))
    equal = {path for path, each in zip(vectors, found, strict=True) if as_bitmap(each) == deletes.shown[path]}
    return {path: vector for path, vector in vectors.items() if path in equal}


class _ForeignDeletes:
    """What the snapshots since dvsync's last one, `own`, delete. Raises `TargetChanged` if they do anything else."""

    def __init__(self, context: TableContext, table: Table, own: Snapshot, current: Snapshot) -> None:
        self._context, self._table, self._own = context, table, own
        self._storage = FileIOStorage(context.target_properties(table))
        self._touched = self._removed_by(current)
        deletes = ManifestContent.DELETES
        came, left = entries_only_of(table, current, own, deletes), entries_only_of(table, own, current, deletes)
        for key in came.keys() - left.keys():
            self._check(came[key].data_file)
        # An entry in both has only moved to another manifest.
        for key in came.keys() ^ left.keys():
            file = (came.get(key) or left[key]).data_file
            single = referenced_data_file(file)
            self._touched |= self._read(file).keys() if single is None else {single}
        self._data = {
            entry.data_file.file_path: entry
            for entry, _ in live_entries(table, own, ManifestContent.DATA)
            if entry.data_file.file_path in self._touched
        }
        # Each reads delete files.
        self.shown_by_own, self.shown = self.shown_by(own), self.shown_by(current)
        if lost := _difference(self.shown_by_own, self.shown):
            raise self._refused(f"deleted rows of {some_of(sorted(lost))} are back")

    def _refused(self, what: str, *, first: str = "") -> TargetChanged:
        return target_changed(self._context, self._table, f"{what}; it was {foreign_commits(self._table)}", first=first)

    def _removed_by(self, snapshot: Snapshot) -> set[str]:
        """Return the data files that `snapshot` does not show any more."""
        table, own, data = self._table, self._own, ManifestContent.DATA
        came, left = entries_only_of(table, snapshot, own, data), entries_only_of(table, own, snapshot, data)
        if added := sorted(str(key) for key in came.keys() - left.keys()):
            raise self._refused(
                f"{counted(len(added), 'data file')} came, such as {added[0]}: by INSERT, UPDATE or MERGE, or by a "
                "DELETE with write.delete.mode=copy-on-write. dvsync deletes in Delta only what merge-on-read deletes"
            )
        if again := [key for key in came if came[key].sequence_number != left[key].sequence_number]:
            raise self._refused(f"the data file {again[0]} was removed and added again")
        return {str(key) for key in left.keys() - came.keys()}

    def _check(self, delete_file: DataFile) -> None:
        if delete_file.content is not DataFileContent.POSITION_DELETES:
            raise self._refused(f"{delete_file.file_path} has equality deletes, which do not name rows")
        if delete_file.file_format not in (FileFormat.PARQUET, FileFormat.PUFFIN):
            raise self._refused(f"the delete file {delete_file.file_path} has the format {delete_file.file_format}")

    def check_share(self, rows: Rows) -> None:
        """Raise `TargetChanged` if these are more of the table's rows than the settings allow."""
        account, settings = find_account(self._own), self._context.settings
        count = sum(map(len, rows.values()))
        if account is None or count > settings.foreign_deletes_max * account.live_rows:
            of_all = f" of {account.live_rows:,}" if account else ""
            raise self._refused(
                f"{counted(count, 'row')}{of_all} deleted, and the setting `deletes` is {settings.deletes}",
                first="If Delta is to lose these rows, too, set a larger share for the table, then `dvsync resume "
                f"{settings.name}`. Else ",
            )

    def shown_by(self, snapshot: Snapshot) -> Rows:
        """Return all deleted rows of the data files that were touched, as `snapshot` shows them; all of a removed file.

        A delete file applies to data files that are not younger. Iceberg spec, "Scan Planning".
        """
        found: Rows = {}
        for entry, _ in live_entries(self._table, snapshot, ManifestContent.DELETES):
            if referenced_data_file(entry.data_file) not in {None, *self._touched}:
                continue
            for path, positions in self._read(entry.data_file).items():
                data = self._data.get(path)
                if data is None or (entry.sequence_number or 0) < (data.sequence_number or 0):
                    continue
                if positions and positions[-1] >= data.data_file.record_count:
                    raise self._refused(f"{entry.data_file.file_path} deletes rows that {path} does not have")
                found[path] = found.get(path, BitMap64()) | positions
        for path in self._removed_by(snapshot) & self._data.keys():
            found[path] = BitMap64(range(self._data[path].data_file.record_count))
        return found

    def _read(self, delete_file: DataFile) -> Rows:
        span, data_file = content_span(delete_file), referenced_data_file(delete_file)
        if span is None or data_file is None:
            served = read_served(self._storage, delete_file)
            return {path: BitMap64(positions.to_pylist()) for path, positions in served.items()}
        frame = self._storage.read(canonical(delete_file.file_path), Span(*span))
        blob = memoryview(frame)[SIZE_FIELD_BYTES : SIZE_FIELD_BYTES - FRAME_BYTES]
        if frame_bytes(blob) != frame:
            raise damaged_deletes("the length or checksum of a deletion vector is wrong", delete_file.file_path)
        place = DVPlace(delete_file.file_path, span[0])
        return {data_file: as_bitmap(decode_positions(blob, cardinality=delete_file.record_count, place=place))}
