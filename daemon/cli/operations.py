"""The commands that read or change tables, except `dvsync run`, which is in `service/run.py`.

They take the tables one after the other, and yield the result or the error of each: it does not stop the others. After
a signal, no other table is started. All raise StateStoreAway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from fnmatch import fnmatchcase
from threading import Event
from typing import TypeVar

import structlog
from rich.filesize import decimal

from daemon.cli.report import ask_for_tables
from daemon.cli.survey import survey
from daemon.cli.tables import GoneTable, select_gone
from daemon.clock import SystemClock
from daemon.config.settings import Settings, TableSettings
from daemon.delta.log import DeltaLog
from daemon.doctor.diagnosis import Diagnosis, diagnose
from daemon.errors import ConfigInvalid, InternalError, StateInUse, SyncError, Unsupported
from daemon.maintenance.cleanup import drop_table
from daemon.maintenance.maintainer import Maintainer
from daemon.notices.outbox import COMMAND_END_MAX_S
from daemon.observe import log as events
from daemon.scheduling.cycle import CycleResult
from daemon.service.assembly import Parts, open_parts
from daemon.service.discovery import Found, discover, find_pattern, remember_vanished, vanished_by_pattern
from daemon.service.lease import hold_lease
from daemon.service.signals import STOP_GRACE_S, StopSignals
from daemon.sources.finder import open_storage
from daemon.spark.hadoop import with_stores
from daemon.spark.jars import with_iceberg_jar
from daemon.spark.session import SparkPipeline
from daemon.status.table_status import NOT_FOLLOWED
from daemon.status.watch import Watch
from daemon.status.wording import paused_text
from daemon.sync.context import Progress, as_sync_errors
from daemon.sync.memory import as_sync_error, keep_rows
from daemon.texts import counted
from daemon.verify.findings import Proof, Sample, Scope, add_part, is_outweighed
from daemon.verify.verifier import Verifier
from state import TableRecord

T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def sync_tables(
    settings: Settings,
    tables: Sequence[TableSettings],
    progress_of: Callable[[str], Progress],
    *,
    full: bool,
    gone: Sequence[GoneTable] = (),
) -> Iterator[tuple[TableSettings, CycleResult]]:
    """Bring each of `tables` up to date, and yield the result of each cycle. `full` rewrites them from Delta's state.

    People are notified of the `gone` tables whose folders have vanished, each once.
    """
    stop = Event()
    # A cycle only reads the event, so setting it inside a signal handler cannot block.
    with (
        StopSignals(stop.set, grace_s=STOP_GRACE_S),
        open_parts(settings, with_telemetry=True) as parts,
        hold_lease(parts.lease_keeper(), stop),
    ):
        board = parts.board()
        keep_rows(parts.store, tables, {table.name for table in settings.tables})
        watch = Watch(parts.notifier(board), parts.clock, parts.store.list_tables(), repeats_synced=False)
        vanished = [each for each in gone if each.is_vanished]
        for each in vanished:
            remember_vanished(parts.store, each.record, parts.clock.now_ms())
        board.gone = {each.status.name: each.status for each in vanished}
        watch.compare(parts.store.list_tables(), board.find_status, board.gone)
        for table in tables:
            board.add(table)
            cycle = parts.cycle(parts.context(table, progress_of(table.name), board), board)
            if cycle.pause:
                yield table, CycleResult(pause=cycle.pause)
                continue
            more = True
            while more and not stop.is_set():
                done = cycle.sync(stop, full=full)
                if done.error and cycle.turn_to_newer_version():
                    done = cycle.sync(stop)
                watch.compare(parts.store.list_tables(), board.find_status, board.gone)
                yield table, done
                more = done.result is not None and done.result.more
        parts.outbox.close(COMMAND_END_MAX_S)


def tables_to_examine(settings: Settings, wanted: Sequence[str], report: Callable[[str], None]) -> Found:
    """Return the configured tables that `wanted` names, and the Delta tables in its other places.

    Names may contain `*`. Places are paths or URIs of Delta tables, of folders above them, names in a catalog, or
    patterns with `*`. Those that have no table, or cannot be read, are troubles. `report` gets a line for each folder
    that was skipped. Raises ConfigInvalid if there is nothing at all.
    """
    named = {name: [table for table in settings.tables if fnmatchcase(table.name, name)] for name in wanted}
    chosen = Found([table for found in named.values() for table in found])
    for place in (name for name, found in named.items() if not found):
        try:
            items = survey(settings, settings.defaults.catalog, [place], report)
        except SyncError as error:
            chosen.troubles[place] = error
            continue
        options = dict(settings.defaults)
        placed = [TableSettings(source=item.source, target=item.target).model_copy(update=options) for item in items]
        # Tables of different places may have the same name: nothing is written for them.
        found = discover(settings.model_copy(update={"tables": tuple(placed)}), SystemClock())
        chosen.tables += [*found.tables, *found.others]
        chosen.passed_over |= found.passed_over
    if not (chosen.tables or chosen.passed_over):
        text = "\n".join(error.message for error in chosen.troubles.values())
        text = text or (f"no Delta table matches {', '.join(wanted)}" if wanted else "no table is configured")
        known = ", ".join(table.name for table in settings.tables) or "none"
        hint = f"Name Delta tables, folders above them, or patterns such as 'lake/*/'. Configured tables: {known}."
        raise ConfigInvalid(text, hint=hint)
    chosen.tables = list({table.source: table for table in chosen.tables}.values())
    return chosen


def examine_tables(
    settings: Settings, tables: Sequence[TableSettings]
) -> Iterator[tuple[TableSettings, Diagnosis | SyncError]]:
    """Diagnose each of these tables. Large ones share one Spark session."""
    clock = SystemClock()
    pipeline = SparkPipeline(with_stores(settings, *(table.source for table in tables)), clock, retries=False)
    with closing(pipeline) as spark:
        for table in tables:
            storage = open_storage(settings, table, settings.file_properties(table.catalog), clock)
            try:
                yield table, diagnose(table, DeltaLog(storage, table.source, clock), spark)
            except Exception as error:
                yield table, _known(table.name, error)


def _known(name: str, raised: Exception) -> SyncError:
    """The error kind of what one table raised: the command goes on with the others."""
    error = as_sync_error(raised)
    if isinstance(error, InternalError):
        _log.error(events.SYNC_FAILED, table=name, kind=error.kind, reason=error.message, exc_info=raised)
    return error


def verify_tables(
    settings: Settings, tables: Sequence[TableSettings], progress_of: Callable[[str], Progress], scope: Scope
) -> Iterator[tuple[TableSettings, Proof | SyncError]]:
    """Compare each of these Iceberg tables with its Delta table. Only reads them, so it may run beside a daemon.

    The state store records a verification of all files of what is shown now.
    """
    stop = Event()
    settings = settings.model_copy(update={"spark": with_iceberg_jar(settings.spark)})
    with StopSignals(stop.set, grace_s=STOP_GRACE_S), open_parts(settings) as parts:
        for table in tables:
            if stop.is_set():
                return
            context = parts.context(table, progress_of(table.name))
            try:
                with as_sync_errors(table.name):
                    began_ms = context.clock.now_ms()
                    verifier = Verifier(context)
                    proof = verifier.verify(scope, stop)
                    if proof is None:
                        return
                    record = context.find_record()
                    is_whole = scope.at is None and scope.sample == Sample()
                    is_of_use = is_whole and (proof.is_right or not verifier.is_outdated(proof))
                    if record and is_of_use and not is_outweighed(record.proof, scope.level):
                        part = add_part(None, proof, scope.sample, at_ms=began_ms)
                        context.store.record_proof(record.id, part)
                yield table, proof
            except Exception as error:
                yield table, _known(table.name, error)


def forget_tables(
    configured: Settings, settings: Settings, wanted: Sequence[str], *, drop: bool
) -> Iterator[str | SyncError]:
    """Remove tables that are gone from the state database, all or those `wanted`. Yields a line or an error for each.

    `settings` is `configured` with the tables that patterns find. With `drop`, first drop their Iceberg tables and the
    files that dvsync wrote for them; a pattern that finds no table any more is not trusted. Raises ConfigInvalid.
    """
    with ExitStack() as opened:
        parts = opened.enter_context(open_parts(settings))
        records = select_gone(settings, parts.store, wanted)
        statuses, _ = ask_for_tables(settings)
        if statuses is None:
            # A daemon that does not answer may follow them.
            try:
                opened.enter_context(hold_lease(parts.lease_keeper(), Event()))
            except StateInUse as error:
                hint = "It does not answer. Correct `health` in the configuration, or stop that process first."
                raise StateInUse(error.message, hint=hint) from error
        running = {each.name for each in statuses or () if each.error is None or each.error.kind != NOT_FOLLOWED}
        followed = [f"{each.name}: the running daemon still follows it" for each in records if each.name in running]
        if followed:
            hint = "Let it read the configuration again (SIGHUP), or wait a minute if a folder has just vanished."
            raise ConfigInvalid("\n".join(followed), hint=hint)
        # A catalog may ignore case, and a table in it may have got another name: then the target says nothing.
        by_target = {table.target: table.name for table in settings.tables}
        by_uuid = {each.table_uuid: each.name for each in parts.store.list_tables() if each not in records}
        by_uuid.pop(None, None)
        taken = [
            f"{record.name}: its Iceberg table {record.target} is the target of {user}"
            for record in records
            if (user := by_target.get(record.target) or by_uuid.get(record.table_uuid))
        ]
        if drop and taken:
            raise ConfigInvalid("\n".join(taken), hint="Forget it without --drop.")
        if drop:
            _check_patterns(configured, settings, records)
        for record in records:
            try:
                dropped = "nothing dropped, since no sync of it is recorded; " if drop else ""
                if drop and record.metadata_location:
                    dropped = _drop(parts, record)
            except Exception as error:
                yield _known(record.name, error)
                continue
            parts.store.forget_table(record.id)
            yield f"{record.name}: {dropped}forgotten"


def _check_patterns(configured: Settings, settings: Settings, gone: Sequence[TableRecord]) -> None:
    """Raise ConfigInvalid if a pattern that would find one of the tables finds none at all: its volume may be away."""
    listed = {table.source for table in configured.tables}
    finding = {
        find_pattern(configured, table.source, table.entry) for table in settings.tables if table.source not in listed
    }
    vanished = vanished_by_pattern(configured, gone, {table.source for table in settings.tables})
    lost = [
        f"{record.name}: the pattern {pattern} finds no table any more. Is the volume mounted?"
        for pattern, records in vanished.items()
        if pattern not in finding
        for record in records
    ]
    if lost:
        hint = "Mount it again. If the tables are really gone, exclude their folders, or remove the pattern."
        raise ConfigInvalid("\n".join(lost), hint=hint)


def _drop(parts: Parts, record: TableRecord) -> str:
    for catalog in parts.settings.catalogs:
        table = TableSettings(source=record.source, target=record.target, name=record.name, catalog=catalog)
        done = drop_table(parts.context(table))
        if done is None:
            continue
        left = "".join(f"left {number}: {reason}; " for reason, number in done.left.items())
        left += "".join(f"{failed}; " for failed in done.failed)
        size = decimal(done.removed_bytes)
        return f"{record.target} dropped from {catalog}; {counted(len(done.removed), 'file')} removed, {size}; {left}"
    is_known = record.catalog is None or record.catalog in parts.settings.catalogs
    last = "" if is_known else f"; it was in {record.catalog}, which the configuration does not have any more"
    raise ConfigInvalid(
        f"{record.name}: no configured catalog has its Iceberg table {record.target} as dvsync left it{last}",
        hint=f"Drop it by hand if it is still there, then run `dvsync forget {record.name}` without --drop.",
    )


def maintain_tables(
    settings: Settings, tables: Sequence[TableSettings], verb: Callable[[Maintainer, Event], T], *, alone: bool
) -> Iterator[tuple[TableSettings, T | SyncError]]:
    """Do one part of the maintenance of each of `tables`. Work that commits is done `alone`: it takes the lease."""
    stop = Event()
    with ExitStack() as opened:
        opened.enter_context(StopSignals(stop.set, grace_s=STOP_GRACE_S))
        parts = opened.enter_context(open_parts(settings))
        if alone:
            opened.enter_context(hold_lease(parts.lease_keeper(), stop))
        for table in tables:
            if stop.is_set():
                return
            record = parts.store.find_table(table.name, table.source, table.target)
            pause = record.pause_at(parts.clock.now_ms()) if record else None
            if alone and pause:
                hint = f"Run `dvsync resume {table.name}` first."
                yield table, Unsupported(f"it is {paused_text(pause)}", hint=hint)
                continue
            try:
                yield table, verb(Maintainer(parts.context(table)), stop)
            except Exception as error:
                yield table, _known(table.name, error)
