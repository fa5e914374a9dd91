"""The kernel: reads the deletion vectors of tasks, writes position-delete or Puffin files and returns what they hold.

The same code runs in the daemon's process and in Spark's tasks. It decides nothing: the tasks name the files, and every
error is a SyncError for the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Final, TypeVar

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from daemon.delta.bitmap_format import DVPlace
from daemon.delta.deletion_vector import RECENT_ENTRY_BYTES, Vector, read_vectors
from daemon.delta.position_set import PositionSet, new_positions
from daemon.errors import CorruptInput
from daemon.iceberg.delete_file_writer import damaged_deletes
from daemon.iceberg.position_deletes import PositionDeleteFile, PositionDeleteWriter
from daemon.iceberg.puffin import PuffinWriter
from daemon.iceberg.pyiceberg_ext.file_io import StoreFileIO
from daemon.store.durable import force_to_disk, is_local
from daemon.store.recent import Recent
from daemon.store.storage import REQUESTS_AT_ONCE, FileIOStorage
from daemon.translate.delete_files import DeleteFileResult, DeleteFileTask, DvChange, Rewrite, divided, is_puffin

READ_BYTES_MAX: Final = 16 << 20  # of DVs in memory at a time; a data file with larger ones is read alone
READ_CHANGES_MAX: Final = 1024
SENT_ASIDE_POSITIONS_MAX: Final = 100_000
# Results that wait until their files are forced to the disk together.
RESULTS_MAX: Final = 1024
# Of tables on other machines: the next DV of a data file is compared with the one before, which then costs no request.
RECENT_BYTES_MAX: Final = 4 << 20
ROWS_NEEDED: Final = "rows up to its last deleted position"

W = TypeVar("W", PositionDeleteWriter, PuffinWriter)

_recent: Recent[bytes] = Recent(RECENT_BYTES_MAX, lambda frame: len(frame) + RECENT_ENTRY_BYTES)


def translate(
    tasks: Iterable[DeleteFileTask],
    *,
    table_location: str,
    storage: FileIOStorage,
    target_properties: Mapping[str, str] | None = None,
    at_once: bool = False,
) -> Iterator[DeleteFileResult]:
    """Write the delete files of `tasks`, and yield a result for each, in their order.

    Each change writes the positions `after - before`: {0, 1} -> {0, 1, 2} writes {2}. If rows of `before` are back, it
    writes all of `after`: {0, 1} -> {0, 2} writes {0, 2}. The data file is `restored`, and must be registered again.
    A Puffin file always gets all of `after`, byte for byte.
    Files are written with `target_properties` if given. A second run writes the same files again; with `at_once`
    another run may be at work, or its files in use. Raises SyncError; the unfinished file is then removed if possible,
    and files that were finished stay.
    """
    target = StoreFileIO(dict(storage.properties if target_properties is None else target_properties))
    with _Outputs(storage, target, table_location, at_once=at_once) as outputs:
        changes = ((task, change) for task in tasks for change in task.changes)
        for some in divided(
            changes, lambda each: each[1].size_bytes, size_max=READ_BYTES_MAX, count_max=READ_CHANGES_MAX
        ):
            outputs.add(some)
            if len(outputs.finished) >= RESULTS_MAX:
                yield from outputs.take_finished()
        outputs.finish()
        yield from outputs.take_finished()


class _Outputs(AbstractContextManager["_Outputs"]):
    """The delete file that is being written, and the results of earlier ones.

    A small file goes to an object store when it is finished. Threads wait for that, up to REQUESTS_AT_ONCE of them. A
    larger one has gone there in parts, and is finished before the next one begins: its parts need memory.
    """

    def __init__(self, storage: FileIOStorage, io: FileIO, table_location: str, *, at_once: bool) -> None:
        self.finished: list[DeleteFileResult] = []
        self._sending: deque[Future[DeleteFileResult]] = deque()
        self._senders = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="send")
        self._storage = storage
        self._io = io
        self._table_location = table_location
        self._at_once = at_once
        self._task: DeleteFileTask | None = None
        self._writer: PositionDeleteWriter | PuffinWriter | None = None
        self._restored: list[str] = []

    def __exit__(self, *error: object) -> None:
        self._senders.shutdown()
        if self._writer:
            self._writer.abort()

    def add(self, changes: Sequence[tuple[DeleteFileTask, DvChange]]) -> None:
        descriptors = [dv for _, change in changes for dv in (change.before, change.after) if dv]
        recent = None if is_local(self._table_location) else _recent
        vectors = iter(read_vectors(self._storage, self._table_location, descriptors, recent))
        for task, change in changes:
            if task is not self._task:
                self.finish()
                self._task = task
            before, after = next(vectors) if change.before else None, next(vectors)
            if before and after.lacks_positions_of(before):
                self._restored.append(change.data_file)
                before = None
            if is_puffin(task.output_path):
                self._copy(change, after)
            else:
                self._translate(change, before.positions() if before else None, after.positions(), after.place)

    def _copy(self, change: DvChange, after: Vector) -> None:
        last = after.last_position()
        _check_below(change, after.cardinality, "deleted positions", after.place)
        if last < 0:
            return
        _check_below(change, last + 1, ROWS_NEEDED, after.place)
        self._open(PuffinWriter).write(change.data_file, after.portable_frame(), after.cardinality)

    def _translate(self, change: DvChange, before: PositionSet | None, after: PositionSet, place: DVPlace) -> None:
        _check_below(change, len(after), "deleted positions", place)
        for chunk in new_positions(after, before):
            _check_below(change, chunk[-1] + 1, ROWS_NEEDED, place)
            self._open(PositionDeleteWriter).write(change.data_file, chunk)

    def _open(self, kind: type[W]) -> W:
        """Return the task's writer, which is opened for its first position."""
        if self._writer is None and self._task:
            self._writer = kind(self._io, self._task.output_path, at_once=self._at_once)
        assert isinstance(self._writer, kind)
        return self._writer

    def finish(self) -> None:
        """Finish the delete file that is being written, if any."""
        if self._task is None:
            return
        writer, restored = self._writer, tuple(self._restored)
        if writer is None or is_local(writer.path) or writer.positions > SENT_ASIDE_POSITIONS_MAX:
            self._wait(0)
            self.finished.append(_finished(writer, restored))
        else:
            self._sending.append(self._senders.submit(_finished, writer, restored))
            self._wait(REQUESTS_AT_ONCE)
        self._task, self._writer, self._restored = None, None, []

    def _wait(self, sending_max: int) -> None:
        """Wait until at most `sending_max` files are on their way. The results are in the order of the tasks."""
        while len(self._sending) > sending_max:
            self.finished.append(self._sending.popleft().result())

    def take_finished(self) -> list[DeleteFileResult]:
        """Return the results, and force their files to the disk: only the machine that wrote them can do that."""
        self._wait(0)
        taken, self.finished = self.finished, []
        force_to_disk([result.file.path for result in taken if result.file])
        return taken


def _finished(writer: PositionDeleteWriter | PuffinWriter | None, restored: tuple[str, ...]) -> DeleteFileResult:
    if writer is None:
        return DeleteFileResult(None, restored)
    with writer:
        return DeleteFileResult(writer.finish(), restored)


def _check_below(change: DvChange, rows_needed: int, what: str, place: DVPlace) -> None:
    # Some writers store live rows in numRecords (trino#30343). This check finds them before Iceberg gets the count.
    if rows_needed > change.record_count:
        raise CorruptInput(
            f"the deletion vector of {change.data_file} has {rows_needed} {what}, the data file only "
            f"{change.record_count} rows",
            path=place.path,
            offset=place.offset,
            hint="The Delta log's numRecords or the deletion vector is wrong. Rewrite the data file with REORG, or "
            "RESTORE the Delta table; then `dvsync resume` the table.",
        )


def rewrite_delete_file(rewrite: Rewrite, properties: Mapping[str, str]) -> PositionDeleteFile:
    """Rewrite a shared delete file without the data files that leave, with one row group in memory at a time.

    `properties` are those of the Iceberg table's FileIO. Raises `CorruptInput` when the old file does not hold the
    recorded positions; nothing refers to the new file then.
    """
    with (
        FileIOStorage(properties).open_input(rewrite.old.path) as source,
        PositionDeleteWriter(StoreFileIO(dict(properties)), rewrite.output_path) as writer,
    ):
        parquet = pq.ParquetFile(source)
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, columns=["file_path", "pos"])
            # Sorted by data file, so each one's rows are together and in order.
            for path in pc.unique(rows["file_path"]).to_pylist():
                if path in rewrite.kept:
                    positions = rows.filter(pc.equal(rows["file_path"], path))["pos"].combine_chunks()
                    values = memoryview(positions.buffers()[1]).cast("q")
                    writer.write(path, values[positions.offset :][: len(positions)])
        written = writer.finish()
    expected = {mapping.data_file: mapping.positions for mapping in rewrite.old.mappings}
    for path, positions in written.data_files:
        if positions != expected[path]:
            what = f"the delete file holds {positions} positions of {path}, but {expected[path]} are recorded"
            raise damaged_deletes(what, rewrite.old.path)
    return written
