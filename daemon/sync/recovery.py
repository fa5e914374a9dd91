"""Brings the state store back in step with the Iceberg table, which decides what was committed; repairs that table."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import structlog
from pyiceberg.exceptions import ValidationError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from daemon.errors import (
    CorruptInput,
    ObjectMissing,
    ObjectStoreAway,
    SyncError,
    TargetChanged,
    TargetUnreadable,
    Unsupported,
)
from daemon.iceberg.account import find_account
from daemon.iceberg.marker import Marker, find_marker, is_marked, shown_by
from daemon.iceberg.pyiceberg_ext.file_io import StoreFileIO
from daemon.iceberg.pyiceberg_ext.metadata_cache import find_or_read_metadata
from daemon.iceberg.references import metadata_files
from daemon.iceberg.version_hint import SUFFIX
from daemon.observe import log as events
from daemon.store.durable import force_to_disk, is_local, local_path
from daemon.store.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown, remembered_account, shown_in, unchanged_outcome
from daemon.sync.rebuild import rebuild
from daemon.translate.existing_table import check_shape
from state import FileKind, FileStatus, OrphanReason, TableRecord, with_outcome

# The summary keys in which engines write their names.
WHO = ("engine-name", "engine-version", "app-id", "spark.app.id", "flink.job-id", "trino_query_id")
FOREIGN_NAMED_MAX = 3
ONE_TARGET = "Two Delta tables cannot share a target: give one of them another target."

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def end_intents(context: TableContext, record: TableRecord, table: Table | None) -> TableRecord:
    """End every open intent. If the table has its snapshot, it landed; otherwise its files become orphans."""
    store = context.store
    # A change without a snapshot writes only a metadata file. If the table references the file, it stays live.
    in_use = metadata_files(table) if table else frozenset()
    for intent, outcome in store.find_open_intents(record.id):
        if intent.id in context.in_work:
            continue
        at_ms = context.clock.now_ms()
        if table is None or table.snapshot_by_id(intent.id) is None:
            store.record_abandoned(intent.id, OrphanReason.COMMIT_FAILED, at_ms=at_ms, in_use=in_use)
        elif outcome is not None:
            done = shown_in(outcome, table)
            store.record_synced(intent.id, done, at_ms=at_ms)
            record = with_outcome(record, done)
        # If a first sync landed without being recorded, `rebuild` ends its intent later.
    return record


def restore_metadata(context: TableContext, record: TableRecord, damaged: SyncError) -> Table | None:
    """Repair a table whose current metadata file is damaged or gone, for example after a power cut: copy the newest
    readable one of dvsync's to the path in `damaged`, which the catalog names, and return the table.

    Returns None if there is none: the table was dropped from the catalog then, and a first sync makes it again. Raises
    TargetUnreadable if the readable metadata is somebody else's, if the state store does not know the table as
    dvsync's, or if the whole volume may be away.
    """
    assert damaged.path is not None, "the catalog names a metadata file"
    written = context.store.list_written(record.id, (FileStatus.LIVE,))
    known = {file.path for file in written if file.kind is FileKind.METADATA}
    storage = FileIOStorage(context.properties)
    found = storage.list_from(damaged.path.rpartition("/")[0], after="")
    others = [file for file in found if file.path.endswith(SUFFIX) and file.path != damaged.path]
    has_others = False
    # First those that the state store knows, the newest first.
    for file in sorted(others, key=lambda file: (file.path in known, file.modified_ms), reverse=True):
        data = storage.read(file.path)
        metadata: TableMetadata | None = None
        with suppress(ValidationError, ValueError):
            metadata = TableMetadataUtil.parse_raw(data.decode())
        is_other = metadata and record.table_uuid not in (None, str(metadata.table_uuid))
        if metadata and not is_other and find_marker(metadata.current_snapshot()):
            break
        has_others = has_others or metadata is not None
    else:
        # An object store has no folders around the Iceberg table's own.
        is_volume_there = not is_local(damaged.path) or local_path(damaged.path).parents[2].is_dir()
        if has_others or record.metadata_location is None or not is_volume_there:
            raise TargetUnreadable(
                f"no metadata file of dvsync's can be read for the Iceberg table: {damaged.message}",
                path=damaged.path,
                hint=f"Mount the volume or restore the file, then `dvsync resume {record.name}`. Or drop "
                f"{record.target} from the catalog, then `dvsync resync {record.name}`, which creates the table again "
                "from Delta, without its tags and history.",
            ) from damaged
        context.target.drop()
        _log.warning(events.TARGET_OVERWRITTEN, reason=f"{damaged}; no other metadata file can be read")
        return None
    with StoreFileIO(dict(context.properties)).new_output(damaged.path).create(overwrite=True) as output:
        output.write(data)
    force_to_disk([damaged.path])
    _log.warning(events.TARGET_OVERWRITTEN, reason=f"{damaged}; it was replaced by a copy of {file.path}")
    return context.target.find_table()


def check_ours(context: TableContext, record: TableRecord, table: Table) -> None:
    """Raise `TargetChanged` if dvsync never wrote the table, for example because `target` has the wrong name."""
    if not is_marked(table) and record.metadata_location not in metadata_files(table):
        raise TargetChanged(
            f"the Iceberg table {context.settings.target} was never dvsync's: no snapshot or property of the table "
            "names dvsync, and the state database does not know the table",
            path=table.metadata_location,
            hint="Choose another target, or rename or drop that table, then `dvsync resume "
            f"{context.settings.name}`. Neither a resync nor `on_foreign_commit: overwrite` replaces a table that "
            "dvsync did not make.",
        )


def check_owner(context: TableContext, record: TableRecord, table: Table) -> None:
    """Raise `TargetChanged` if the state database has the Iceberg table for another Delta table, by its uuid: two
    catalogs of the configuration may be one, and a catalog may ignore case.
    """
    uuid = str(table.metadata.table_uuid)
    if uuid == record.table_uuid:
        return
    for other in context.store.list_tables():
        if other.table_uuid == uuid and other.source != record.source:
            name, target = context.settings.name, context.settings.target
            raise TargetChanged(
                f"the Iceberg table {target} in the catalog {context.settings.catalog} is that of {other.name}, which "
                f"shows {other.source} in it as {other.target} in the catalog {other.catalog}",
                path=table.metadata_location,
                hint=f"{ONE_TARGET} To have this one in {target}, give {other.name} the other target, or remove it "
                f"from the configuration and `dvsync forget {other.name}`; then `dvsync resync {name}`.",
            )


def check_source(context: TableContext, table: Table, marker: Marker) -> None:
    """Raise `TargetChanged` if `marker`, from a snapshot that is not ours, names a Delta table that is not our source.

    If a later commit replaced the source's table id, the id at the marker's version counts. The id in the log's version
    0 comes first: it takes one request.
    """
    theirs, log = marker.delta_table_id, context.log
    if log.find_first_table_id() == theirs:
        return
    with context.open_state() as state:
        ours = state.metadata.id
    if ours == theirs:
        return
    with suppress(CorruptInput, ObjectMissing, Unsupported), context.open_state(marker.version) as state:
        if state.metadata.id == theirs:
            return
    name, target, writer = context.settings.name, context.settings.target, context.writer
    is_own = writer is not None and marker.writer == writer.name
    whose = "dvsync has followed so far" if is_own else f"the dvsync with the state {marker.writer} follows"
    raise TargetChanged(
        f"the Iceberg table {target} shows another Delta table (id {theirs}, version {marker.version}), which {whose}; "
        f"{context.location} has the id {ours}",
        path=table.metadata_location,
        hint=f"{ONE_TARGET} To have this one in {target}, {'' if is_own else 'stop that dvsync and '}"
        f"`dvsync resync {name}`.",
    )


def leave_other_table(
    context: TableContext, record: TableRecord, table: Table, *, is_wanted: bool = False
) -> TableRecord:
    """If the record is of another Iceberg table, by its metadata file, keep the files of that table, which may be in
    use. Returns the new row. Raises ObjectStoreAway if the store of that file does not answer; a resync that is wanted
    goes on without it.
    """
    location = record.metadata_location
    if record.snapshot_id is None or location is None or table.snapshot_by_id(record.snapshot_id):
        return record
    try:
        if find_or_read_metadata(table.io.new_input(location)).table_uuid == table.metadata.table_uuid:
            return record
    except (ObjectMissing, TargetUnreadable, PermissionError):
        return record  # The file is gone, as when the snapshot was expired by someone else long ago.
    except (OSError, ValueError) as error:
        if not is_wanted:
            raise ObjectStoreAway(
                f"the catalog lacks the snapshot that was recorded, and its metadata file cannot be read: {error}",
                path=location,
                hint="dvsync will try again. If that store is gone for good, run `dvsync resync`.",
            ) from error
    context.store.record_table_replaced(record.id, at_ms=context.clock.now_ms())
    return context.find_record() or record


def load_shown(context: TableContext, record: TableRecord, table: Table, *, is_in_doubt: bool, put_back: bool) -> Shown:
    """Return the table with its row of the state store, which is rebuilt if the two differ.

    With `is_in_doubt`, the account of the state store is checked too. If older metadata was `put_back`, the same
    snapshot may have an older schema. Raises `TargetChanged` if someone else made the current snapshot, rolled the
    table back to an older one of ours or changed its shape, and `ReplacementNeeded` as `rebuild` does.
    """
    current = table.current_snapshot()
    marker = shown_by(table)
    if current is None or marker is None:
        who, settings = foreign_commits(table), context.settings
        what = f"not committed by dvsync: {who}" if who else "it no longer has a snapshot"
        if who and settings.foreign_deletes_max and settings.is_managed:
            what += (
                f". The setting `deletes` is {settings.deletes}, but the Delta table's commits must go through its "
                "catalog, which dvsync cannot do: if this deleted rows, they are still in Delta"
            )
            first = "If rows were deleted, delete them with Delta first. Then "
            raise target_changed(context, table, what, first=first)
        raise target_changed(context, table, what)
    check_shape(table, context.settings)
    if record.snapshot_id == current.snapshot_id and record.synced_version is not None and not put_back:
        before = unchanged_outcome(record)
        same = shown_in(before, table)
        if same != before:
            # Someone set a property or registered the table in another catalog, a crash prevented the recording of an
            # expiry, or an older dvsync recorded less.
            context.store.record_synced(None, same, at_ms=context.clock.now_ms())
            record = with_outcome(record, same)
        if not is_in_doubt or record.must_compare or _adds_up(context, record, table):
            return Shown(record, table)
    else:
        record = leave_other_table(context, record, table)
        if _is_rolled_back(record, table, current, marker):
            was = f"snapshot {record.snapshot_id} (Delta version {record.synced_version})"
            now = f"{current.snapshot_id} (Delta version {marker.version})"
            raise target_changed(context, table, f"it was rolled back from {was} to {now}")
    return rebuild(context, record, table, marker)


def _adds_up(context: TableContext, record: TableRecord, table: Table) -> bool:
    """Return whether the state store adds up to the account in the snapshot's summary."""
    account = find_account(table.current_snapshot())
    known = remembered_account(context, record)
    if account in (None, known):
        return True
    _log.warning(events.STATE_REBUILT, reason=f"it has {known}; snapshot {record.snapshot_id} has {account}")
    return False


def _is_rolled_back(record: TableRecord, table: Table, current: Snapshot, marker: Marker) -> bool:
    """Return whether the table is older than the record. After a crash before recording it is newer instead."""
    if record.snapshot_id is None:
        return False  # The record was reset or is incomplete: it is rebuilt.
    recorded = table.snapshot_by_id(record.snapshot_id)
    if recorded is not None:
        return (current.sequence_number or 0) < (recorded.sequence_number or 0)
    same_table = record.delta_table_id == marker.delta_table_id
    return same_table and record.synced_version is not None and marker.version < record.synced_version


def foreign_commits(table: Table) -> str:
    """Describe the snapshots after our last one, the newest first: who did what, and when. Empty if there is none."""
    named = []
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if find_marker(snapshot) is not None:
            break
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        who = " ".join(dict.fromkeys(summary[key] for key in WHO if key in summary)) or "an unknown program"
        operation = snapshot.summary.operation.value if snapshot.summary else "commit"
        at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
        named.append(f"snapshot {snapshot.snapshot_id}, {operation} by {who} at {at}")
    more = f", and {len(named) - FOREIGN_NAMED_MAX} more" if len(named) > FOREIGN_NAMED_MAX else ""
    return f"{'; '.join(named[:FOREIGN_NAMED_MAX])}{more}"


def target_changed(context: TableContext, table: Table, what: str, *, first: str = "") -> TargetChanged:
    """Make the error that says `what` somebody else did to the table, how to undo that, and what to do `first`."""
    name, way_back = context.settings.name, ""
    own = [snapshot.snapshot_id for snapshot in table.metadata.snapshots if find_marker(snapshot)]
    if own and own[-1] != table.metadata.current_snapshot_id:
        call = f"CALL catalog.system.set_current_snapshot('{'.'.join(table.name()[-2:])}', {own[-1]})"
        way_back = f" Or set the table to dvsync's last snapshot {own[-1]} ({call}), then `dvsync resume {name}`."
    return TargetChanged(
        f"the Iceberg table {context.settings.target} was changed by someone else: {what}",
        path=table.metadata_location,
        hint=f"{first}`dvsync resync {name}` brings back Delta's state in one snapshot"
        f"{'' if first else '; on_foreign_commit: overwrite does so automatically'}.{way_back}",
    )
