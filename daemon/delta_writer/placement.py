"""Finds rows that are named by their positions in an older state of the table, wherever they are now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from daemon.delta.actions import AddFile, Commit
from daemon.delta.commit_info import read_commit_info
from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.features import used_features
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import load_log_segment
from daemon.delta.position_set import as_bitmap
from daemon.delta.snapshot import ReplayedState, replay
from daemon.delta.table_state import adds_from_batches
from daemon.delta_writer.commit import FoundRows
from daemon.errors import CorruptInput, ObjectMissing
from daemon.predicate.rows import rows_of
from state.records import DeletionVectorDescriptor

# PROTOCOL.md, "Row Tracking": the column in which files have the ids of rows that came from other files.
ROW_IDS_COLUMN: Final = "delta.rowTracking.materializedRowIdColumnName"
# What a commit says that gives each row that it moves its former id.
PRESERVED: Final = "delta.rowTracking.preserved"


class RowsMoved(Exception):
    """Nobody can tell where the rows are now; the text says why."""


class PlacedRows:
    """A `Finder` of the rows at positions of data files, as these were at `version`.

    A row is where it was if it is not deleted there. Else a commit since then has deleted it, or moved it if the commit
    also added files: then it is found by its row id, if the table tracks rows. For example, rows 3 and 4 of `a` are
    named, a DELETE removes row 3, and OPTIMIZE replaces `a` by `b`: row 4 is looked for in `b` by its id.
    """

    def __init__(self, log: DeltaLog, rows: Mapping[str, BitMap64], version: int) -> None:
        self._log, self._rows, self._version = log, rows, version
        self._commits: list[Commit] = []
        self._places: set[str] = set()

    def find(self, state: ReplayedState) -> Iterator[FoundRows]:
        """Raises `RowsMoved`, `ObjectMissing` if the state is older, and what the log's readers raise."""
        if state.version < self._version:
            raise ObjectMissing(
                f"the Delta table ends at version {state.version}, but version {self._version} was synced already, and "
                "rows were deleted in Iceberg since then",
                version=self._version,
                path=self._log.folder,
                hint="Restore the log. If the table was put back, `dvsync resync` accepts it; the rows are back then.",
            )
        self._read_commits(state.version)
        adds = {add.path: add for add in adds_from_batches(state.rows.to_batches())}
        removed = {remove.path for commit in self._commits for remove in commit.removes}
        if lost := sorted(self._rows.keys() - adds.keys() - removed):
            raise RowsMoved(f"Delta did not have the file {lost[0]} at version {self._version}")
        placed = {path: positions for path, positions in self._rows.items() if path in adds}
        if moved := self._find_moved(adds):
            for path, positions in self._find_by_row_ids(moved, state, adds):
                placed[path] = placed.get(path, BitMap64()) | positions
        self._places = {*self._rows, *placed}
        for path, positions in placed.items():
            yield FoundRows(adds[path], rows_of(self._log.storage, path), positions)

    def depends_on(self, path: str, _add: AddFile | None) -> bool:
        return path in self._places

    def _read_commits(self, last: int) -> None:
        try:
            for version in range(self._version + len(self._commits) + 1, last + 1):
                self._commits.append(self._log.read_commit(version))
        except ObjectMissing as error:
            raise RowsMoved(f"Delta's log has no commit {self._version + len(self._commits) + 1} any more") from error

    def _find_moved(self, adds: Mapping[str, AddFile]) -> dict[str, BitMap64]:
        """Return those of the rows that left their files by commits that wrote other files, and are not back."""
        moved: dict[str, BitMap64] = {}
        for commit in filter(_rewrites, self._commits):
            again = {add.path: add.deletion_vector for add in commit.adds}
            for remove in commit.removes:
                if remove.path not in self._rows:
                    continue
                left = self._rows[remove.path] - self._deleted(remove.deletion_vector)
                if remove.path in again:
                    left &= self._deleted(again[remove.path])
                moved[remove.path] = moved.get(remove.path, BitMap64()) | left
        for path in moved.keys() & adds.keys():
            moved[path] &= self._deleted(adds[path].deletion_vector)
        return {path: positions for path, positions in moved.items() if positions}

    def _deleted(self, vector: DeletionVectorDescriptor | None) -> BitMap64:
        if vector is None:
            return BitMap64()
        try:
            (positions,) = read_position_sets(self._log.storage, self._log.location, [vector])
        except ObjectMissing as error:
            raise RowsMoved(f"a deletion vector since version {self._version} is gone: {error.path}") from error
        return as_bitmap(positions)

    def _find_by_row_ids(
        self, moved: Mapping[str, BitMap64], state: ReplayedState, adds: Mapping[str, AddFile]
    ) -> Iterator[tuple[str, BitMap64]]:
        count = sum(map(len, moved.values()))
        movers = [commit for commit in self._commits if _rewrites(commit)]
        told = ", ".join(f"{commit.version} ({commit.operation})" for commit in movers)
        what = f"{count:,} of the rows were deleted or moved to other files by version {told}"
        column = state.metadata.configuration.get(ROW_IDS_COLUMN)
        if column is None or "rowTracking" not in used_features(state.metadata):
            raise RowsMoved(f"{what}, and the table does not track rows (delta.enableRowTracking)")
        for commit in movers:
            if read_commit_info(self._log, commit.version).tag(PRESERVED) != "true":
                raise RowsMoved(f"{what}, and version {commit.version} did not keep the row ids")
        before = self._adds_before(what)
        wanted = [self._row_ids(before[path], column, what).take(pa.array(moved[path])) for path in sorted(moved)]
        ids = pa.concat_arrays(wanted)
        for path in sorted({add.path for commit in self._commits for add in commit.adds} & adds.keys() - before.keys()):
            is_wanted = pc.is_in(self._row_ids(adds[path], column, what), value_set=ids)
            if positions := BitMap64(pc.indices_nonzero(is_wanted).to_pylist()):
                yield path, positions

    def _adds_before(self, what: str) -> dict[str, AddFile]:
        try:
            older = replay(self._log, load_log_segment(self._log, self._version))
        except (CorruptInput, ObjectMissing) as error:
            raise RowsMoved(f"{what}, and Delta's state at version {self._version} is gone: {error}") from error
        assert older is not None, "a replay without bounds is whole"
        return {add.path: add for add in adds_from_batches(older.rows.to_batches())}

    def _row_ids(self, add: AddFile, column: str, what: str) -> pa.Int64Array:
        """Return the ids of a file's rows. PROTOCOL.md, "Row Tracking": the column's value, else the base and position.

        Raises `RowsMoved` if the file is gone, or has none.
        """
        if add.first_row_id is None:
            raise RowsMoved(f"{what}, and {add.path} had no row ids")
        try:
            with self._log.storage.open_input(add.path) as source:
                parquet = pq.ParquetFile(source)
                counted = pa.array(range(add.first_row_id, add.first_row_id + parquet.metadata.num_rows), pa.int64())
                if column not in parquet.schema_arrow.names:
                    return counted
                return pc.coalesce(parquet.read([column]).column(0).combine_chunks(), counted)
        except ObjectMissing as error:
            raise RowsMoved(f"{what}, and {add.path} is gone") from error


def _rewrites(commit: Commit) -> bool:
    """Return whether rows of the removed files may be in added ones: some were not removed by the same commit."""
    removed = {remove.path for remove in commit.removes}
    return bool(removed) and any(add.path not in removed for add in commit.adds)
