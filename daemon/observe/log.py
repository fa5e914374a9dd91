"""Structured logging: JSON lines, or readable lines on a terminal. Events are the constants below; values are keys.

`table` and `cycle_id` are bound once for a cycle with `bind_cycle`. Nothing here decides what is worth logging.
"""

from __future__ import annotations

import io
import logging
import sys
from contextlib import AbstractContextManager
from functools import partial
from typing import TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from daemon.config.settings import LogSettings
from daemon.masking import scrub
from daemon.texts import printable

DAEMON_STARTED = "daemon.started"
DAEMON_STOPPING = "daemon.stopping"
DAEMON_STOPPED = "daemon.stopped"
STANDING_BY = "daemon.standing_by"
LEASE_TAKEN_OVER = "lease.taken_over"
LEASE_LOST = "lease.lost"
LEASE_RENEWED = "lease.renewed"
LEASE_UNRENEWED = "lease.unrenewed"
CLOCK_JUMPED = "clock.jumped"
JOB_FAILED = "job.failed"
CONFIG_RELOADED = "config.reloaded"
CONFIG_REFUSED = "config.refused"
TABLE_ADDED = "table.added"
TABLE_REMOVED = "table.removed"
PATTERN_REFUSED = "pattern.refused"
SYNC_ADVANCED = "sync.advanced"
SYNC_REBUILT = "sync.rebuilt"
SYNC_UNCHANGED = "sync.unchanged"
SYNC_WAITING = "sync.waiting"
SYNC_FAILED = "sync.failed"
SYNC_RECOVERED = "sync.recovered"
PROPERTY_IGNORED = "property.ignored"
TARGET_TAKEN_OVER = "target.taken_over"
TARGET_MOVED = "target.moved"
TARGET_UPGRADED = "target.upgraded"
TARGET_OVERWRITTEN = "target.overwritten"
SNAPSHOTS_EXPIRED = "snapshots.expired"
HINT_UNWRITTEN = "hint.unwritten"
SYNC_PROGRESSED = "sync.progressed"
TABLE_PARKED = "table.parked"
TABLE_PAUSED = "table.paused"
TABLE_RESUMED = "table.resumed"
TABLE_TRIED = "table.tried_again"
RESYNC_WANTED = "table.resync_wanted"
TABLE_GONE = "table.gone"
ROWS_DELETED = "rows.deleted"
SCHEMA_CHANGED = "schema.changed"
SOURCE_REPLACED = "source.replaced"
NOTICE_FAILED = "notice.failed"
NOTICE_DROPPED = "notice.dropped"
TELEMETRY_FAILED = "telemetry.failed"
STATE_REBUILT = "state.rebuilt"
STATES_COMPARED = "states.compared"
CHECKSUM_DISBELIEVED = "checksum.disbelieved"
STATE_UNRECORDED = "state.unrecorded"
STATE_UNREAD = "state.unread"
SOURCE_UNSEEN = "source.unseen"
MAINTENANCE_COMPACTED = "maintenance.compacted"
MAINTENANCE_EXPIRED = "maintenance.expired"
MAINTENANCE_CLEANED = "maintenance.cleaned"
MAINTENANCE_FAILED = "maintenance.failed"
VERIFY_RIGHT = "verify.right"
VERIFY_WRONG = "verify.wrong"
VERIFY_FAILED = "verify.failed"
PIPELINE_IDLED = "pipeline.idled"
PIPELINE_MISSING = "pipeline.missing"
PIPELINE_SAID = "pipeline.said"

# Warnings of libraries that are part of normal work and need no action: they are logged at debug level. Each entry is
# a logger and the beginning of its message. All other warnings and errors of libraries keep their level.
REMARKS = (
    # A round of maintenance is due while one is running; `max_instances=1` asks for exactly that.
    ("apscheduler.scheduler", 'Execution of job "%s" skipped: maximum number of running instances reached'),
    # Arrow reads INT96 timestamps as nanoseconds. dvsync refuses the columns that PyIceberg would show wrong.
    ("pyiceberg.io.pyarrow", "Iceberg does not yet support 'ns' timestamp precision. Downcasting to 'us'."),
    # The writer held the column as a dictionary in memory; the file has the plain type, which every reader supports.
    ("pyiceberg.io.pyarrow", "Iceberg does not have a dictionary type."),
)


def configure_logging(settings: LogSettings, stream: TextIO | None = None, *, has_verdicts: bool = False) -> None:
    """Send our events, and what libraries log at warning and above, to `stream` (standard output). May be repeated.

    The configured level applies to both; messages of libraries below warning are never logged. With `has_verdicts`,
    a failed sync is logged only if it met a bug, whose traceback is needed: the command prints each table's error.
    """
    stream = stream or sys.stdout
    console = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks must not show local variables, which hold credentials and whole batches of rows.
    if console:
        console_renderer = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=_printable_traceback, pad_event_to=0
        )
        renderers: list[Processor] = [
            _printable_values,
            console_renderer,
            lambda _logger, _name, line: scrub(str(line)),
        ]
    else:
        # Mask secrets before rendering: JSON escapes some characters, so a secret would no longer match.
        renderers = [structlog.processors.format_exc_info, _scrubbed, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    handler.addFilter(partial(_is_logged, logging.getLevelNamesMapping()[settings.level.upper()]))
    if has_verdicts:
        handler.addFilter(_is_no_known_failure)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("daemon", "state"):
        logging.getLogger(name).setLevel(settings.level.upper())
    logging.captureWarnings(True)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _is_no_known_failure(record: logging.LogRecord) -> bool:
    event = record.msg if isinstance(record.msg, dict) else {}
    return event.get("event") not in (SYNC_FAILED, TABLE_PARKED) or event.get("exc_info") is not None


def _is_logged(least: int, record: logging.LogRecord) -> bool:
    """Lower the messages in REMARKS to debug level, and refuse records below the level `least`."""
    if any(record.name == name and str(record.msg).startswith(start) for name, start in REMARKS):
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    return record.levelno >= least


def bind_cycle(table: str, cycle_id: str) -> AbstractContextManager[None]:
    return structlog.contextvars.bound_contextvars(table=table, cycle_id=cycle_id)


def _printable_values(_logger: object, _name: str, values: EventDict) -> EventDict:
    """Escape control characters, which a terminal would execute. Only messages of libraries may have several lines."""
    return {
        key: printable(value, keep="\n" if key == "event" else "") if isinstance(value, str) else value
        for key, value in values.items()
    }


def _printable_traceback(stream: TextIO, error: ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write(printable(text.getvalue(), keep="\n"))


# Values under these keys are our own words or configured names. They are not scrubbed, or a short secret could mask
# a part of them.
_OURS = ("event", "level", "timestamp", "table", "kind")


def _scrubbed(_logger: object, _name: str, values: EventDict) -> EventDict:
    return {key: value if key in _OURS else _scrub_within(value) for key, value in values.items()}


def _scrub_within(value: object) -> object:
    match value:
        case str():
            return scrub(value)
        case list() | tuple():
            return [_scrub_within(each) for each in value]
        case dict():
            return {key: _scrub_within(each) for key, each in value.items()}
        case _:
            return value
