"""A table's whole state at one version, replayed in this process from the files of its log.

Delta PROTOCOL.md, "Action Reconciliation". For tables of any kind whose log is small; `LogSegment.size_bytes` tells.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from daemon.delta.actions import AddFile, Commit, Metadata, Protocol, resolve_path
from daemon.delta.checkpoint import Rows, read_checkpoint
from daemon.delta.checksum import Totals
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import CommitFile, LogSegment
from daemon.delta.protocol import check_protocol
from daemon.delta.table_state import ADDS, Progress, TableState, adds_batch, adds_from_batch
from daemon.delta.uri import find_uri_fault
from daemon.errors import CorruptInput, SyncError
from daemon.storage import FileIOStorage

T = TypeVar("T")

# A path below the table that is spelled as the file is called: no escapes, no scheme, no `.` or `..`.
PLAIN_PATH = r"^[A-Za-z0-9_=+\-][A-Za-z0-9_=+\-.,~!$&'()*;@/]*$"
DOTS = "/."


@dataclass(frozen=True)
class ReplayedState(TableState):
    """The state in memory. `rows` has the columns of `ADDS`, its paths are plain and absolute."""

    rows: pa.Table

    def totals(self) -> Totals:
        """What a checksum file of this version says, if it is right."""
        size_bytes, deleted_rows = (pc.sum(self.rows[column]).as_py() or 0 for column in ("size", "dv_cardinality"))
        return Totals(self.files, size_bytes, deleted_rows)

    def read_adds(self, *, with_dv_only: bool = False) -> Iterator[AddFile]:
        rows = self.rows.drop_columns(["stats"])
        yield from _adds(rows.filter(pc.is_valid(rows["dv_storage_type"])) if with_dv_only else rows)

    def find_adds(self, is_wanted: pa.BooleanArray) -> Iterator[AddFile]:
        yield from _adds(self.rows.filter(is_wanted))

    def map_adds(
        self,
        function: Callable[[int, Iterable[AddFile]], Iterator[T]],
        parts: int,
        progress: Progress | None = None,
        what: str = "parts",
    ) -> Sequence[T]:
        rows, values = self.rows.sort_by("path"), list[T]()
        size = math.ceil(len(rows) / parts)
        for part in range(parts):
            values += function(part, _adds(rows.slice(part * size, size)))
            if progress:
                progress.advanced(part + 1, parts, what)
        return values


def _adds(rows: pa.Table) -> Iterator[AddFile]:
    for batch in rows.to_batches():
        yield from adds_from_batch(batch)


def replay(storage: FileIOStorage, log: DeltaLog, segment: LogSegment) -> ReplayedState:
    """The state that these files make.

    Requests: those of `DeltaLog.read_commit` for each commit, or a read of the compacted file; those of
    `read_checkpoint`; two for the time of a version whose own commit is not among what was read.

    Raises what they raise, `CorruptInput` where a file is added twice or the log has no protocol or metadata, and
    `Unsupported` for a protocol that is not known.
    """
    newest = _NewestFirst(log.location)
    times_ms = [_take_file(newest, log, file) for file in reversed(segment.commits)]
    if segment.checkpoint:
        for rows in read_checkpoint(storage, log.folder, segment.checkpoint):
            newest.take_checkpoint_rows(rows)
    timestamp_ms = times_ms[0] if times_ms else None
    if timestamp_ms is None:
        written_ms = segment.checkpoint.modified_ms if segment.checkpoint else 0
        timestamp_ms = log.commit_time_ms(segment.version, otherwise=written_ms)
    return newest.state(segment.version, timestamp_ms, log.folder)


def _take_file(newest: _NewestFirst, log: DeltaLog, file: CommitFile) -> int | None:
    """When the newest of its commits was committed; None where that was not read.

    A compacted file that cannot be read is passed over for its commits: it is but a short cut.
    """
    compacted = log.read_compacted(file.from_version, file.to_version) if file.is_compacted else None
    if compacted:
        newest.take_commit(compacted)
        return None
    # No name for a commit: one would keep it in memory while the next is read.
    times_ms = [
        newest.take_commit(log.read_commit(version)) for version in range(file.to_version, file.from_version - 1, -1)
    ]
    return times_ms[0]


class _NewestFirst:
    """Reconciles actions that come from the newest to the oldest: the first of a path or a logical file decides."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._protocol: Protocol | None = None
        self._metadata: Metadata | None = None
        # The newest add of a path stands for it, whatever the deletion vectors of older ones.
        self._decided: set[str] = set()
        self._removed: dict[str, set[str | None]] = {}
        self._live: list[pa.RecordBatch] = []
        # Of the paths in checkpoints, to tell cheaply that none is there twice.
        self._hashes: set[int] = set()
        self._may_have_doubles = False

    def take_commit(self, commit: Commit) -> int:
        """When it was committed, in ms."""
        self._protocol = self._protocol or commit.protocol
        self._metadata = self._metadata or commit.metadata
        live = [add for add in commit.adds if self._is_live(add.path, add.dv_unique_id)]
        if live:
            self._live.append(adds_batch(live))
        self._decided |= {add.path for add in commit.adds}
        for remove in commit.removes:
            self._removed.setdefault(remove.path, set()).add(remove.dv_unique_id)
        return commit.timestamp_ms

    def take_checkpoint_rows(self, rows: Rows) -> None:
        for protocol in rows.protocols:
            self._protocol = self._protocol or protocol
        for metadata in rows.metadata:
            self._metadata = self._metadata or metadata
        if rows.adds.num_rows:
            paths = self._resolved(rows.adds["path"], rows.path)
            self._note(paths)
            self._live.append(self._without_superseded(rows.adds.set_column(0, "path", paths)))

    def state(self, version: int, timestamp_ms: int, folder: str) -> ReplayedState:
        if self._protocol is None or self._metadata is None:
            kind = "protocol" if self._protocol is None else "metaData"
            hint = "Restore the log's older files, then `dvsync resume` the table."
            what = f"no {kind} action could be recovered from the log"
            raise CorruptInput(what, version=version, path=folder, hint=hint)
        adds = pa.Table.from_batches(self._live, ADDS)
        try:
            check_protocol(self._protocol)
            if self._may_have_doubles:
                self._check_unique(adds)
        except SyncError as error:
            raise error.located(version=version, path=folder) from error.__cause__
        return ReplayedState(self._location, version, timestamp_ms, self._protocol, self._metadata, adds.num_rows, adds)

    def _is_live(self, path: str, dv_unique_id: str | None) -> bool:
        return path not in self._decided and dv_unique_id not in self._removed.get(path, ())

    @cached_property
    def _named(self) -> pa.Array:
        """The paths that commits name: all of those were taken before the checkpoint."""
        return pa.array(self._decided | self._removed.keys(), pa.string())

    def _without_superseded(self, adds: pa.RecordBatch) -> pa.RecordBatch:
        """A deletion vector's id is made only for the rows whose path a later commit names."""
        paths = adds["path"]
        suspects = pc.indices_nonzero(pc.is_in(paths, self._named)).to_pylist()
        gone = [row for row in suspects if not self._is_live(paths[row].as_py(), _dv_unique_id(adds, row))]
        if not gone:
            return adds
        return adds.filter(pc.invert(pc.is_in(pa.array(range(len(adds))), pa.array(gone, pa.int64()))))

    def _resolved(self, paths: pa.Array, checkpoint: str) -> pa.Array:
        """Plain absolute paths. Raises `CorruptInput` for one that Delta cannot read."""
        plain = pc.and_not(pc.match_substring_regex(paths, PLAIN_PATH), pc.match_substring(paths, DOTS))
        others = pc.invert(plain)
        spelled = paths.filter(others).to_pylist()
        below = pc.binary_join_element_wise(self._location, paths, "/")
        if not spelled:
            return below
        for path in spelled:
            if fault := find_uri_fault(path):
                what = f"Delta cannot read the path {path!r} of a data file: {fault}"
                raise CorruptInput(what, path=checkpoint, hint="Fix the program that wrote the checkpoint.")
        resolved = [resolve_path(self._location, path) for path in spelled]
        return pc.replace_with_mask(below, others, pa.array(resolved, pa.string()))

    def _note(self, paths: pa.Array) -> None:
        expected = len(self._hashes) + len(paths)
        self._hashes.update(map(hash, paths.to_pylist()))
        self._may_have_doubles |= len(self._hashes) != expected

    def _check_unique(self, adds: pa.Table) -> None:
        ((path, count),) = Counter(adds["path"].to_pylist()).most_common(1)
        if count > 1:
            hint = "Remove the checkpoint if an older one and the commits after that are there."
            raise CorruptInput(f"the checkpoint has {count} adds for the one path {path}", hint=hint)


def _dv_unique_id(adds: pa.RecordBatch, row: int) -> str | None:
    """PROTOCOL.md, "Derived Fields"."""
    kind, path, offset = (adds[name][row].as_py() for name in ("dv_storage_type", "dv_path", "dv_offset"))
    if kind is None:
        return None
    return f"{kind}{path}" if offset is None else f"{kind}{path}@{offset}"
