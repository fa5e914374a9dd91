"""A table's whole state at one version, replayed in this process from the files of its log.

Delta PROTOCOL.md, "Action Reconciliation". Used if the log is small, by `LogSegment.size_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from daemon.delta.actions import AddFile, Commit, Metadata, Protocol, Totals
from daemon.delta.checkpoint import Rows, read_checkpoint
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import LogSegment
from daemon.delta.row_groups import too_large
from daemon.delta.table_state import (
    ADDS,
    Reconciliation,
    TableState,
    adds_batch,
    adds_from_batches,
    check_rows,
    resolve_rows,
)
from daemon.errors import CorruptInput, errors_at

T = TypeVar("T")

# The actions of a bounded replay take this much memory at most, and one batch more.
ROWS_BYTES_MAX = 64 << 20
# A log that only repeats long texts takes more times its size in memory, one of real files some ten times.
EXPANSION_MAX = 100


@dataclass(frozen=True)
class ReplayedState(TableState):
    """The state in memory. `rows` has the columns of `ADDS`, its paths are plain and absolute."""

    rows: pa.Table

    def totals(self) -> Totals:
        """Return the totals that a correct checksum file of this version has."""
        size_bytes, deleted_rows = (pc.sum(self.rows[column]).as_py() or 0 for column in ("size", "dv_cardinality"))
        return Totals(self.files, size_bytes, deleted_rows)

    def read_adds(self, *, with_dv_only: bool = False) -> Iterator[AddFile]:
        rows = self.rows.drop_columns(["stats"])
        rows = rows.filter(pc.is_valid(rows["dv_storage_type"])) if with_dv_only else rows
        yield from adds_from_batches(rows.to_batches())

    def find_adds(self, is_wanted: pa.BooleanArray) -> Iterator[AddFile]:
        yield from adds_from_batches(self.rows.filter(is_wanted).to_batches())

    def map_adds(
        self,
        function: Callable[[int, Iterable[AddFile]], Iterator[T]],
        parts: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Iterable[T]:
        rows, values = self.rows.sort_by("path"), list[T]()
        size = math.ceil(len(rows) / parts)
        for part in range(parts):
            values += function(part, adds_from_batches(rows.slice(part * size, size).to_batches()))
            if on_progress:
                on_progress(part + 1, parts)
        return values


def replay(log: DeltaLog, segment: LogSegment, *, files_max: int | None = None) -> ReplayedState | None:
    """Replay these files into the state of the table; None as soon as it has more than `files_max` live files, or more
    than ROWS_BYTES_MAX of actions. Without `files_max`, `Unsupported` if the actions are far larger than the files.

    Requests: those of `read_commit` for each commit, or a read of the compacted file; those of `read_checkpoint`; two
    for the version's time if its own commit file was not read.

    Raises what these raise, `FileLiveTwice`, and `CorruptInput` if the log has no protocol or metadata. The caller
    checks the protocol.
    """
    newest = _NewestFirst(log.location)
    for file in reversed(segment.commits):
        # A compacted file only saves requests. If it cannot be read, its commits are read.
        compacted = log.read_compacted(file.from_version, file.to_version) if file.is_compacted else None
        if compacted:
            newest.take_commit(compacted)
        for version in range(file.to_version, file.from_version - 1, -1) if compacted is None else ():
            # No variable holds a commit: it would stay in memory while the next commit is read.
            newest.take_commit(log.read_commit(version))
        if newest.is_beyond(files_max):
            return None
    for rows in read_checkpoint(log.storage, log.folder, segment.checkpoint) if segment.checkpoint else ():
        newest.take_checkpoint_rows(rows)
        if newest.is_beyond(files_max):
            return None
        if newest.size_bytes > ROWS_BYTES_MAX + EXPANSION_MAX * segment.size_bytes:
            raise too_large(f"it has {newest.size_bytes} bytes of actions so far").located(path=rows.path)
    if not newest.timestamp_ms:
        written_ms = max(file.modified_ms for file in segment.checkpoint.files) if segment.checkpoint else 0
        newest.timestamp_ms = log.commit_time_ms(segment.version, otherwise=written_ms)
    return newest.state(segment, log.folder)


class _NewestFirst:
    """Reconciles actions that arrive from the newest to the oldest: the first action of a logical file wins.

    Example: the checkpoint has `a`, `b` and `c`. Commit 6 removes `c`. Commit 7 removes `a` and adds it with the
    deletion vector `v`. So `a` with `v` is live, `a` and `c` without vectors are skipped in the checkpoint, `b` is
    live.
    """

    def __init__(self, location: str) -> None:
        self.timestamp_ms: int | None = None  # of the newest commit, 0 if it is in a compacted file
        self._location = location
        self._protocol: Protocol | None = None
        self._metadata: Metadata | None = None
        self._files = Reconciliation()
        self._live: list[pa.RecordBatch] = []
        self._live_files = self.size_bytes = 0

    def take_commit(self, commit: Commit) -> None:
        self.timestamp_ms = commit.timestamp_ms if self.timestamp_ms is None else self.timestamp_ms
        self._protocol = self._protocol or commit.protocol
        self._metadata = self._metadata or commit.metadata
        removes, adds = ([each.logical_file for each in kind] for kind in (commit.removes, commit.adds))
        if live := list(compress(commit.adds, self._files.take_commit(removes, adds))):
            self._keep(adds_batch(live))

    def take_checkpoint_rows(self, rows: Rows) -> None:
        for protocol in rows.protocols:
            self._protocol = self._protocol or protocol
        for metadata in rows.metadata:
            self._metadata = self._metadata or metadata
        if rows.adds.num_rows:
            with errors_at(path=rows.path):
                self._keep(self._without_superseded(resolve_rows(self._location, rows.adds)))

    def _keep(self, live: pa.RecordBatch) -> None:
        self._live.append(live)
        self._live_files += live.num_rows
        self.size_bytes += live.nbytes

    def is_beyond(self, files_max: int | None) -> bool:
        """Whether the live files exceed `files_max`, or their actions are too large. Live files never become fewer."""
        return files_max is not None and (self._live_files > files_max or self.size_bytes > ROWS_BYTES_MAX)

    def state(self, segment: LogSegment, folder: str) -> ReplayedState:
        if self._protocol is None or self._metadata is None:
            kind = "protocol" if self._protocol is None else "metaData"
            hint = "Restore the log's older files, then `dvsync resume` the table."
            what = f"no {kind} action could be recovered from the log"
            raise CorruptInput(what, version=segment.version, path=folder, hint=hint)
        adds = pa.Table.from_batches(self._live, ADDS)
        with errors_at(version=segment.version, path=folder):
            check_rows(adds)
        return ReplayedState(
            location=self._location,
            version=segment.version,
            timestamp_ms=self.timestamp_ms or 0,
            protocol=self._protocol,
            metadata=self._metadata,
            files=adds.num_rows,
            recent_commits=segment.recent_commits,
            rows=adds,
        )

    @cached_property
    def _named(self) -> pa.Array:
        """The paths that commits name. All commits are taken before the checkpoint, so the set is complete."""
        return pa.array(self._files.paths(), pa.string())

    def _without_superseded(self, adds: pa.RecordBatch) -> pa.RecordBatch:
        # Only rows whose path a later commit names are compared one by one, because that is slow.
        suspects = pc.is_in(adds["path"], self._named)
        live = [self._files.is_live(add.logical_file) for add in adds_from_batches([adds.filter(suspects)])]
        return adds.filter(pc.replace_with_mask(pc.invert(suspects), suspects, pa.array(live, pa.bool_())))
