"""Brings the state store back in step with the Iceberg table, which decides what was committed."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from msgspec.structs import replace as with_fields
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from daemon.delta.actions import Commit, RemoveFile
from daemon.delta.checksum import Totals
from daemon.delta.features import check_protocol
from daemon.delta.table_state import TableState
from daemon.delta.uri import fold_identity
from daemon.errors import (
    CorruptInput,
    ObjectMissing,
    ObjectStoreAway,
    ReplacementNeeded,
    TargetChanged,
    TargetUnreadable,
    Unsupported,
)
from daemon.iceberg.account import find_account
from daemon.iceberg.manifests import first_row_id, has_row_lineage
from daemon.iceberg.marker import Marker, find_marker, is_marked, shown_by
from daemon.iceberg.position_deletes import count_served
from daemon.iceberg.puffin import read_blobs
from daemon.iceberg.pyiceberg_ext.metadata_cache import find_or_read_metadata
from daemon.iceberg.references import live_entries, metadata_files
from daemon.observe import log as events
from daemon.observe import tracing
from daemon.store.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown, live_file, remembered_account, shown_in, unchanged_outcome
from daemon.translate.definition import row_id_column
from daemon.translate.delete_files import UNKNOWN_DV, is_puffin
from daemon.translate.existing_table import check_shape
from state import (
    DeleteFileRecord,
    DeletionVectorDescriptor,
    DvMapping,
    LiveFile,
    OrphanReason,
    Outcome,
    TableRecord,
    with_outcome,
)

# The summary keys in which engines write their names.
WHO = ("engine-name", "engine-version", "app-id", "spark.app.id", "flink.job-id", "trino_query_id")
FOREIGN_NAMED_MAX = 3
# Files that differ are held in memory with their statistics, some kilobytes each; the whole table never is.
DIFFERENCES_MAX = 100_000
# What a snapshot's summary says in the place of Delta's operation, if it shows the result of a comparison.
COMPARED = "compare"
ONE_TARGET = "Two Delta tables cannot share a target: give one of them another target."
REPLACED = "dvsync rewrites the Iceberg table from Delta, in one snapshot."

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def end_intents(context: TableContext, record: TableRecord, table: Table | None) -> TableRecord:
    """End every open intent. If the table has its snapshot, it landed; otherwise its files become orphans."""
    store = context.store
    # A change without a snapshot writes only a metadata file. If the table references the file, it stays live.
    in_use = metadata_files(table) if table else frozenset()
    for intent, outcome in store.find_open_intents(record.id):
        if intent.id in context.in_work:
            continue
        landed = table is not None and table.snapshot_by_id(intent.id) is not None
        if landed and outcome is not None and table is not None:
            done = shown_in(outcome, table)
            store.record_synced(intent.id, done, at_ms=context.clock.now_ms())
            record = with_outcome(record, done)
        elif not landed:
            at_ms = context.clock.now_ms()
            store.record_abandoned(intent.id, OrphanReason.COMMIT_FAILED, at_ms=at_ms, in_use=in_use)
        # If a first sync landed without being recorded, `rebuild` ends its intent later.
    return record


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
    """Raise `TargetChanged` if the state database has the Iceberg table for another Delta table.

    Its name says little: two catalogs of the configuration may be one, and a catalog may ignore case.
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

    If a later commit replaced the source's table id, the id at the marker's version counts. First compares the id in
    the log's version 0, which takes one request. Reads Delta's state only if that id differs.
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
    """Keep the files of another Iceberg table, perhaps in another catalog, that the record is of. Returns the new row.

    They stay, since that table may be in use. Reads its metadata file, if the recorded snapshot is not in `table`. If
    the store of that file does not answer, raises ObjectStoreAway; a resync that is wanted goes on without it.
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
    snapshot may have an older schema. If the returned record has `must_compare`, the caller must compare it with
    Delta's state. Raises `TargetChanged` if someone else made the current snapshot, rolled the table back to an older
    one of ours or changed the table's shape, and `ReplacementNeeded` as `rebuild` does.
    """
    current = table.current_snapshot()
    marker = shown_by(table)
    if current is None or marker is None:
        raise _target_changed(context, table, _foreign_commits(table))
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
        return rebuild(context, record, table, marker)
    record = leave_other_table(context, record, table)
    if _is_rolled_back(record, table, marker):
        raise _target_changed(
            context,
            table,
            f"it was rolled back from snapshot {record.snapshot_id} (Delta version {record.synced_version}) to "
            f"{current.snapshot_id} (Delta version {marker.version})",
        )
    return rebuild(context, record, table, marker)


def _adds_up(context: TableContext, record: TableRecord, table: Table) -> bool:
    """Return whether the state store adds up to the account in the snapshot's summary."""
    account = find_account(table.current_snapshot())
    known = remembered_account(context, record)
    if account in (None, known):
        return True
    _log.warning(events.STATE_REBUILT, reason=f"it has {known}; snapshot {record.snapshot_id} has {account}")
    return False


def _is_rolled_back(record: TableRecord, table: Table, marker: Marker) -> bool:
    """Return whether the table is older than the record. After a crash before recording it is newer instead."""
    if record.snapshot_id is None:
        return False  # The record was reset or is incomplete: it is rebuilt.
    recorded = table.snapshot_by_id(record.snapshot_id)
    current = table.current_snapshot()
    if recorded is not None and current is not None:
        return (current.sequence_number or 0) < (recorded.sequence_number or 0)
    same_table = record.delta_table_id == marker.delta_table_id
    return same_table and record.synced_version is not None and marker.version < record.synced_version


def _foreign_commits(table: Table) -> str:
    """Describe the snapshots after our last one: who did what, and when."""
    named = []
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if find_marker(snapshot) is not None:
            break
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        who = " ".join(dict.fromkeys(summary[key] for key in WHO if key in summary)) or "an unknown program"
        operation = snapshot.summary.operation.value if snapshot.summary else "commit"
        at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
        named.append(f"snapshot {snapshot.snapshot_id}, {operation} by {who} at {at}")
    if not named:
        return "it no longer has a snapshot"
    more = f", and {len(named) - FOREIGN_NAMED_MAX} more" if len(named) > FOREIGN_NAMED_MAX else ""
    return f"not committed by dvsync: {'; '.join(named[:FOREIGN_NAMED_MAX])}{more}"


def _way_back(table: Table, name: str) -> str:
    """Return how to make dvsync's last snapshot current; an empty text if there is none, or if it is current."""
    own = [snapshot.snapshot_id for snapshot in table.metadata.snapshots if find_marker(snapshot)]
    if not own or own[-1] == table.metadata.current_snapshot_id:
        return ""
    call = f"CALL catalog.system.set_current_snapshot('{'.'.join(table.name()[-2:])}', {own[-1]})"
    return f" Or set the table to dvsync's last snapshot {own[-1]} ({call}), then `dvsync resume {name}`."


def _target_changed(context: TableContext, table: Table, what: str) -> TargetChanged:
    name = context.settings.name
    return TargetChanged(
        f"the Iceberg table {context.settings.target} was changed by someone else: {what}",
        path=table.metadata_location,
        hint=f"`dvsync resync {name}` brings back Delta's state in one snapshot; on_foreign_commit: overwrite does so "
        f"automatically.{_way_back(table, name)}",
    )


@tracing.step("rebuild")
def rebuild(context: TableContext, record: TableRecord, table: Table, marker: Marker) -> Shown:
    """Rebuild the state store from Iceberg's manifests and Delta's state at the version that they show.

    If the two differ, the record gets `must_compare`. If a file's deletions differ, its deletion vector is recorded as
    unknown. The comparison then rewrites its deletions, so that none is lost or applied twice.

    Example: Iceberg shows `a`, `b` and `c`, with two deleted rows in `a` and one in `b`. In Delta the vector of `a` has
    two rows, and that of `b` has three. `a` gets Delta's vector, `b` an unknown one, `c` none; states must be compared.

    Raises `ReplacementNeeded` if Iceberg shows a file twice, or has deletions of a file that it does not show.
    Data manifests are read twice, so that only 8 bytes (a hash) are in memory for a file without deletions.
    """
    current = table.current_snapshot()
    assert current is not None, "a table with a marker has a snapshot"
    delete_files = list(_read_delete_files(context, table, current))
    positions: Counter[str] = Counter()
    for file in delete_files:
        positions.update(file.served)
    shown = _count_files(table, current, positions)
    delta = _find_delta_state(context, marker)
    dvs, uris = delta[:2] if delta else ({}, {})
    unknown = {path for path in {*dvs, *positions} if positions[path] != (dvs[path].cardinality if path in dvs else 0)}
    dvs |= dict.fromkeys(unknown, UNKNOWN_DV)
    known = not unknown and delta is not None and delta[2] == shown
    described = Outcome(
        table_id=record.id,
        delta_table_id=marker.delta_table_id,
        from_version=None,
        to_version=marker.version,
        source_timestamp_ms=marker.timestamp_ms,
        snapshot_id=current.snapshot_id,
        must_compare=not known,
    )
    outcome = shown_in(described, table)
    live = (
        live_file(entry.data_file, manifest_path, dvs.get(path), uris.get(path))
        for entry, manifest_path in live_entries(table, current, ManifestContent.DATA)
        for path in [entry.data_file.file_path]
    )
    deletes = [
        with_fields(
            file.record,
            mappings=tuple(DvMapping(path, dvs[path].unique_id, count) for path, count in file.served.items()),
        )
        for file in delete_files
    ]
    at_ms = context.clock.now_ms()
    context.store.record_rebuilt(outcome, live, deletes, at_ms=at_ms, synced_at_ms=current.timestamp_ms)
    return Shown(with_outcome(record, outcome), table)


@dataclass
class _ReadDeleteFile:
    """A live delete file, and the number of live positions by data file."""

    record: DeleteFileRecord
    served: dict[str, int]


def _read_delete_files(context: TableContext, table: Table, snapshot: Snapshot) -> Iterator[_ReadDeleteFile]:
    """Read the delete files of a snapshot, each with all of its entries. Raises as `rebuild` does."""
    storage = FileIOStorage(context.target_properties(table))
    found: dict[str, tuple[str, list[DataFile]]] = {}
    for entry, manifest_path in live_entries(table, snapshot, ManifestContent.DELETES):
        path = entry.data_file.file_path
        manifest, entries = found.setdefault(path, (manifest_path, []))
        entries.append(entry.data_file)
        if manifest != manifest_path:
            raise _not_mendable("several manifests of the Iceberg table have entries of this delete file", path)
    for path, (manifest_path, entries) in found.items():
        size_bytes = entries[0].file_size_in_bytes
        served = {served: count for entry in entries for served, count in count_served(storage, entry).items()}
        blobs = read_blobs(storage, path, size_bytes) if is_puffin(path) else ()
        record = DeleteFileRecord(
            path=path,
            size_bytes=size_bytes,
            positions=sum(blob.cardinality for blob in blobs) or sum(served.values()),
            spec_id=entries[0].spec_id,
            manifest_path=manifest_path,
            mappings=(),
            dead=tuple(sorted({blob.data_file for blob in blobs} - served.keys())),
        )
        yield _ReadDeleteFile(record, served)


@dataclass
class _FileSet:
    """The number of files, and the sum of hashes of their paths and sizes. The order of the files does not matter."""

    files: int = 0
    hashes: int = 0

    def add(self, path: str, size_bytes: int) -> None:
        self.files += 1
        self.hashes += int.from_bytes(blake2b(f"{size_bytes} {path}".encode(), digest_size=16).digest())


def _count_files(table: Table, snapshot: Snapshot, with_deletions: Collection[str]) -> _FileSet:
    """Count the data files of a snapshot. Raises `ReplacementNeeded` as `rebuild` does."""
    shown, not_shown = _FileSet(), set(with_deletions)

    def hashes() -> Iterator[int]:
        for entry, _ in live_entries(table, snapshot, ManifestContent.DATA):
            data_file = entry.data_file
            shown.add(data_file.file_path, data_file.file_size_in_bytes)
            not_shown.discard(data_file.file_path)
            yield hash(data_file.file_path)

    if pc.count_distinct(int64s(hashes())).as_py() < shown.files:
        raise _not_mendable("the Iceberg table shows a file twice, or more often", table.metadata_location)
    for path in not_shown:
        raise _not_mendable("a delete file of the Iceberg table deletes rows of a file that it does not show", path)
    return shown


def int64s(values: Iterable[int]) -> pa.Int64Array:
    """Pack values into eight bytes each; a Python list or set needs ten times as much memory."""
    return _packed(array("q", values))


def _packed(numbers: array[int]) -> pa.Int64Array:
    return pa.Int64Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _not_mendable(what: str, path: str) -> ReplacementNeeded:
    return ReplacementNeeded(what, path=path, hint=REPLACED)


def _find_delta_state(
    context: TableContext, marker: Marker
) -> tuple[dict[str, DeletionVectorDescriptor], dict[str, str], _FileSet] | None:
    """Read the deletion vectors, URIs and files of the version that Iceberg shows; None if Delta no longer has it."""
    # Errors such as an unavailable store do not show that the version is gone, so they are raised.
    with suppress(CorruptInput, ObjectMissing, Unsupported), context.open_state(marker.version) as state:
        if state.metadata.id == marker.delta_table_id:
            dvs, uris, files = {}, {}, _FileSet()
            for add in state.read_adds():
                files.add(add.path, add.size)
                if add.deletion_vector:
                    dvs[add.path] = add.deletion_vector
                if add.uri is not None:
                    uris[add.path] = add.uri
            return dvs, uris, files
    return None


def commits_to_state(context: TableContext, shown: Shown, state: TableState) -> tuple[list[Commit], Totals]:
    """Make commits that turn the live files into `state`. Returns them, to be folded, and the totals of `state`.

    Example: `a`, `b` and `c` are live. Delta's state has `a`, `b` with the new vector `v`, and `d`. The first commit
    removes `c`; the second removes `b` and adds `b` with `v`, and `d`: the file `b` itself is the same.

    Two hashes of 8 bytes are in memory for a file that does not differ. Raises `Unsupported` if we do not support the
    state's protocol, `ReplacementNeeded` if more than DIFFERENCES_MAX files differ, or row ids of a file that stays.
    """
    try:
        check_protocol(state.protocol)
    except Unsupported as error:
        raise error.located(version=state.version) from error.__cause__
    # Another table may have files with the same names and sizes, so none of the old table's files is kept.
    same_table = state.metadata.id == shown.record.delta_table_id
    if same_table and has_row_lineage(shown.table.metadata.format_version) and row_id_column(state.metadata):
        _check_row_ids(shown.table, state)
    live = partial(context.store.read_live_files, shown.record.id)
    in_iceberg = int64s(hash((file.path, file.uri, file.size_bytes, file.dv_unique_id)) for file in live())
    size_bytes = deleted_rows = 0

    def hashes() -> Iterator[int]:
        nonlocal size_bytes, deleted_rows
        for add in state.read_adds():
            size_bytes += add.size
            deleted_rows += add.deletion_vector.cardinality if add.deletion_vector else 0
            yield hash((add.path, add.uri, add.size, add.dv_unique_id if same_table else state.metadata.id))

    in_delta = int64s(hashes())
    differ_in_iceberg = pc.invert(pc.is_in(in_iceberg, value_set=in_delta))
    differ_in_delta = pc.invert(pc.is_in(in_delta, value_set=in_iceberg))
    differences = pc.sum(differ_in_iceberg).as_py() or 0, pc.sum(differ_in_delta).as_py() or 0
    if max(differences) > DIFFERENCES_MAX:
        raise ReplacementNeeded(
            f"{differences[0]:,} files of Iceberg and {differences[1]:,} files of Delta differ, more than dvsync "
            f"compares one by one ({DIFFERENCES_MAX:,})",
            hint=REPLACED,
        )
    others = [file for file, differs in zip(live(), differ_in_iceberg, strict=True) if differs.as_py()]
    adds = tuple(state.find_adds(differ_in_delta))
    sizes = {add.path: add.size for add in adds}
    identities = {(add.path, fold_identity(add.path, add.identity)) for add in adds}
    gone, staying = list[RemoveFile](), list[RemoveFile]()
    for file in others:
        tombstone = _tombstone(file)
        # If the size differs, it is a new file with the same name. One commit cannot remove and add equal URIs.
        is_new = (
            sizes.get(file.path) != file.size_bytes
            or (file.path, fold_identity(file.path, tombstone.identity)) in identities
        )
        (staying if same_table and not is_new else gone).append(tombstone)
    first = Commit(
        version=state.version,
        # The later syncs take this time from the log, and Delta may report another one.
        timestamp_ms=context.log.commit_time_ms(state.version, state.timestamp_ms),
        removes=tuple(gone),
        operation=COMPARED,
    )
    metadata, protocol = state.metadata, state.protocol
    second = with_fields(
        first,
        adds=adds,
        removes=tuple(staying),
        metadata=metadata,
        protocol=protocol,
        recent_commits=context.log.identify(state.recent_commits, context.store.find_recent_commits(shown.record.id)),
    )
    return [first, second], Totals(len(in_delta), size_bytes, deleted_rows)


def _check_row_ids(table: Table, state: TableState) -> None:
    """Raise `ReplacementNeeded` if Delta has given other row ids to a file that Iceberg shows.

    Delta does so when it stops tracking row ids and begins again, of which the newest state says nothing.

    Example: `a` has the first row id 0 in Iceberg, and 40 in Delta: the table is rewritten. `b` is only in one.
    """
    snapshot = table.current_snapshot()
    assert snapshot is not None, "what is shown has a snapshot"
    entries = (entry.data_file for entry, _ in live_entries(table, snapshot, ManifestContent.DATA))
    in_iceberg = _hash_row_ids((file.file_path, first_row_id(file)) for file in entries)
    in_delta = _hash_row_ids((add.path, add.first_row_id) for add in state.read_adds() if add.first_row_id is not None)
    stays, same = (pc.is_in(ours, value_set=theirs) for ours, theirs in zip(in_iceberg, in_delta, strict=True))
    if pc.any(pc.and_not(stays, same)).as_py():
        raise ReplacementNeeded(
            "Delta has given other row ids to data files that Iceberg shows", version=state.version, hint=REPLACED
        )


def _hash_row_ids(files: Iterable[tuple[str, int | None]]) -> tuple[pa.Int64Array, pa.Int64Array]:
    """Return the hashes of the files' paths, and those of their paths with their first row ids."""
    paths, with_ids = array("q"), array("q")
    for path, row_id in files:
        paths.append(hash(path))
        with_ids.append(hash((path, row_id)))
    return _packed(paths), _packed(with_ids)


def _tombstone(file: LiveFile) -> RemoveFile:
    return RemoveFile(path=file.path, data_change=True, deletion_vector=file.deletion_vector, uri=file.uri)
