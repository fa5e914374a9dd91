"""Decides where work on many files runs: little work in this process, much work on Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_

from daemon.delta.actions import NO_DIFFERENCE, AddFile
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import load_log_segment
from daemon.delta.snapshot import replay
from daemon.delta.table_state import TableState
from daemon.errors import CorruptInput, FileLiveTwice, PipelineAway, SyncError, Unsupported
from daemon.pipeline.inspection import Inspection, Inspector, inspect
from daemon.pipeline.kernel import translate
from daemon.pipeline.mirrors import MirrorPlanner, MirrorTask, WantedMirrors, make_on_spark
from daemon.spark.answers import map_on_spark
from daemon.spark.session import SparkPipeline
from daemon.spark.table_state import read_table_state
from daemon.store.storage import FileIOStorage
from daemon.translate.delete_files import DeleteFileResult, DeleteFileTask, divided
from daemon.translate.file_schema import FileTraits
from daemon.translate.metrics import Metrics
from daemon.translate.schema import TableSchema

# With the engine `auto`, Spark reads the whole state of a table whose checkpoint and later commits have more bytes, or
# that has more data files; it translates a change with more deletion vectors, or more bytes of them, and reads the
# footers of more added data files.
LOCAL_LOG_BYTES_MAX = 16 << 20
LOCAL_DELETION_VECTORS_MAX = 2_000
LOCAL_DELETION_VECTOR_BYTES_MAX = 64 << 20
LOCAL_DATA_FILES_MAX = 5_000
# It writes mirrors if there are more of them than that, or if more bytes have to be rewritten.
LOCAL_REWRITTEN_BYTES_MAX = 1 << 30

# A Spark task takes at most this many deletion vectors, or one larger delete file: it runs for seconds, not minutes.
DVS_PER_TASK = 500

# Footers that one Spark task reads.
DATA_FILES_PER_TASK = 1_000

# Mirrors that are planned to be made together, or that one Spark task makes, and bytes of them that are rewritten. On
# Spark, so many tasks of each core end before their sizes are recorded, and so may exceed `mirror_bytes_max`; executors
# that come later are counted in the next round.
MIRRORS_AT_ONCE = 50
REWRITTEN_BYTES_AT_ONCE = 128 << 20
TASKS_OF_CORE = 4


@dataclass(frozen=True)
class Runner:
    """Does the work on many files here, or, if it is too much, in a Spark session, which all tables share."""

    spark: SparkPipeline
    engine: str

    @contextmanager
    def open_state(self, log: DeltaLog, version: int | None = None) -> Iterator[TableState]:
        """Open the state of the Delta table at `version`, or the newest state, until the end of the block.

        With the engine `auto`, Spark decides about a log that dvsync refuses: Delta ignores some faults, for example a
        damaged checkpoint if an older one is complete. Without Spark the refusal stands.

        Raises as `load_log_segment` and `replay` or as `read_table_state` do, and `PipelineAway`.
        """
        refused: SyncError | None = None
        replayed: TableState | None = None
        try:
            replayed = self._replay(log, version)
        except FileLiveTwice:
            raise  # Delta on Spark reads such a log, but Iceberg cannot show what it reads.
        except (CorruptInput, Unsupported) as error:
            if self.engine == "local":
                raise
            refused = error
        if replayed:
            yield replayed
            return
        with ExitStack() as stack:
            try:
                spark = stack.enter_context(self.spark.session())
            except PipelineAway:
                if refused:
                    raise refused from refused.__cause__
                raise
            yield read_table_state(spark, log, version)

    def _replay(self, log: DeltaLog, version: int | None) -> TableState | None:
        """Replay the state here. None if Spark must read it: too large, or against the checksum file."""
        if self.engine == "spark":
            return None
        segment = load_log_segment(log, version)
        if self.engine == "local":
            return replay(log, segment)
        if segment.size_bytes > LOCAL_LOG_BYTES_MAX:
            return None
        state = replay(log, segment, files_max=LOCAL_DATA_FILES_MAX)
        checksum = log.read_checksum(state.version) if state else None
        return state if state and (checksum is None or checksum.more_than(state.totals()) == NO_DIFFERENCE) else None

    def write_delete_files(
        self,
        tasks: Sequence[DeleteFileTask],
        *,
        table_location: str,
        storage: FileIOStorage,
        target_properties: Mapping[str, str],
    ) -> list[DeleteFileResult]:
        """Run the kernel over `tasks`, and return a result for each, in their order. Its file is complete."""
        if not tasks:
            return []
        kernel = partial(
            translate, table_location=table_location, storage=storage, target_properties=dict(target_properties)
        )
        sizes_bytes = [change.size_bytes for task in tasks for change in task.changes]
        is_small = sum(sizes_bytes) <= LOCAL_DELETION_VECTOR_BYTES_MAX
        if self._runs_here(fits=is_small and len(sizes_bytes) <= LOCAL_DELETION_VECTORS_MAX):
            return list(kernel(tasks))
        # Neighbours' deletion vectors are often in one file, which is then read once.
        parts = list(divided(tasks, lambda task: len(task.changes), size_max=DVS_PER_TASK, count_max=DVS_PER_TASK))
        with self.spark.session() as spark:
            return list(map_on_spark(spark, parts, partial(kernel, at_once=self.spark.is_on_cluster)))

    def inspect_data_files(self, adds: Sequence[AddFile], table: TableSchema, storage: FileIOStorage) -> Inspection:
        """Inspect each data file of `adds`; raises as `Inspector.inspect` does."""
        if not adds or self._runs_here(fits=len(adds) <= LOCAL_DATA_FILES_MAX):
            return Inspector(storage, table).inspect(adds)
        with self.spark.session() as spark:
            chunks = [adds[start : start + DATA_FILES_PER_TASK] for start in range(0, len(adds), DATA_FILES_PER_TASK)]
            metrics: dict[str, Metrics] = {}
            traits = FileTraits()
            for each in map_on_spark(spark, chunks, partial(inspect, storage, table)):
                metrics |= each.metrics
                traits |= each.traits
            return Inspection(metrics, traits)

    def plan_mirrors(self, adds: Sequence[AddFile], planner: MirrorPlanner) -> WantedMirrors:
        """Inspect each data file of `adds`, and plan the mirrors they need; raises as `MirrorPlanner.plan` does."""
        if not adds or self._runs_here(fits=len(adds) <= LOCAL_DATA_FILES_MAX):
            return planner.plan(adds)
        with self.spark.session() as spark:
            chunks = [adds[start : start + DATA_FILES_PER_TASK] for start in range(0, len(adds), DATA_FILES_PER_TASK)]
            return reduce(or_, map_on_spark(spark, chunks, planner.plan_on_spark))

    def make_mirrors(
        self, tasks: Sequence[MirrorTask], planner: MirrorPlanner, target_properties: Mapping[str, str]
    ) -> Iterator[dict[str, int]]:
        """Make mirrors, and yield the sizes of some at a time, by path: of those that are rewritten here each one, of
        Spark's those of a job. Raises as `MirrorPlanner.make` does, after the sizes of what was made.
        """
        is_small = sum(map(_rewritten_bytes, tasks)) <= LOCAL_REWRITTEN_BYTES_MAX
        parts = list(divided(tasks, _rewritten_bytes, size_max=REWRITTEN_BYTES_AT_ONCE, count_max=MIRRORS_AT_ONCE))
        if self._runs_here(fits=is_small and len(tasks) <= LOCAL_DATA_FILES_MAX):
            for part in parts:
                yield from planner.make(part, target_properties)
            return
        make = partial(make_on_spark, planner, dict(target_properties))
        with self.spark.session() as spark:
            while parts:
                at_once = TASKS_OF_CORE * spark.sparkContext.defaultParallelism
                made, failed = dict[str, int](), list[SyncError]()
                for answer in map_on_spark(spark, parts[:at_once], make):
                    if isinstance(answer, SyncError):
                        failed.append(answer)
                    else:
                        made |= answer
                # Together: if these are too many, the caller takes no others.
                yield made
                if failed:
                    raise failed[0]
                del parts[:at_once]

    def _runs_here(self, *, fits: bool) -> bool:
        return fits if self.engine == "auto" else self.engine == "local"


def _rewritten_bytes(task: MirrorTask) -> int:
    return task.wanted.size_bytes if task.wanted.kind == "rewrite" else 0
