"""Plans the deletion vectors of one snapshot of an Iceberg table of format version 3. Pure.

Each data file has at most one deletion vector, which holds all its deletions (Iceberg spec, "Deletion Vectors"). The
vectors that a commit changes share new Puffin files. A blob that is no longer used stays in its Puffin file as long as
the file serves other data files: it is dead.

PyIceberg 0.12 applies every blob of a Puffin file that a snapshot uses, dead ones too. A dead blob is harmless as long
as the data file's vector still has all of its positions. Otherwise the rows would be deleted again, so a Puffin file is
replaced as a whole when a data file comes back, or rows of it, of which it has a blob. The vectors of the other data
files in it are then copied anew. A position-delete file from version 2 is replaced as a whole, too: it has one entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from pyiceberg.manifest import DataFile

from daemon.delta.replay import TableChange
from daemon.errors import ReplacementNeeded
from daemon.iceberg.manifests import EntryKey
from daemon.iceberg.row_delta import RowDelta
from daemon.translate.data_files import data_file_of
from daemon.translate.delete_files import (
    DeleteFileResult,
    DeleteFileTask,
    DvChange,
    delete_file_entries,
    is_puffin,
)
from daemon.translate.metrics import Metrics
from daemon.translate.partition_values import decode_partition
from daemon.translate.plan import (
    CommitPlan,
    SyncPlan,
    by_manifest,
    dv_changes,
    is_unknown,
    moves_rows_only,
    place_of,
    restored_files,
)
from daemon.translate.schema import TableSchema
from state import DeleteFileRecord, LiveFile, OrphanReason

# Limits of one Puffin file. All its entries are in one manifest, and PyIceberg reads the whole file for each of them.
VECTORS_MAX = 1000
VECTOR_BYTES_MAX = 16 << 20


@dataclass(frozen=True)
class Holders:
    """The live delete files that hold positions of the data files of a change.

    `serving` apply to data files whose deletions change, `former` have dead blobs of data files that are added or whose
    deletions change.
    """

    serving: Sequence[DeleteFileRecord] = ()
    former: Sequence[DeleteFileRecord] = ()

    @property
    def files(self) -> list[DeleteFileRecord]:
        return list({file.path: file for file in (*self.serving, *self.former)}.values())


def leaving(change: TableChange) -> set[str]:
    """Return the data files whose present deletions leave the table."""
    return {*change.removed, *change.dv_changed}


def plan_vectors(
    change: TableChange,
    live: Mapping[str, LiveFile],
    table: TableSchema,
    metrics: Mapping[str, Metrics],
    *,
    name_delete_file: Callable[[int], str],
) -> SyncPlan:
    """Plan the Puffin files of `change`. The arguments are those of `plan_sync`."""
    changes = dv_changes(change, live, table, metrics)
    return SyncPlan(change, live, table, tuple(puffin_tasks(changes, name_delete_file)), metrics)


def puffin_tasks(
    changes: Iterable[tuple[int, DvChange]], name_delete_file: Callable[[int], str]
) -> Iterator[DeleteFileTask]:
    """Divide the changes, each with its spec id, into Puffin files."""
    by_spec: dict[int, list[DvChange]] = defaultdict(list)
    for spec_id, each in changes:
        by_spec[spec_id].append(each)
    number = 0
    for spec_id, members in by_spec.items():
        for chunk in chunks(members):
            yield DeleteFileTask(name_delete_file(number), spec_id, tuple(chunk))
            number += 1


def chunks(changes: Sequence[DvChange]) -> Iterator[list[DvChange]]:
    """Divide the changes into the contents of Puffin files."""
    chunk: list[DvChange] = []
    size_bytes = 0
    for each in changes:
        if chunk and (len(chunk) == VECTORS_MAX or size_bytes + each.after.size_in_bytes > VECTOR_BYTES_MAX):
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(each)
        size_bytes += each.after.size_in_bytes
    if chunk:
        yield chunk


def files_to_replace(
    plan: SyncPlan, results: Sequence[DeleteFileResult], holders: Holders
) -> tuple[list[DeleteFileRecord], set[str]]:
    """Return the delete files that must not stay, and the other data files that they serve."""
    change, gone = plan.change, leaving(plan.change)
    come_back = {*change.added, *restored_files(plan, results)}
    found = [
        file
        for file in holders.files
        if not is_puffin(file.path) or not come_back.isdisjoint({*_served(file), *file.dead})
    ]
    return found, {path for file in found for path in _served(file)} - gone


def copies(data_files: Mapping[str, LiveFile], table: TableSchema) -> list[tuple[int, DvChange]]:
    """Return changes that write the present vectors of `data_files` once more, each with its spec id."""
    copied = []
    for path, file in sorted(data_files.items()):
        if file.deletion_vector is None or is_unknown(file):
            raise ReplacementNeeded(
                "the state store does not know which deletion vector of Delta this data file has",
                path=path,
                hint="dvsync rewrites the Iceberg table from Delta.",
            )
        partition = decode_partition(file.partition, table, file.spec_id)
        change = DvChange(path, file.record_count, None, file.deletion_vector, partition)
        copied.append((file.spec_id, change))
    return copied


def complete_vectors(
    plan: SyncPlan,
    results: Sequence[DeleteFileResult],
    *,
    snapshot_id: int,
    holders: Holders = Holders(),
    replaced: Sequence[DeleteFileRecord] = (),
    copied: Sequence[tuple[DeleteFileTask, DeleteFileResult]] = (),
) -> CommitPlan:
    """Decide every entry of the snapshot once the Puffin files are written.

    `results` belong to the plan's tasks. `replaced` is the first result of `files_to_replace`, `copied` are the Puffin
    files with the vectors of the second.

    For example, Puffin file p1 has blobs of the data files A and B.

    - The vector of A grows: its new blob is in p2. The entry of A in p1 leaves, p1 stays for B, its blob of A is dead.
    - Rows of A come back: the new blobs of A and, copied, of B are in p2. Both entries in p1 leave, and p1 with them.
      The entry of the data file A gets new metrics: the former ones may say nothing of these rows.
    - A is removed: its entry leaves, and p1 stays for B. If A comes back later, p1 is replaced as above.
    """
    change = plan.change
    files = [(task, result.file) for task, result in (*zip(plan.tasks, results, strict=True), *copied)]
    written = tuple((task, file) for task, file in files if file)
    gone = leaving(change)
    entries: list[tuple[str, EntryKey]] = []
    removed: dict[str, OrphanReason] = {}
    dead: list[tuple[str, str]] = []
    replaced_paths = {file.path for file in replaced}
    for file in holders.files:
        served = _served(file)
        leaves = served if file.path in replaced_paths else served & gone
        entries += entries_of(file, leaves)
        if leaves == served:
            is_gone = not served.isdisjoint(change.removed)
            removed[file.path] = OrphanReason.DATA_FILES_GONE if is_gone else OrphanReason.DV_REPLACED
        else:
            dead += [(file.path, data_file) for data_file in sorted(leaves)]
    new_positions = sum(_new_positions(plan.live, each) for task in plan.tasks for each in task.changes)
    delta = RowDelta(
        snapshot_id=snapshot_id,
        added_data_files=[
            data_file_of(add, plan.metrics[path], plan.table, *place_of(add, plan.table, None))
            for path, add in sorted(change.added.items())
        ],
        removed_data_files=by_manifest((plan.live[path].manifest_path, path) for path in change.removed),
        added_delete_files=[entry for task, file in written for entry in delete_file_entries(task, file)],
        removed_delete_files=by_manifest(entries),
        same_rows=moves_rows_only(plan, positions=new_positions),
        renewed_data_files=_renewed(plan, restored_files(plan, results)),
    )
    return CommitPlan(
        delta=delta,
        added_files=change.added,
        changed_dvs={path: add.deletion_vector for path, add in change.dv_changed.items()},
        removed_files=tuple(sorted(change.removed)),
        written=written,
        unwritten_files=tuple(task.output_path for task, file in files if not file),
        removed_delete_files=removed,
        new_positions=new_positions,
        dead_vectors=tuple(dead),
    )


def entries_of(file: DeleteFileRecord, served: Set[str] | None = None) -> list[tuple[str, EntryKey]]:
    """Return the manifest entries of a delete file for the data files `served`, all by default, with their manifest.

    A position-delete file has one entry for all of its data files.
    """
    served = _served(file) if served is None else served
    if is_puffin(file.path):
        return [(file.manifest_path, (file.path, data_file)) for data_file in served]
    return [(file.manifest_path, file.path)] if served else []


def _served(file: DeleteFileRecord) -> Set[str]:
    return {mapping.data_file for mapping in file.mappings}


def _renewed(plan: SyncPlan, restored: Iterable[str]) -> dict[str, dict[str, DataFile]]:
    """Return the entries of restored data files, by manifest, with the metrics of their new adds."""
    renewed: dict[str, dict[str, DataFile]] = defaultdict(dict)
    for path in restored:
        add, known = plan.change.dv_changed[path], plan.live[path]
        place = place_of(add, plan.table, known)
        renewed[known.manifest_path][path] = data_file_of(add, plan.metrics[path], plan.table, *place)
    return renewed


def _new_positions(live: Mapping[str, LiveFile], change: DvChange) -> int:
    known = live.get(change.data_file)
    before = known.deletion_vector.cardinality if known and known.deletion_vector else 0
    return max(0, change.after.cardinality - before)
