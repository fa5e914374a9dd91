"""`dvsync delete`: the only command that writes to a Delta table."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from daemon.cli.changes import DryRun
from daemon.cli.invocation import ConfigPath, TableName, load_both, reported_errors, say, who
from daemon.config.settings import NoticeKind, TableSettings
from daemon.errors import ConfigInvalid, Unsupported

if TYPE_CHECKING:
    from daemon.delta_writer.deletion import Deletion


def delete(
    context: typer.Context,
    table: TableName,
    *,
    where: Annotated[
        str, typer.Option("--where", metavar="PREDICATE", help="Which rows, in SQL: \"id = 5 AND d < '2026-01-01'\".")
    ],
    dry_run: DryRun = False,
    at_most: Annotated[
        int | None, typer.Option("--at-most", metavar="N", min=0, help="Delete nothing if there are more rows.")
    ] = None,
    engine: Annotated[
        Literal["auto", "local", "spark"] | None,
        typer.Option("--engine", help="Where to search the rows; by default as the table's setting says."),
    ] = None,
    config: ConfigPath = None,
) -> None:
    """Delete rows of a Delta table, by deletion vectors. The table's setting `deletes` must allow it.

    The Iceberg table follows, as after every commit to Delta. RESTORE in Delta takes a deletion back, until VACUUM.
    """
    import structlog  # noqa: PLC0415 - each command imports what it uses, and nothing else

    from daemon.cli.tables import find_tables  # noqa: PLC0415
    from daemon.clock import SystemClock  # noqa: PLC0415
    from daemon.delta.log import DeltaLog  # noqa: PLC0415
    from daemon.delta_writer.deletion import Tracking, delete_from  # noqa: PLC0415
    from daemon.notices.notice import Deleted, Run, events_of, make_notice  # noqa: PLC0415
    from daemon.notices.outbox import COMMAND_END_MAX_S, Outbox  # noqa: PLC0415
    from daemon.observe import log as events  # noqa: PLC0415
    from daemon.sources.finder import open_storage  # noqa: PLC0415
    from daemon.spark.hadoop import with_stores  # noqa: PLC0415
    from daemon.spark.session import SparkPipeline  # noqa: PLC0415
    from daemon.sync.memory import open_store  # noqa: PLC0415
    from daemon.sync.verbs import known_or_new  # noqa: PLC0415
    from state import StateUnavailable, SyncRun  # noqa: PLC0415

    with reported_errors():
        _, settings = load_both(context, [table])
        (chosen,) = find_tables(settings, [table], one=True)
        _check_allowed(chosen)
        clock = SystemClock()
        started_ms = clock.now_ms()
        storage = open_storage(settings, chosen, settings.file_properties(chosen.catalog), clock)
        pipeline = SparkPipeline(with_stores(settings, chosen.source), clock, retries=False)
        # The history must be there to be written before anything is deleted.
        with open_store(settings) as store, closing(pipeline) as spark:
            record = None if dry_run else known_or_new(store, chosen)
            done = delete_from(
                DeltaLog(storage, chosen.source, clock),
                where,
                at_most=at_most,
                dry_run=dry_run,
                engine=engine or chosen.engine,
                open_spark=spark.session,
                time_zone=chosen.partition_time_zone,
                by=who(),
                tracking=Tracking(store, record.id) if record else None,
            )
            told = _told(done)
            say(f"{chosen.name}: {told}")
            if record is not None and done.version is not None:
                log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
                log.info(events.ROWS_DELETED, table=chosen.name, version=done.version, rows=done.deleted_rows, by=who())
                # Without the predicate, which may have what has to go: Delta's history has it.
                told = f"{told}, by {who()}"
                ended_ms, outbox = clock.now_ms(), Outbox(settings, clock)
                outbox.put(make_notice(NoticeKind.ROWS_DELETED, record, told, clock))
                lineage = Run(
                    chosen.name,
                    chosen.source,
                    chosen.target,
                    started_ms,
                    ended_ms,
                    version=done.version,
                    deleted=Deleted(done.deleted_rows, who()),
                )
                for event in events_of(lineage):
                    outbox.put(event)
                run = SyncRun(
                    record.id,
                    started_ms,
                    ended_ms - started_ms,
                    "deleted",
                    done.version,
                    done.version,
                    message=told,
                    operation="DELETE",
                )
                try:
                    store.record_run(run, committed=done.vector_files)
                except StateUnavailable as error:
                    # Not an error that asks to try again.
                    say(f"{chosen.name}: dvsync's history does not have it ({error}); DESCRIBE HISTORY in Delta has it")
                    raise typer.Exit(1) from error
                finally:
                    outbox.close(COMMAND_END_MAX_S)


def _check_allowed(table: TableSettings) -> None:
    if not table.may_delete:
        raise ConfigInvalid(
            f"{table.name}: dvsync may not write to the Delta table",
            hint="If it may delete rows there, set deletes: command for the table.",
        )
    if table.is_managed:
        raise Unsupported(
            "the table's commits must go through its catalog, which dvsync cannot do",
            table=table.name,
            hint="Delete the rows with Delta.",
        )


def _told(done: Deletion) -> str:
    from rich.filesize import decimal  # noqa: PLC0415

    from daemon.texts import counted  # noqa: PLC0415

    files = done.files_removed + done.files_marked
    if not files:
        return f"the predicate is true for no row of version {done.read_version}; nothing was written"
    what = f"{counted(done.deleted_rows, 'row')} in {counted(files, 'file')}"
    how = (
        f"{counted(done.files_marked, 'file')} with a new deletion vector, {counted(done.files_removed, 'file')} "
        f"without a row left, {decimal(done.bytes_written)} of vectors"
    )
    if done.version is None:
        return f"would delete {what} of version {done.read_version}: {how}; nothing was written"
    return f"deleted {what}, version {done.version}: {how}"
