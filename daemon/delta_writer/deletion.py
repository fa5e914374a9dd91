"""Deletes rows of a Delta table: by a predicate, for `dvsync delete` and programs, or at positions, for the syncs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal

import msgspec
from pyroaring import BitMap64

from daemon.clock import Clock, SystemClock
from daemon.delta.log import DeltaLog
from daemon.delta_writer.commit import Deletion, Wanted, commit_deletion
from daemon.delta_writer.features import check_writable
from daemon.delta_writer.finder import PredicateFinder
from daemon.delta_writer.placement import PlacedRows, RowsMoved
from daemon.delta_writer.vectors import Tracking
from daemon.spark.session import OpenSession
from daemon.store.locations import normalize_location
from daemon.store.storage import FileIOStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Deletion", "RowsMoved", "Tracking", "check_writable", "delete_at", "delete_from", "delete_rows"]

Engine = Literal["auto", "local", "spark"]


def delete_rows(
    location: str,
    predicate: str,
    *,
    properties: Mapping[str, str] | None = None,
    at_most: int | None = None,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    engine: Engine = "auto",
    time_zone: str = "UTC",
    by: str | None = None,
) -> Deletion:
    """Delete the rows of the Delta table at `location` for which `predicate` is true, by one commit with vectors.

    `properties` are PyIceberg's for the table's store (`storage` in config.yaml). More rows than `at_most` are refused.
    With `dry_run`, nothing is written. `spark` is needed for large tables, or all with the engine `spark`. `time_zone`
    is that of timestamp partition values without one. Delta's history has `by` as the user's name. What a kill leaves
    behind is removed by Delta's VACUUM: no state store has its name.

    Raises as `commit_deletion` and `PredicateFinder.find`. Unless it is `CommitOutcomeUnknown`, nothing was deleted.
    """
    storage = FileIOStorage(properties)
    log = DeltaLog(storage, normalize_location(location), SystemClock())
    open_spark: OpenSession | None = (lambda: nullcontext(spark)) if spark else None
    return delete_from(
        log,
        predicate,
        at_most=at_most,
        dry_run=dry_run,
        engine=engine,
        open_spark=open_spark,
        time_zone=time_zone,
        by=by,
        tracking=None,
    )


def delete_from(
    log: DeltaLog,
    predicate: str,
    *,
    at_most: int | None,
    dry_run: bool,
    engine: Engine,
    open_spark: OpenSession | None,
    time_zone: str,
    by: str | None,
    tracking: Tracking | None,
) -> Deletion:
    """The same for a table that is open already; `tracking` as for `commit_deletion`."""
    finder = PredicateFinder(predicate, log.storage, time_zone=time_zone, engine=engine, open_spark=open_spark)
    # As Delta does: a list of conditions, which all hold.
    parameters = {"predicate": msgspec.json.encode([predicate]).decode()}
    return commit_deletion(log, SystemClock(), finder, Wanted(parameters, by, at_most, dry_run), tracking)


def delete_at(
    log: DeltaLog,
    clock: Clock,
    rows: Mapping[str, BitMap64],
    *,
    version: int,
    parameters: Mapping[str, str],
    tracking: Tracking,
) -> Deletion:
    """Delete the rows at these positions of data files, as the files were at `version`, wherever the rows are now.

    Raises as `commit_deletion`, and `RowsMoved` if nobody can tell where they are: nothing was deleted then.
    """
    return commit_deletion(log, clock, PlacedRows(log, rows, version), Wanted(parameters), tracking)
