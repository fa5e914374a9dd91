"""Rebuilds the state store from the Iceberg table's manifests and Delta's state at the version that they show."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b

import pyarrow.compute as pc
from msgspec.structs import replace as with_fields
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from daemon.errors import CorruptInput, ObjectMissing, Unsupported
from daemon.iceberg.marker import Marker
from daemon.iceberg.position_deletes import count_served
from daemon.iceberg.puffin import read_blobs
from daemon.iceberg.references import live_entries
from daemon.mirror.substitution import MirroredState, Mirrors
from daemon.observe import tracing
from daemon.store.storage import FileIOStorage
from daemon.sync.comparison import int64s, not_mendable
from daemon.sync.context import TableContext
from daemon.sync.mirrors import find_mirrors_in, remember_mirrors
from daemon.sync.outcomes import Shown, live_file, shown_in
from daemon.translate.delete_files import UNKNOWN_DV, is_puffin
from state import (
    DeleteFileRecord,
    DeletionVectorDescriptor,
    DvMapping,
    MirrorRecord,
    Outcome,
    TableRecord,
    with_outcome,
)


@tracing.step("rebuild")
def rebuild(
    context: TableContext,
    record: TableRecord,
    table: Table,
    marker: Marker,
    known: Mapping[str, DeletionVectorDescriptor] | None = None,
) -> Shown:
    """If Iceberg's manifests and Delta's state at their version differ, the record gets `must_compare`. If a file's
    deletions differ, its deletion vector is recorded as unknown. The comparison then rewrites its deletions, so that
    none is lost or applied twice.

    Example: Iceberg shows `a`, `b` and `c`, with two deleted rows in `a` and one in `b`. In Delta the vector of `a` has
    two rows, and that of `b` has three. `a` gets Delta's vector, `b` an unknown one, `c` none; states must be compared.

    `known` are newer vectors of data files, of which the table shows exactly these rows as deleted.

    Raises `ReplacementNeeded` if Iceberg shows a file twice, or has deletions of a file that it does not show.
    Data manifests are read twice, so that only 8 bytes (a hash) are in memory for a file without deletions.
    """
    current = table.current_snapshot()
    assert current is not None, "a table with a marker has a snapshot"
    delete_files = list(_read_delete_files(context, table, current))
    positions: Counter[str] = Counter()
    for _, served in delete_files:
        positions.update(served)
    shown = _hash_files(table, current, positions)
    delta = _find_delta_state(context, marker, table) or _DeltaState()
    dvs, uris = {**delta.dvs, **(known or {})}, delta.uris
    unknown = {path for path in {*dvs, *positions} if positions[path] != (dvs[path].cardinality if path in dvs else 0)}
    dvs |= dict.fromkeys(unknown, UNKNOWN_DV)
    outcome = Outcome(
        table_id=record.id,
        delta_table_id=marker.delta_table_id,
        from_version=None,
        to_version=marker.version,
        source_timestamp_ms=marker.timestamp_ms,
        snapshot_id=current.snapshot_id,
        must_compare=bool(unknown or known) or delta.files != shown,
    )
    outcome = shown_in(outcome, table)
    live = (
        live_file(entry.data_file, manifest_path, dvs.get(path), uris.get(path))
        for entry, manifest_path in live_entries(table, current, ManifestContent.DATA)
        for path in [entry.data_file.file_path]
    )
    deletes = [
        with_fields(file, mappings=tuple(DvMapping(path, dvs[path].unique_id, count) for path, count in served.items()))
        for file, served in delete_files
    ]
    remember_mirrors(context, record.id, table)
    at_ms = context.clock.now_ms()
    context.store.record_rebuilt(
        outcome, live, deletes, at_ms=at_ms, synced_at_ms=current.timestamp_ms, mirrors=delta.mirrors
    )
    return Shown(with_outcome(record, outcome), table)


def _read_delete_files(
    context: TableContext, table: Table, snapshot: Snapshot
) -> Iterator[tuple[DeleteFileRecord, dict[str, int]]]:
    """Read the delete files of a snapshot, each with the number of live positions by data file. Raises as `rebuild`."""
    storage = FileIOStorage(context.target_properties(table))
    found: dict[str, tuple[str, list[DataFile]]] = {}
    for entry, manifest_path in live_entries(table, snapshot, ManifestContent.DELETES):
        path = entry.data_file.file_path
        manifest, entries = found.setdefault(path, (manifest_path, []))
        entries.append(entry.data_file)
        if manifest != manifest_path:
            raise not_mendable("several manifests of the Iceberg table have entries of this delete file", path=path)
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
        yield record, served


def _hash_file(path: str, size_bytes: int) -> int:
    """The sum of these shows whether two tables have the same files, in whatever order."""
    return int.from_bytes(blake2b(f"{size_bytes} {path}".encode(), digest_size=16).digest())


def _hash_files(table: Table, snapshot: Snapshot, with_deletions: Collection[str]) -> int:
    """Return the sum for the data files of a snapshot. Raises `ReplacementNeeded` as `rebuild` does."""
    shown, not_shown, paths = 0, set(with_deletions), array("q")
    for entry, _ in live_entries(table, snapshot, ManifestContent.DATA):
        path = entry.data_file.file_path
        shown += _hash_file(path, entry.data_file.file_size_in_bytes)
        not_shown.discard(path)
        paths.append(hash(path))
    if pc.count_distinct(int64s(paths)).as_py() < len(paths):
        raise not_mendable("the Iceberg table shows a file twice, or more often", path=table.metadata_location)
    for path in not_shown:
        raise not_mendable("a delete file of the Iceberg table deletes rows of a file that it does not show", path=path)
    return shown


@dataclass
class _DeltaState:
    """What Delta has at a version: deletion vectors and URIs by path, with mirrors in the place of data files.

    `files` is the sum of the files; None if it is not known.
    """

    dvs: dict[str, DeletionVectorDescriptor] = field(default_factory=dict)
    uris: dict[str, str] = field(default_factory=dict)
    mirrors: list[MirrorRecord] = field(default_factory=list)
    files: int | None = None


def _find_delta_state(context: TableContext, marker: Marker, table: Table) -> _DeltaState | None:
    """Read the state of the version that Iceberg shows; None if Delta no longer has it."""
    # Errors such as an unavailable store do not show that the version is gone, so they are raised.
    with suppress(CorruptInput, ObjectMissing, Unsupported), context.open_delta_state(marker.version) as state:
        if state.metadata.id == marker.delta_table_id:
            found = _DeltaState(mirrors=find_mirrors_in(table, table.current_snapshot(), state), files=0)
            for add in MirroredState.over(state, Mirrors.of(context.location, found.mirrors)).read_adds():
                found.files = (found.files or 0) + _hash_file(add.path, add.size)
                if add.deletion_vector:
                    found.dvs[add.path] = add.deletion_vector
                if add.uri is not None:
                    found.uris[add.path] = add.uri
            return found
    return None
