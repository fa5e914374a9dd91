"""Compares Delta's whole state with what Iceberg shows, and makes commits of the difference."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace as with_fields
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from daemon.delta.actions import Commit, RemoveFile, Totals
from daemon.delta.table_state import TableState
from daemon.delta.uri import fold_identity
from daemon.errors import ReplacementNeeded
from daemon.iceberg.manifests import first_row_id, has_row_lineage
from daemon.iceberg.references import live_entries
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown
from daemon.translate.definition import row_id_column

# Files that differ are held in memory with their statistics, some kilobytes each; the whole table never is.
DIFFERENCES_MAX = 100_000
COMPARED = "compare"  # in a snapshot's summary, in the place of Delta's operation


def not_mendable(what: str, *, version: int | None = None, path: str | None = None) -> ReplacementNeeded:
    hint = "dvsync rewrites the Iceberg table from Delta, in one snapshot."
    return ReplacementNeeded(what, version=version, path=path, hint=hint)


def int64s(values: Iterable[int]) -> pa.Int64Array:
    """Pack values into eight bytes each; a Python list or set needs ten times as much memory."""
    numbers = values if isinstance(values, array) else array("q", values)
    return pa.Int64Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def commits_to_state(context: TableContext, shown: Shown, state: TableState) -> tuple[list[Commit], Totals]:
    """Make commits that turn the live files into `state`. Returns them, to be folded, and the totals of `state`.

    Example: `a`, `b` and `c` are live. Delta's state has `a`, `b` with the new vector `v`, and `d`. The first commit
    removes `c`; the second removes `b` and adds `b` with `v`, and `d`: the file `b` itself is the same.

    Two hashes of 8 bytes are in memory for a file that does not differ. Raises `ReplacementNeeded` if more than
    DIFFERENCES_MAX files differ, or row ids of a file that stays.
    """
    # Another table may have files with the same names and sizes, so none of the old table's files is kept.
    same_table = state.metadata.id == shown.record.delta_table_id
    if same_table and has_row_lineage(shown.table.metadata.format_version) and row_id_column(state.metadata):
        _check_row_ids(shown.table, state)
    live = partial(context.store.read_live_files, shown.record.id)
    in_iceberg = int64s(hash((file.path, file.uri, file.size_bytes, file.dv_unique_id)) for file in live())
    size_bytes, deleted_rows, hashes = 0, 0, array("q")
    for add in state.read_adds():
        size_bytes += state.size_in_delta(add)
        deleted_rows += add.deletion_vector.cardinality if add.deletion_vector else 0
        hashes.append(hash((add.path, add.uri, add.size, add.dv_unique_id if same_table else state.metadata.id)))
    in_delta = int64s(hashes)
    differ_in_iceberg = pc.invert(pc.is_in(in_iceberg, value_set=in_delta))
    differ_in_delta = pc.invert(pc.is_in(in_delta, value_set=in_iceberg))
    differences = pc.sum(differ_in_iceberg).as_py() or 0, pc.sum(differ_in_delta).as_py() or 0
    if max(differences) > DIFFERENCES_MAX:
        raise not_mendable(
            f"{differences[0]:,} files of Iceberg and {differences[1]:,} files of Delta differ, more than dvsync "
            f"compares one by one ({DIFFERENCES_MAX:,})"
        )
    others = [file for file, differs in zip(live(), differ_in_iceberg, strict=True) if differs.as_py()]
    adds = tuple(state.find_adds(differ_in_delta))
    sizes = {add.path: add.size for add in adds}
    identities = {(add.path, fold_identity(add.path, add.identity)) for add in adds}
    gone, staying = list[RemoveFile](), list[RemoveFile]()
    for file in others:
        tombstone = RemoveFile(path=file.path, data_change=True, deletion_vector=file.deletion_vector, uri=file.uri)
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
    second = with_fields(
        first,
        adds=adds,
        removes=tuple(staying),
        metadata=state.metadata,
        protocol=state.protocol,
        recent_commits=context.log.identify(state.recent_commits, context.store.find_recent_commits(shown.record.id)),
    )
    return [first, second], Totals(len(in_delta), size_bytes, deleted_rows)


def _check_row_ids(table: Table, state: TableState) -> None:
    """Raise `ReplacementNeeded` if Delta has given other row ids to a file that Iceberg shows: it does so when it stops
    tracking them and begins again, of which the newest state says nothing.

    Example: `a` has the first row id 0 in Iceberg, and 40 in Delta: the table is rewritten. `b` is only in one.
    """
    snapshot = table.current_snapshot()
    assert snapshot is not None, "what is shown has a snapshot"
    entries = (entry.data_file for entry, _ in live_entries(table, snapshot, ManifestContent.DATA))
    in_iceberg = _hash_row_ids((file.file_path, first_row_id(file)) for file in entries)
    in_delta = _hash_row_ids((add.path, add.first_row_id) for add in state.read_adds() if add.first_row_id is not None)
    stays, same = (pc.is_in(ours, value_set=theirs) for ours, theirs in zip(in_iceberg, in_delta, strict=True))
    if pc.any(pc.and_not(stays, same)).as_py():
        raise not_mendable("Delta has given other row ids to data files that Iceberg shows", version=state.version)


def _hash_row_ids(files: Iterable[tuple[str, int | None]]) -> tuple[pa.Int64Array, pa.Int64Array]:
    """Return the hashes of the files' paths, and those of their paths with their first row ids."""
    paths, with_ids = array("q"), array("q")
    for path, row_id in files:
        paths.append(hash(path))
        with_ids.append(hash((path, row_id)))
    return int64s(paths), int64s(with_ids)
