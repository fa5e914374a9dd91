"""`dvsync run`: stands by until it holds the lease, follows every table, takes a new configuration, and stops."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import structlog

from daemon.config.settings import Settings, SparkSettings
from daemon.errors import ConfigInvalid, InternalError, PipelineAway, StateStoreAway
from daemon.observe import log as events
from daemon.observe.log import configure_logging
from daemon.scheduling.scheduler import Scheduler
from daemon.service import systemd
from daemon.service.assembly import Parts, open_parts
from daemon.service.fleet import REQUESTS_INTERVAL_S, REQUESTS_JOB, Fleet
from daemon.service.lease import UNWRITABLE, LeaseKeeper, describe_process
from daemon.service.signals import RELOAD, STOP_GRACE_S, StopSignals
from daemon.spark.hadoop import with_stores
from daemon.spark.jars import check_jars, check_pipeline, with_readers
from daemon.status.board import Board, Topic, Unready
from daemon.sync.memory import as_sync_error
from daemon.web.endpoints import Api
from daemon.web.metrics import make_registry
from daemon.web.server import WebServer
from state import DatabaseReplaced, StateUnavailable

# For giving back the lease and closing Spark and the stores, after the work has ended or was given up.
CLOSING_MAX_S = 1.5
# Sections that a reload cannot change.
FIXED_SECTIONS = ("state", "share", "spark", "health")
BEAT_INTERVAL_S = 5.0
TABLES_INTERVAL_S = 2.0
TABLES_JOB = "/tables"
# How often Spark is checked for being idle.
IDLE_INTERVAL_S = 30.0
# How long a thread that returns from SQLite or a file waits for a busy thread. With Python's default of 5 ms that was
# most of a transaction's time, in which nobody else can write to the state database.
THREAD_SWITCH_S = 0.001
START_AGAIN = "Start the process again: it waits until it gets the lease."

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Ending:
    """How the daemon ended. If not `finished`, a cycle is still running, and only the end of the process stops it."""

    finished: bool
    lost_lease: bool


def run_daemon(read_settings: Callable[[], Settings], version: str) -> Ending:
    """Follow every table until SIGTERM or SIGINT; a second signal ends the process at once. SIGHUP reloads.

    Losing the lease ends the daemon, too, because its memory of the tables is then out of date. Raises ConfigInvalid
    when the configuration is wrong or the health address is not available, StateStoreAway.
    """
    settings = read_settings()
    configure_logging(settings.log)
    sys.setswitchinterval(THREAD_SWITCH_S)
    with ExitStack() as opened:
        # Forces an exit even if a store or the database hangs.
        signals = opened.enter_context(StopSignals(reloads=True, grace_s=STOP_GRACE_S + CLOSING_MAX_S))
        parts = opened.enter_context(open_parts(settings, with_telemetry=True))
        board = parts.board()
        scheduler = Scheduler(parts.clock, tables_at_once=settings.limits.tables_at_once)
        fleet = Fleet(parts, board, scheduler)
        web = _serve(parts, board, fleet)
        opened.callback(web.stop)

        def beat() -> None:
            board.beat()
            systemd.beat(board.summary)

        def on_lost(reason: str) -> None:
            _log.error(events.LEASE_LOST, reason=reason, hint=START_AGAIN)
            signals.say(events.LEASE_LOST)

        def on_unrenewed(reason: str | None) -> None:
            unready = Unready(None, f"the state database cannot be written: {reason}")
            board.set_unready(Topic.STATE, [unready] if reason else [])
            if reason is None:
                # Their backoff has grown: retry now.
                for status in board.statuses():
                    if status.error and status.error.kind == StateStoreAway.__name__:
                        scheduler.wake(status.name)

        for job_id, interval_s, work in (
            ("/beat", BEAT_INTERVAL_S, beat),
            (REQUESTS_JOB, REQUESTS_INTERVAL_S, fleet.read_requests),
            (TABLES_JOB, TABLES_INTERVAL_S, fleet.update),
            ("/idle", IDLE_INTERVAL_S, parts.spark.stop_if_idle),
        ):
            scheduler.every(job_id, interval_s, work)
        if settings.may_need_spark:
            _warn_without_pipeline(settings.spark)
        systemd.notify("READY=1")
        _log.info(events.DAEMON_STARTED, version=version, health=web.url, pid=os.getpid(), share=str(settings.share))
        keeper = parts.lease_keeper(web.url)

        def reload() -> None:
            nonlocal settings
            settings = _reload(read_settings, settings, fleet, board)

        received = _stand_by(keeper, signals, board, beat, reload)
        is_at_work = received is None
        if is_at_work:
            keeper.keep(on_lost, on_unrenewed, lambda: signals.say(RELOAD))
            opened.callback(keeper.give_back)
            scheduler.start()
            while (received := signals.wait()) == RELOAD:
                reload()
                scheduler.wake(TABLES_JOB)
        systemd.notify("STOPPING=1")
        _log.info(events.DAEMON_STOPPING, reason=received)
        finished = scheduler.stop(grace_s=STOP_GRACE_S) if is_at_work else True
        if not finished:
            # A running cycle would fail and record an error if the store and Spark were closed under it.
            opened.pop_all()
        _log.info(events.DAEMON_STOPPED, finished=finished)
        return Ending(finished, lost_lease=received == events.LEASE_LOST)


def _serve(parts: Parts, board: Board, fleet: Fleet) -> WebServer:
    """Show the board to whoever asks, and send its metrics. Raises ConfigInvalid if the address is not available."""
    settings = parts.settings
    registry = make_registry(board, lambda: parts.spark.is_running, parts.outbox.hooks)
    api = Api(
        board,
        registry=registry,
        ask=fleet.ask,
        token=settings.health.token,
        process=describe_process(),
        state=settings.state.place,
    )
    try:
        web = WebServer.start(settings.health, api.app)
    except ConfigInvalid as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
            raise
        # Most often, the daemon of this configuration runs already.
        keeper = parts.lease_keeper()
        try:
            holder = keeper.try_take()
        except (StateUnavailable, StateStoreAway):
            raise error from None
        if holder is None:
            keeper.give_back()
            raise
        raise ConfigInvalid(f"{error.message}; the state database is held by {holder}", hint=error.hint) from error
    if parts.telemetry:
        parts.telemetry.report(registry.collect)
    return web


def _stand_by(
    keeper: LeaseKeeper, signals: StopSignals, board: Board, beat: Callable[[], None], reload: Callable[[], None]
) -> str | None:
    """Wait for the lease. Returns None once this process holds it, else the signal that ended the wait."""
    logged = None
    while True:
        try:
            holder, hint = keeper.try_take(), None
            reason = f"standing by: the lease is held by {holder}"
        except DatabaseReplaced as error:
            _log.error(events.LEASE_LOST, reason=str(error), hint=START_AGAIN)
            return events.LEASE_LOST
        except (StateUnavailable, StateStoreAway) as error:
            holder, hint = "unknown", UNWRITABLE
            reason = f"the state database cannot be written, so nothing is followed: {error}"
        board.set_unready(Topic.LEASE, [Unready(None, reason)] if holder else [])
        if holder is None:
            return None
        if reason != logged:
            logged = reason
            write, more = (_log.error, {"hint": hint}) if hint else (_log.info, {})
            write(events.STANDING_BY, holder=holder, reason=reason, **more)
        beat()
        received = signals.wait(min(keeper.renewal_interval_s, BEAT_INTERVAL_S))
        if received == RELOAD:
            reload()
        elif received is not None:
            return received


def _reload(read_settings: Callable[[], Settings], settings: Settings, fleet: Fleet, board: Board) -> Settings:
    """Read and apply the configuration. Returns the settings in force: `settings` if the new ones are refused."""
    try:
        read = read_settings()
    except Exception as error:
        known = as_sync_error(error)
        first = str(known).partition("\n")[0]
        reason = f"the changed configuration is refused: {first}; correct it, then reload it again (SIGHUP)"
        board.set_unready(Topic.CONFIGURATION, [Unready(None, reason)])
        is_bug = isinstance(known, InternalError)
        hint = f"{known.hint} Then reload it again (SIGHUP)."
        _log.error(events.CONFIG_REFUSED, reason=str(known), hint=hint, exc_info=error if is_bug else None)
        return settings
    kept = [section for section in FIXED_SECTIONS if getattr(read, section) != getattr(settings, section)]
    if with_stores(read) != with_stores(read.model_copy(update={"storage": settings.storage})):
        kept.append("storage, for Spark")
    if with_readers(read).spark != with_readers(read.model_copy(update={"tables": settings.tables})).spark:
        kept.append("verify, for Spark")
    read = read.model_copy(update={section: getattr(settings, section) for section in FIXED_SECTIONS})
    configure_logging(read.log)
    fleet.change(read)
    board.set_unready(Topic.CONFIGURATION, [])
    write = _log.warning if kept else _log.info
    write(events.CONFIG_RELOADED, need_a_restart=kept)
    return read


def _warn_without_pipeline(settings: SparkSettings) -> None:
    try:
        check_pipeline(settings)
        check_jars(settings)
    except PipelineAway as error:
        # Without Spark, first syncs and large changes fail, and everything else works.
        _log.warning(events.PIPELINE_MISSING, reason=error.message, hint=error.hint)
