"""Bringing the state store back in step with the Iceberg table, which is the truth about what was committed."""

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
import pyarrow.parquet as pq
import structlog
from msgspec.structs import replace as with_fields
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of

from daemon import log as events
from daemon.delta.actions import Commit, RemoveFile
from daemon.delta.checksum import Totals
from daemon.delta.protocol import check_protocol
from daemon.delta.table_state import TableState
from daemon.errors import CorruptInput, ObjectMissing, ReplacementNeeded, TargetChanged, Unsupported
from daemon.iceberg.account import find_account
from daemon.iceberg.manifests import read_manifest_list, referenced_data_file
from daemon.iceberg.marker import Marker, find_marker, is_marked, shown_by
from daemon.iceberg.references import entries_of, metadata_files
from daemon.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown, live_file, remembered, remembered_account, unchanged_outcome
from daemon.translate.definition import check_shape
from daemon.translate.delete_files import UNKNOWN_DV
from state import DeleteFileRecord, DeletionVectorDescriptor, DvMapping, LiveFile, OrphanReason, Outcome, TableRecord

# What engines write into a snapshot's summary about themselves.
WHO = ("engine-name", "engine-version", "app-id", "spark.app.id", "flink.job-id", "trino_query_id")
FOREIGN_TOLD_MAX = 3
# Files that differ are held in memory with their statistics, some kilobytes each; the whole table never is.
DIFFERENCES_MAX = 100_000
REPLACED = "dvsync writes the whole table anew from Delta's state, in one snapshot."

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def end_intents(context: TableContext, record: TableRecord, table: Table | None) -> TableRecord:
    """Decide every open intent by the snapshots of the Iceberg table: landed, or its files become orphans."""
    store = context.store
    # A change without a snapshot leaves but a metadata file, which tells whether it landed.
    in_use = metadata_files(table) if table else frozenset()
    for intent, outcome in store.find_open_intents(record.id):
        if intent.id in context.in_work:
            continue
        landed = table is not None and table.snapshot_by_id(intent.id) is not None
        if landed and outcome is not None and table is not None:
            done = with_fields(outcome, metadata_location=table.metadata_location)
            store.record_synced(intent.id, done, at_ms=context.clock.now_ms())
            record = remembered(record, done)
        elif not landed:
            at_ms = context.clock.now_ms()
            store.record_abandoned(intent.id, OrphanReason.COMMIT_FAILED, at_ms=at_ms, in_use=in_use)
        # A first sync that landed without being recorded is rebuilt from the table, which ends its intent.
    return record


def check_ours(context: TableContext, record: TableRecord, table: Table) -> None:
    """Raise `TargetChanged` for a table that was never dvsync's, as one that `target` names by mistake."""
    if not is_marked(table) and record.metadata_location not in metadata_files(table):
        raise TargetChanged(
            f"the Iceberg table {context.settings.target} was never dvsync's: neither a snapshot nor a property of it "
            "tells of dvsync, nor does the state database",
            path=table.metadata_location,
            hint="Choose another target, or rename or drop that table: neither a resync nor on_foreign_commit: "
            "overwrite replaces what dvsync did not make.",
        )


def check_source(context: TableContext, table: Table, marker: Marker) -> None:
    """Raise `TargetChanged` when `marker`, of another dvsync's snapshot, tells of another Delta table than our source.

    Where the source was replaced since, within its log, what it was at that version counts. Asks the log first, which
    takes one request, and reads Delta's state only where that does not tell.
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
    name, target = context.settings.name, context.settings.target
    raise TargetChanged(
        f"the Iceberg table {target} shows another Delta table (id {theirs}, version {marker.version}), which the "
        f"dvsync with the state {marker.writer} follows; {context.location} has the id {ours}",
        path=table.metadata_location,
        hint=f"Two Delta tables cannot share a target: give one of them another target. To have this one in {target}, "
        f"stop that dvsync and `dvsync resync {name}`.",
    )


def load_shown(context: TableContext, record: TableRecord, table: Table, *, is_in_doubt: bool) -> Shown:
    """The table with a memory that agrees with it, rebuilt if need be. What `is_in_doubt` is added up first.

    Where its record says `must_compare`, Delta's state must be compared with it as well. Raises `TargetChanged` when
    the current snapshot is someone else's, or one of ours that someone rolled the table back to, and when the table's
    shape is not ours, and `ReplacementNeeded` as `rebuild` does.
    """
    current = table.current_snapshot()
    marker = shown_by(table)
    if current is None or marker is None:
        raise _target_changed(context, table, _foreign_commits(table))
    check_shape(table, context.settings)
    if record.snapshot_id == current.snapshot_id and record.synced_version is not None:
        if record.metadata_location != table.metadata_location:
            # Someone set a property, or an expiry was not recorded any more.
            same = with_fields(unchanged_outcome(record), metadata_location=table.metadata_location)
            context.store.record_synced(None, same, at_ms=context.clock.now_ms())
            record = remembered(record, same)
        if not is_in_doubt or record.must_compare or _adds_up(context, record, table):
            return Shown(record, table)
        return rebuild(context, record, table, marker)
    if _is_rolled_back(record, table, marker):
        raise _target_changed(
            context,
            table,
            f"it was rolled back from snapshot {record.snapshot_id} (Delta version {record.synced_version}) to "
            f"{current.snapshot_id} (Delta version {marker.version})",
        )
    return rebuild(context, record, table, marker)


def _adds_up(context: TableContext, record: TableRecord, table: Table) -> bool:
    """Whether what is remembered comes to what the snapshot says of itself."""
    account = find_account(table.current_snapshot())
    known = remembered_account(context, record)
    if account in (None, known):
        return True
    _log.warning(events.STATE_REBUILT, reason=f"it remembers {known}; snapshot {record.snapshot_id} shows {account}")
    return False


def _is_rolled_back(record: TableRecord, table: Table, marker: Marker) -> bool:
    """Whether the table stands before what was recorded, and not after it, as a crash before recording leaves it."""
    if record.snapshot_id is None:
        return False  # What is remembered was set aside, or written half: it is rebuilt.
    recorded = table.snapshot_by_id(record.snapshot_id)
    current = table.current_snapshot()
    if recorded is not None and current is not None:
        return (current.sequence_number or 0) < (recorded.sequence_number or 0)
    same_table = record.delta_table_id == marker.delta_table_id
    return same_table and record.synced_version is not None and marker.version < record.synced_version


def _foreign_commits(table: Table) -> str:
    """Who did what in which snapshot, as far as the snapshots after ours tell."""
    told = []
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if find_marker(snapshot) is not None:
            break
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        who = " ".join(dict.fromkeys(summary[key] for key in WHO if key in summary)) or "someone who left no name"
        operation = snapshot.summary.operation.value if snapshot.summary else "commit"
        at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
        told.append(f"snapshot {snapshot.snapshot_id}, {operation} by {who} at {at}")
    if not told:
        return "it has no snapshot any more"
    more = f", and {len(told) - FOREIGN_TOLD_MAX} more" if len(told) > FOREIGN_TOLD_MAX else ""
    return f"not committed by dvsync: {'; '.join(told[:FOREIGN_TOLD_MAX])}{more}"


def _target_changed(context: TableContext, table: Table, what: str) -> TargetChanged:
    name = context.settings.name
    return TargetChanged(
        f"the Iceberg table {context.settings.target} was changed by someone else: {what}",
        path=table.metadata_location,
        hint=f"Set the table to dvsync's last snapshot and `dvsync resume {name}`, or let `dvsync resync {name}` "
        "bring back Delta's state in one snapshot; on_foreign_commit: overwrite does so by itself.",
    )


def rebuild(context: TableContext, record: TableRecord, table: Table, marker: Marker) -> Shown:
    """Rebuild what is remembered from Iceberg's manifests and Delta's state at the version that they show.

    Where the two differ, the record says that states must be compared. A deletion vector that cannot be told for sure
    is remembered as unknown, and the comparison then writes that file's deletions anew: neither lost nor doubled.
    Raises `ReplacementNeeded` when Iceberg shows a file twice, or deletes rows of one that it does not show.

    Data manifests are read twice, one after the other: of a file without deletions a hash of 8 bytes is held meanwhile.
    """
    current = table.current_snapshot()
    assert current is not None, "a table with a marker has a snapshot"
    storage = FileIOStorage(context.target_properties(table))
    delete_files = {file.file_path: (file, manifest) for file, manifest in _entries(table, ManifestContent.DELETES)}
    served = {path: _served(storage, delete_file) for path, (delete_file, _) in delete_files.items()}
    positions: Counter[str] = Counter()
    for counts in served.values():
        positions.update(counts)
    shown = _count_files(table, positions)
    delta = _find_delta_state(context, marker)
    dvs = delta[0] if delta else {}
    unknown = {path for path in {*dvs, *positions} if positions[path] != (dvs[path].cardinality if path in dvs else 0)}
    dvs |= dict.fromkeys(unknown, UNKNOWN_DV)
    known = not unknown and delta is not None and delta[1] == shown
    outcome = Outcome(
        table_id=record.id,
        delta_table_id=marker.delta_table_id,
        from_version=None,
        to_version=marker.version,
        source_timestamp_ms=marker.timestamp_ms,
        snapshot_id=current.snapshot_id,
        metadata_location=table.metadata_location,
        must_compare=not known,
    )
    live = (
        live_file(data_file, manifest_path, dvs.get(data_file.file_path))
        for data_file, manifest_path in _entries(table, ManifestContent.DATA)
    )
    deletes = [
        DeleteFileRecord(
            path=path,
            size_bytes=data_file.file_size_in_bytes,
            positions=data_file.record_count,
            spec_id=data_file.spec_id,
            manifest_path=manifest_path,
            mappings=tuple(DvMapping(file, dvs[file].unique_id, count) for file, count in served[path].items()),
        )
        for path, (data_file, manifest_path) in delete_files.items()
    ]
    context.store.record_rebuilt(outcome, live, deletes, at_ms=context.clock.now_ms())
    return Shown(remembered(record, outcome), table)


@dataclass
class _FileSet:
    """The number of files, and the sum of hashes of their paths and sizes: equal for the same ones in any order."""

    files: int = 0
    hashes: int = 0

    def add(self, path: str, size_bytes: int) -> None:
        self.files += 1
        self.hashes += int.from_bytes(blake2b(f"{size_bytes} {path}".encode(), digest_size=16).digest())


def _count_files(table: Table, with_deletions: Collection[str]) -> _FileSet:
    """The data files that the current snapshot shows. Raises `ReplacementNeeded` as `rebuild` does."""
    shown, not_shown = _FileSet(), set(with_deletions)

    def hashes() -> Iterator[int]:
        for data_file, _ in _entries(table, ManifestContent.DATA):
            shown.add(data_file.file_path, data_file.file_size_in_bytes)
            not_shown.discard(data_file.file_path)
            yield hash(data_file.file_path)

    if pc.count_distinct(_int64s(hashes())).as_py() < shown.files:
        raise _not_mendable("the Iceberg table shows a file twice, or more often", table.metadata_location)
    for path in not_shown:
        raise _not_mendable("a delete file of the Iceberg table deletes rows of a file that it does not show", path)
    return shown


def _int64s(values: Iterable[int]) -> pa.Int64Array:
    """Eight bytes a value, where a list or a set of Python's takes ten times that."""
    numbers = array("q", values)
    return pa.Int64Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _entries(table: Table, content: ManifestContent) -> Iterator[tuple[DataFile, str]]:
    """The live entries of the current snapshot, each with the manifest that holds it."""
    snapshot = table.current_snapshot()
    for manifest in read_manifest_list(table.io, snapshot.manifest_list) if snapshot else ():
        if manifest.content is content:
            for entry in entries_of(table, manifest):
                yield entry.data_file, manifest.manifest_path


def _not_mendable(what: str, path: str) -> ReplacementNeeded:
    return ReplacementNeeded(what, path=path, hint=REPLACED)


def _served(storage: FileIOStorage, delete_file: DataFile) -> dict[str, int]:
    """Positions by data file: from the entry when it names its one data file, else from the delete file itself."""
    single = referenced_data_file(delete_file)
    if single is not None:
        return {single: delete_file.record_count}
    with storage.open_input(delete_file.file_path) as file:
        return dict(Counter(pq.read_table(file, columns=["file_path"]).column(0).to_pylist()))


def _find_delta_state(
    context: TableContext, marker: Marker
) -> tuple[dict[str, DeletionVectorDescriptor], _FileSet] | None:
    """The deletion vectors and the files of the Delta version that Iceberg shows; None when Delta cannot go back."""
    # That Spark or the store is away is no answer.
    with (
        suppress(CorruptInput, ObjectMissing, Unsupported),
        context.open_state(marker.version) as state,
    ):
        if state.metadata.id == marker.delta_table_id:
            dvs, files = {}, _FileSet()
            for add in state.read_adds():
                files.add(add.path, add.size)
                if add.deletion_vector:
                    dvs[add.path] = add.deletion_vector
            return dvs, files
    return None


def commits_to_state(context: TableContext, shown: Shown, state: TableState) -> tuple[list[Commit], Totals]:
    """What turns all that is live in Iceberg into `state`: to be folded, with the totals of that state.

    Of a file that does not differ, two hashes of 8 bytes are held. Raises
    `Unsupported` for what that state needs and we cannot show, `ReplacementNeeded` when too much differs.
    """
    try:
        check_protocol(state.protocol)
    except Unsupported as error:
        raise error.located(version=state.version) from error.__cause__
    # Another table may have files by the very names and sizes of the old one's.
    same_table = state.metadata.id == shown.record.delta_table_id
    live = partial(context.store.read_live_files, shown.record.id)
    in_iceberg = _int64s(hash((file.path, file.size_bytes, file.dv_unique_id)) for file in live())
    size_bytes = deleted_rows = 0

    def hashes() -> Iterator[int]:
        nonlocal size_bytes, deleted_rows
        for add in state.read_adds():
            size_bytes += add.size
            deleted_rows += add.deletion_vector.cardinality if add.deletion_vector else 0
            yield hash((add.path, add.size, add.dv_unique_id if same_table else state.metadata.id))

    in_delta = _int64s(hashes())
    differ_in_iceberg = pc.invert(pc.is_in(in_iceberg, value_set=in_delta))
    differ_in_delta = pc.invert(pc.is_in(in_delta, value_set=in_iceberg))
    differences = pc.sum(differ_in_iceberg).as_py() or 0, pc.sum(differ_in_delta).as_py() or 0
    if max(differences) > DIFFERENCES_MAX:
        raise ReplacementNeeded(
            f"Iceberg shows {differences[0]:,} files that Delta has not, or has otherwise, and lacks "
            f"{differences[1]:,}, more than are compared one by one ({DIFFERENCES_MAX:,})",
            hint=REPLACED,
        )
    others = [file for file, differs in zip(live(), differ_in_iceberg, strict=True) if differs.as_py()]
    adds = tuple(state.find_adds(differ_in_delta))
    sizes = {add.path: add.size for add in adds}
    first = Commit(
        version=state.version,
        # Each sync asks the log for it, which may tell another time than Delta does.
        timestamp_ms=context.log.commit_time_ms(state.version, state.timestamp_ms),
        removes=tuple(
            _tombstone(file)
            for file in others
            # A file of another size is another one by the same name.
            if not same_table or sizes.get(file.path) != file.size_bytes
        ),
        operation="resynchronise",
    )
    metadata, protocol = state.metadata, state.protocol
    commits = [first, with_fields(first, adds=adds, removes=(), metadata=metadata, protocol=protocol)]
    return commits, Totals(len(in_delta), size_bytes, deleted_rows)


def _tombstone(file: LiveFile) -> RemoveFile:
    return RemoveFile(path=file.path, data_change=True, deletion_vector=file.deletion_vector)
