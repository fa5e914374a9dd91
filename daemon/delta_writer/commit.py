"""Commits the deletion of rows to a Delta table: vectors first, then one commit file, which only one writer can make.

Who is overtaken reads what the others committed. If that leaves the deletion as it is, the next version is tried, else
the rows are found anew: by the rules of Delta's isolation level Serializable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version as version_of
from typing import Any, Final, Protocol
from uuid import uuid4

from pyroaring import BitMap64

from daemon.clock import Clock
from daemon.delta.actions import AddFile, Commit
from daemon.delta.add_details import load_details
from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.features import used_features
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import LogSegment, load_log_segment
from daemon.delta.position_set import as_bitmap
from daemon.delta.snapshot import ReplayedState, replay
from daemon.delta_writer.actions import (
    Counts,
    Json,
    add_line,
    encode_commit,
    kept_stats,
    remove_line,
    wide_stats,
    zones_of,
)
from daemon.delta_writer.features import check_writable, needs_row_ids
from daemon.delta_writer.footer_stats import indexing_of, load_stats
from daemon.delta_writer.vectors import Tracking, VectorFiles
from daemon.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    ConfigInvalid,
    CorruptInput,
    Retryable,
    Unsupported,
    errors_at,
)
from daemon.store.put_if_absent import HINT_UNKNOWN, put_if_absent
from daemon.store.storage import map_files

# Each finds the rows anew. Versions that leave a deletion as it is are not counted up to a higher limit.
ATTEMPTS_MAX: Final = 10
OVERTAKEN_MAX: Final = 1_000


@dataclass(frozen=True)
class FoundRows:
    """Rows to delete of a live file, which has `record_count` rows, deleted ones too.

    `positions` may have some that are deleted already. None: all rows that are not.
    """

    add: AddFile
    record_count: int
    positions: BitMap64 | None


class Finder(Protocol):
    """Says which rows to delete of a table's state."""

    def find(self, state: ReplayedState) -> Iterable[FoundRows]:
        """Find the rows, each file once; called again for a newer state if somebody else commits in between."""

    def depends_on(self, path: str, add: AddFile | None) -> bool:
        """Whether `find` could find other rows once a commit has removed, or with `add` added, the file at `path`."""


@dataclass(frozen=True)
class Wanted:
    """What a commit says of itself, and the most rows that it may delete."""

    parameters: Mapping[str, str]
    by: str | None = None
    at_most: int | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class Deletion:
    """What was deleted, or would be. `version` is that of the commit; None if there was none.

    `vector_files` are those that the commit names.
    """

    read_version: int
    version: int | None
    deleted_rows: int
    files_removed: int
    files_marked: int
    bytes_written: int
    vector_files: tuple[str, ...] = ()


class _Overtaken(Exception):
    """Another commit changed what was read, or what was written is too old."""


def commit_deletion(
    log: DeltaLog, clock: Clock, finder: Finder, wanted: Wanted, tracking: Tracking | None = None
) -> Deletion:
    """Delete the rows that `finder` finds in the newest state of the table.

    A state store with `tracking` has the names of the vector files from before they exist. The caller lets it forget
    the `vector_files` of the result. Without it, VACUUM removes what a kill leaves.

    Raises `Unsupported` if dvsync does not write this table, `ConfigInvalid` for more rows than wanted,
    `CommitConflict` after ATTEMPTS_MAX, and what the log's readers raise: nothing is committed then. After a
    `CommitOutcomeUnknown` it may be. Raises StateUnavailable, too, with `tracking`.
    """
    for _ in range(ATTEMPTS_MAX):
        segment = load_log_segment(log)
        state = replay(log, segment)
        assert state is not None, "a replay without bounds is whole"
        with errors_at(version=state.version, path=log.folder):
            check_writable(state.protocol, state.metadata)
        try:
            return _Attempt((log, segment, state), clock, finder, wanted, tracking).run()
        except _Overtaken:
            continue
    raise CommitConflict(
        f"other writers committed first, {ATTEMPTS_MAX} times in a row, and changed what was to be deleted",
        path=log.folder,
        hint="Nothing was deleted. Run it again when the table has fewer commits.",
    )


class _Attempt:
    """One state of the table, from which the rows are found. `table` is its log, with the files that make the state."""

    def __init__(
        self,
        table: tuple[DeltaLog, LogSegment, ReplayedState],
        clock: Clock,
        finder: Finder,
        wanted: Wanted,
        tracking: Tracking | None,
    ) -> None:
        self._log, self._segment, self._state = table
        self._clock, self._finder, self._wanted = clock, finder, wanted
        self._files = VectorFiles(self._log, clock, self._state.version, tracking)
        self._counts = Counts()

    def run(self) -> Deletion:
        try:
            return self._run()
        except CommitOutcomeUnknown:
            raise  # The commit may have come, and name the files.
        except Exception:
            self._files.discard()
            raise

    def _run(self) -> Deletion:
        started_s = self._clock.monotonic_s()
        found = []
        for rows in self._finder.find(self._state):
            if each := self._deleted(rows):
                found.append(each)
            at_most = None if self._wanted.dry_run else self._wanted.at_most
            if at_most is not None and self._counts.deleted_rows > at_most:
                raise ConfigInvalid(
                    f"more than {at_most:,} rows would be deleted (--at-most)",
                    version=self._state.version,
                    hint="Nothing was deleted. --dry-run says how many rows there are.",
                )
        scanned_s = self._clock.monotonic_s()
        lines = self._lines(found)
        if not found or self._wanted.dry_run:
            return self._deletion(None)
        self._files.write()
        version = self._commit(lines, round((scanned_s - started_s) * 1000), scanned_s)
        self._files.put_back()
        return self._deletion(version)

    def _deletion(self, version: int | None) -> Deletion:
        counts = self._counts
        marked = counts.vectors_added + counts.vectors_updated
        files = self._files
        return Deletion(
            self._state.version,
            version,
            counts.deleted_rows,
            counts.files_removed,
            marked,
            files.bytes_written,
            files.paths,
        )

    def _deleted(self, rows: FoundRows) -> tuple[FoundRows, Any] | None:
        """Count the rows, and add the file's new vector, which is None if no row is left. None: no row is new."""
        add, counts = rows.add, self._counts
        older = add.deletion_vector.cardinality if add.deletion_vector else 0
        positions = None if rows.positions is None else self._with_older(rows.positions, add)
        deleted = rows.record_count if positions is None else len(positions)
        if (positions and positions[-1] >= rows.record_count) or older > rows.record_count:
            raise CorruptInput(
                f"a position is beyond the {rows.record_count} rows of the file",
                path=add.path,
                hint="The log and the file do not belong together: restore the Delta table.",
            )
        if deleted == older and positions is not None:
            return None
        counts.deleted_rows += deleted - older
        vector = None
        if deleted < rows.record_count:
            assert positions is not None, "not all rows are deleted"
            vector = self._files.add(positions)
            counts.vectors_updated += add.deletion_vector is not None
            counts.vectors_added += add.deletion_vector is None
        else:
            counts.files_removed += 1
            counts.vectors_removed += add.deletion_vector is not None
        # Without the positions: what is to be written has them.
        return replace(rows, positions=None), vector

    def _with_older(self, positions: BitMap64, add: AddFile) -> BitMap64:
        if add.deletion_vector is None:
            return positions
        (older,) = read_position_sets(self._log.storage, self._log.location, [add.deletion_vector])
        return positions | as_bitmap(older)

    def _lines(self, found: list[tuple[FoundRows, Any]]) -> list[Json]:
        details = load_details(self._log, self._segment, {rows.add.logical_file for rows, _ in found})
        has_row_ids = needs_row_ids(self._state.protocol, self._state.metadata)
        stats = self._find_stats([rows for rows, vector in found if vector is not None])
        now_ms, lines, zones = self._clock.now_ms(), list[Json](), zones_of(self._state.metadata)
        for rows, vector in found:
            known = details[rows.add.logical_file]
            if has_row_ids and (rows.add.base_row_id is None or known.default_row_commit_version is None):
                raise Unsupported(
                    "the table tracks rows, and this file has no row ids yet",
                    path=rows.add.path,
                    hint="ALTER TABLE … SET TBLPROPERTIES ('delta.enableRowTracking' = 'true') in Delta gives them.",
                )
            if vector is not None:
                wide = wide_stats(rows.add, rows.record_count, zones, stats[rows.add.path])
                lines.append(add_line(rows.add, known, vector, wide))
            lines.append(remove_line(rows.add, known, rows.record_count, now_ms))
        return lines

    def _find_stats(self, marked: list[FoundRows]) -> dict[str, Json]:
        """Return the statistics of files by path; of those that have none in the log, by one request for each."""
        stats = {rows.add.path: kept_stats(rows.add, rows.record_count) for rows in marked}
        lacking = [rows for rows in marked if not stats[rows.add.path] and not self._wanted.dry_run]
        indexing = indexing_of(self._state.metadata)

        def load(rows: FoundRows) -> Json:
            return load_stats(self._log.storage, rows.add.path, rows.record_count, indexing)

        computed = map_files(load, lacking, lambda rows: rows.add.path)
        return stats | {rows.add.path: each for rows, each in zip(lacking, computed, strict=True)}

    def _commit(self, lines: list[Json], scan_ms: int, scanned_s: float) -> int:
        """Make the next commit that is free, unless a commit in between changed what was read."""
        version, before_ms = self._state.version + 1, self._state.timestamp_ms
        for _ in range(OVERTAKEN_MAX):
            if self._files.are_too_old():
                raise _Overtaken
            rewrite_ms = round((self._clock.monotonic_s() - scanned_s) * 1000)
            data = encode_commit(self._commit_info(before_ms, scan_ms, rewrite_ms), lines)
            if self._put(version, data):
                return version
            commit = self._log.read_commit(version)
            if self._is_changed_by(commit):
                raise _Overtaken
            version, before_ms = version + 1, commit.timestamp_ms
        raise _Overtaken

    def _put(self, version: int, data: bytes) -> bool:
        path, storage = self._log.commit_path(version), self._log.storage
        unknown = CommitOutcomeUnknown("who wrote the commit file cannot be read", path=path, hint=HINT_UNKNOWN)
        try:
            if put_if_absent(path, data, self._log.location, storage.properties):
                return True
        except CommitOutcomeUnknown as error:
            unknown = error
        # Ours is unlike any other by its transaction id. A store's client may have sent it twice.
        try:
            return storage.read(path) == data
        except Retryable as error:
            raise unknown from error

    def _is_changed_by(self, commit: Commit) -> bool:
        """Return whether the rows must be found anew after a commit of somebody else."""
        if commit.metadata or commit.protocol:
            return True
        removed = any(self._finder.depends_on(remove.path, None) for remove in commit.removes)
        return removed or any(self._finder.depends_on(add.path, add) for add in commit.adds)

    def _commit_info(self, before_ms: int, scan_ms: int, rewrite_ms: int) -> Json:
        """PROTOCOL.md, "Commit Provenance Information"; the names are those of Delta on Spark."""
        now_ms, state = self._clock.now_ms(), self._state
        info: Json = {}
        used = used_features(state.metadata)
        if "inCommitTimestamp" in used:
            info["inCommitTimestamp"] = max(now_ms, before_ms + 1)
        info |= {
            "timestamp": now_ms,
            "operation": "DELETE",
            "operationParameters": dict(self._wanted.parameters),
            "readVersion": state.version,
            "isolationLevel": "Serializable",
            "isBlindAppend": False,
            "operationMetrics": self._counts.metrics(scan_ms=scan_ms, rewrite_ms=rewrite_ms),
            "engineInfo": f"dvsync/{version_of('dvsync')}",
            "txnId": str(uuid4()),
        }
        if self._wanted.by:
            info["userName"] = self._wanted.by
        if "rowTracking" in used:
            info["tags"] = {"delta.rowTracking.preserved": "true"}
        return info
