"""Reads a Delta table's whole state at one version with Delta on Spark: any kind of checkpoint, any number of files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa

from daemon.delta.actions import AddFile, LogicalFile, Metadata, Protocol
from daemon.delta.features import check_features, check_metadata, check_protocol, used_features
from daemon.delta.log import DeltaLog, last_commits, log_gone
from daemon.delta.table_state import (
    PLACES,
    Reconciliation,
    TableState,
    adds_from_batches,
    check_rows,
    check_unique,
    resolve_rows,
)
from daemon.errors import CommitIncomplete, CorruptInput, SyncError, Unsupported
from daemon.spark.answers import collect, run_on_spark
from daemon.spark.failures import as_known_error
from daemon.spark.snapshot import open_snapshot
from daemon.translate.delta_types import HINT_METADATA
from daemon.translate.schema import translate_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

# Of an action: version, whether it is an add, and what it is about.
Name = tuple[int, bool, LogicalFile]

# What the log says about logical files.
NAME_COLUMNS = (
    "version",
    "add.path IS NOT NULL AS is_add",
    "coalesce(add.path, remove.path) AS path",
    *(
        f"concat({kind}.deletionVector.storageType, {kind}.deletionVector.pathOrInlineDv, "
        f"coalesce(concat('@', {kind}.deletionVector.offset), '')) AS {kind}_dv"
        for kind in ("add", "remove")
    ),
)
# Paths of which `java.net.URI` may find another text equal: those with an escape in lower case, and those with a scheme
# in upper case or without an authority.
UNUSUAL_PATH = "%[0-9A-Fa-f]?[a-f]|^[^/:]*[A-Z][^/:]*:|^[^/:]+:/([^/]|//)"
# After Delta has refused a table, at most so many commits are searched for the newest protocol and metadata.
COMMITS_SEARCHED_MAX = 100
PROGRESS_INTERVAL_S = 0.5


@dataclass(frozen=True)
class SparkState(TableState):
    """The state as Delta on Spark has it, for as long as its session lasts. `frame` has the columns of `ADDS`."""

    frame: DataFrame

    def read_adds(self, *, with_dv_only: bool = False) -> Iterator[AddFile]:
        rows = collect(self.frame.where("dv_storage_type IS NOT NULL").drop("stats")) if with_dv_only else self._rows
        yield from adds_from_batches(_resolved(self.location, rows))

    def find_adds(self, is_wanted: pa.BooleanArray) -> Iterator[AddFile]:
        paths = self._rows.filter(is_wanted).select(["path"])
        if not paths.num_rows:
            return
        wanted = self.frame.sparkSession.createDataFrame(paths)
        yield from adds_from_batches(_resolved(self.location, collect(self.frame.join(wanted, "path", "left_semi"))))

    def map_adds(
        self,
        function: Callable[[int, Iterable[AddFile]], Iterator[T]],
        parts: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Iterable[T]:
        # Sorted by path, files of one partition value come into one part.
        frame = self.frame.repartitionByRange(parts, "path").sortWithinPartitions("path")
        with _watched(frame.sparkSession, parts, on_progress):
            return run_on_spark(frame, partial(_map_part, function, self.location))

    @cached_property
    def _rows(self) -> pa.Table:
        """The live files without statistics, with Delta's paths: resolved, they would take twice the memory."""
        rows = collect(self.frame.drop("stats"))
        if rows.num_rows:
            check_rows(pa.Table.from_batches(_resolved(self.location, rows)))
        return rows


def _resolved(location: str, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    return (resolve_rows(location, batch) for batch in rows.to_batches())


@contextmanager
def _watched(spark: SparkSession, tasks: int, on_progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Call `on_progress` with the number of finished tasks while the block runs; the last stage has `tasks` tasks."""
    if on_progress is None:
        yield
        return
    finished = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def poll() -> None:
        while not finished.wait(PROGRESS_INTERVAL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done = [stage.numCompletedTasks for stage in stages if stage and stage.numTasks == tasks]
            if done:
                on_progress(max(done), tasks)

    watcher = threading.Thread(target=poll, name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        on_progress(tasks, tasks)


def _map_part(
    function: Callable[[int, Iterable[AddFile]], Iterator[T]], location: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[T]:
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    assert context is not None, "Spark runs this in a task"
    adds = list(adds_from_batches(resolve_rows(location, batch) for batch in batches))
    if adds:
        yield from function(context.partitionId(), adds)


def read_table_state(spark: SparkSession, log: DeltaLog, version: int | None = None) -> SparkState:
    """Read the state at `version`, or the newest state.

    Raises `Unsupported` if Delta itself refuses the table, `CorruptInput` if its log is broken, `FileLiveTwice`,
    `CommitIncomplete` while one of its commits is being written, `ObjectMissing` if it has no log, and
    `ObjectStoreAway` or `PipelineAway`.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import DataFrame  # noqa: PLC0415

    try:
        commits = log.list_commits()
        snapshot = open_snapshot(spark, log, version)
        if snapshot.version() < 0:
            raise log_gone(log.location)
        recent_commits = last_commits(commits, snapshot.version())
        if snapshot.version() not in commits:
            commits = log.list_commits()  # It came since then.
        checkpoint = snapshot.logSegment().checkpointProvider().version()
        log.check_written({number: meta for number, meta in commits.items() if number > checkpoint})
        live = DataFrame(snapshot.allFiles().toDF(), spark)
        state = SparkState(
            location=log.location,
            version=snapshot.version(),
            timestamp_ms=snapshot.timestamp(),
            protocol=msgspec.json.decode(snapshot.protocol().json(), type=dict[str, Protocol])["protocol"],
            metadata=msgspec.json.decode(snapshot.metadata().json(), type=dict[str, Metadata])["metaData"],
            files=snapshot.numOfFiles(),
            recent_commits=recent_commits,
            # Delta's replay has made paths canonical already.
            frame=live.selectExpr(*(f"{place} AS {name}" for name, place in PLACES.items())),
        )
        # Afterwards: the fields above name what is broken in the log.
        check_certain(read_names(spark, log.location, snapshot))
        return state
    except msgspec.ValidationError as error:
        refused = CorruptInput(f"the metadata is not valid: {error}", path=log.folder, hint=HINT_METADATA)
        raise _find_fault(log, refused) or refused from error
    except (PySparkException, Py4JJavaError) as error:
        known = as_known_error(error, log.folder, version)
        if isinstance(known, CorruptInput | Unsupported) and version is None:
            known = _as_followed(log, known)
        raise known from error


def read_names(spark: SparkSession, location: str, snapshot: Any) -> Iterator[Name]:
    """Yield version, kind and file of the log's actions, the newest first; nothing for a log without an UNUSUAL_PATH.

    Delta's state does not tell enough: it lacks old tombstones, and adds that Delta happens to remove. A checkpoint's
    tombstones are no longer needed.
    """
    from pyspark.sql import DataFrame  # noqa: PLC0415

    names = DataFrame(snapshot.loadActions(), spark).selectExpr(*NAME_COLUMNS).where("path IS NOT NULL")
    if not collect(names.where(f"path RLIKE '{UNUSUAL_PATH}'").limit(1)).num_rows:
        return
    checkpoint = snapshot.logSegment().checkpointProvider().version()
    wanted = collect(names.where(f"is_add OR version > {checkpoint}")).sort_by([("version", "descending")])
    for row in (row for batch in _resolved(location, wanted) for row in batch.to_pylist()):
        yield row["version"], row["is_add"], (row["path"], (row["uri"], row["add_dv"] or row["remove_dv"]))


def check_certain(names: Iterable[Name]) -> None:
    """Raise `FileLiveTwice` if two live files are at one path, or if nobody can tell whether one is live."""
    files, live = Reconciliation(), list[LogicalFile]()
    for _, group in groupby(names, itemgetter(0)):
        removes, adds = list[LogicalFile](), list[LogicalFile]()
        for _, is_add, file in group:
            (adds if is_add else removes).append(file)
        live += compress(adds, files.take_commit(removes, adds))
    check_unique(live)


def _as_followed(log: DeltaLog, refused: SyncError) -> SyncError:
    """Return the error that reading the log commit by commit gives for the same fault, with Delta's reason added.

    That error names commit, line and column, and distinguishes an unfinished commit from a broken one; Delta's error
    does neither. Returns `refused` if our reader finds no fault.
    """
    found = _find_fault(log, refused)
    if found is None or isinstance(found, CommitIncomplete):
        return found or refused
    place: dict[str, Any] = {"version": found.version, "path": found.path, "offset": found.offset}
    return type(found)(f"{found.message}; {refused.message}", hint=found.hint, **place)


def _find_fault(log: DeltaLog, refused: SyncError) -> SyncError | None:
    try:
        if refused.version is not None and refused.path == log.commit_path(refused.version):
            if log.has_version(refused.version):
                log.read_commit(refused.version)
        else:
            commits = log.list_commits()
            log.check_written(commits)
            _check_newest(log, commits)
    except (CommitIncomplete, CorruptInput, Unsupported) as found:
        return found
    return None


def _check_newest(log: DeltaLog, commits: Collection[int]) -> None:
    """Read the newest protocol and metadata and the commits after them. Raises what following the log would raise."""
    protocol = metadata = following = changed = None
    for version in list(commits)[: -COMMITS_SEARCHED_MAX - 1 : -1]:
        if following is not None and following != version + 1:
            raise log.gap(following - 1, following)
        commit, following = log.read_commit(version), version
        if changed is None and (commit.protocol or commit.metadata):
            changed = version
        place = version
        try:
            if protocol is None and commit.protocol:
                protocol = commit.protocol
                check_protocol(protocol, is_managed=log.storage.is_ratified)
            if metadata is None and commit.metadata:
                metadata = commit.metadata
                check_metadata(metadata)
                translate_schema(metadata, readers=(), format_version=3)  # who reads the table is not asked here
            if protocol and metadata:
                place = changed or version
                return check_features(protocol, used_features(metadata))
        except SyncError as error:
            raise error.located(version=place, path=log.commit_path(place)) from error.__cause__
    return None
