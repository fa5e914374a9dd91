"""Tells people and programs what happened to a table, or its lineage: by webhook, or by a command that reads JSON.

Each sink of the configuration has a thread of its own, so that none of them holds up a sync. What waits is in memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import islice, takewhile
from math import inf
from random import uniform
from tempfile import TemporaryFile
from threading import Condition, Lock, Thread
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec
import structlog

from daemon import log as events
from daemon.clock import Clock
from daemon.config.settings import AfterSyncSettings, LineageSettings, NoticeKind, NotifySettings, RunState, Settings
from daemon.lineage.runs import LineageEvent
from daemon.masking import scrub
from daemon.texts import TEXT_CHARACTERS_MAX, counted, excerpt, some_of
from state import TableRecord

# A sink gets this many notices of an event in a minute one by one. Further ones are joined into one.
ALONE_MAX = 10
JOINED_EACH_S = 60.0
# Receivers take no bodies of any size.
JOINED_MAX = 500
# The notices that wait for one sink. Of further ones, the new ones are dropped.
WAITING_MAX = 10_000
# A notice is tried this often, for some 15 minutes, and then dropped.
ATTEMPTS_MAX = 20
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0
# The log quotes the last line that a failed command wrote to standard error.
STDERR_BYTES_MAX = 4096

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Notice(msgspec.Struct, frozen=True):
    """What a sink receives as JSON. `version` is the Delta version that the Iceberg table shows, `at` is UTC."""

    event: NoticeKind
    table: str
    at: str
    text: str
    hint: str | None
    source: str
    target: str
    version: int | None
    snapshot_id: int | None
    metadata_location: str | None


def make_notice(event: NoticeKind, record: TableRecord, text: str, clock: Clock, hint: str | None = None) -> Notice:
    """Make a notice about the table of `record`."""
    at = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
    return Notice(
        event=event,
        table=record.name,
        at=at.replace("+00:00", "Z"),
        text=scrub(f"{record.name}: {text}"),
        hint=hint,
        source=scrub(record.source),
        target=record.target,
        version=record.synced_version,
        snapshot_id=record.snapshot_id,
        metadata_location=record.metadata_location,
    )


class JoinedNotices(msgspec.Struct, frozen=True):
    """What a sink receives as JSON if the same event happened to many tables."""

    event: NoticeKind
    table: None
    at: str
    text: str
    hint: str
    notices: tuple[Notice, ...]


SinkSettings = NotifySettings | AfterSyncSettings | LineageSettings
Message = Notice | LineageEvent


def _join(notices: Sequence[Notice]) -> JoinedNotices:
    first, tables = notices[0], list(dict.fromkeys(notice.table for notice in notices))
    about = f"{counted(len(notices), 'notice')} about {counted(len(tables), 'table')}"
    text = f"{first.event}: {about} ({some_of(tables)}). The first: {first.text}"
    hint = "`dvsync status` and `notices` say what to do for each table."
    return JoinedNotices(first.event, None, first.at, text, hint, tuple(notices))


class SinkCounts(msgspec.Struct, frozen=True):
    """What became of a sink's notices since it was configured."""

    sink: str
    sent: int
    dropped: int
    waiting: int


class Outbox:
    """All sinks of the configuration. Safe to use from any thread."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._sinks: list[_Sink] = []
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Use other settings. A sink whose settings stay keeps what waits; one that goes tries once what it has not."""
        wanted: list[tuple[str, SinkSettings]] = [
            *((f"notify[{number}]", each) for number, each in enumerate(settings.notify)),
            *((f"after_sync[{number}]", each) for number, each in enumerate(settings.after_sync)),
            *((f"lineage[{number}]", each) for number, each in enumerate(settings.lineage)),
        ]
        with self._lock:
            left, self._sinks = self._sinks, []
            for name, each in wanted:
                sink = next((sink for sink in left if sink.settings == each), None)
                if sink:
                    left.remove(sink)
                    sink.name = name
                self._sinks.append(sink or _Sink(name, each, self._clock))
            for sink in left:
                sink.begin_to_close()

    def put(self, notice: Message) -> None:
        """Send the notice soon to each sink that wants it. Never waits."""
        with self._lock:
            for sink in self._sinks:
                if sink.wants(notice):
                    sink.put(notice)

    def counts(self) -> list[SinkCounts]:
        with self._lock:
            return [sink.counts() for sink in self._sinks]

    def close(self, wait_s: float) -> None:
        """Try once what was not tried yet, for at most `wait_s`. Then kill commands, and drop what is left."""
        end_s = self._clock.monotonic_s() + wait_s
        for sink in self._sinks:
            sink.begin_to_close()
        for sink in self._sinks:
            sink.end(max(0.0, end_s - self._clock.monotonic_s()))


@dataclass
class _Line:
    """The notices of one table that wait, the oldest first, and when the first one is due.

    `attempts` are those of the first notice, `failures` those since the last success.
    """

    notices: deque[Message] = field(default_factory=deque)
    attempts: int = 0
    failures: int = 0
    due_s: float = 0.0


@dataclass
class _Minute:
    """How many notices of an event were sent until `ends_s`."""

    ends_s: float
    sent: int = 0


_Due = list[tuple[_Line, list[Message]]]


class _Sink:
    """One sink: a line for each table, so that a notice that fails holds up only later ones of its table."""

    def __init__(self, name: str, settings: SinkSettings, clock: Clock) -> None:
        self.settings = settings
        self.name = name
        self._clock = clock
        self._lines: dict[str, _Line] = {}
        self._minutes: dict[NoticeKind | RunState, _Minute] = {}
        self._changed = Condition()
        self._sent = self._dropped = self._waiting = 0
        # Until when the thread waits if nothing new is due before.
        self._wakes_s = inf
        self._is_closing = False
        self._command: subprocess.Popen[bytes] | None = None
        # Started for the first notice: most commands have none.
        self._thread = Thread(target=self._work, name=name, daemon=True)

    def wants(self, notice: Message) -> bool:
        return notice.event in self.settings.events and any(
            fnmatchcase(notice.table, each) for each in self.settings.tables
        )

    def put(self, notice: Message) -> None:
        with self._changed:
            if self._is_closing:
                return
            if not self._thread.is_alive():
                self._thread.start()
            line = self._lines.setdefault(notice.table, _Line())
            if notice.event is NoticeKind.SYNCED:
                # Whoever reads the newest metadata needs no older one. If it fails, too, it waits as the older one did.
                self._waiting -= len(line.notices)
                line.notices.clear()
                line.attempts = 0
            elif self._waiting >= WAITING_MAX:
                self._drop(notice, f"{WAITING_MAX} others wait")
                return
            line.notices.append(notice)
            self._waiting += 1
            # What is held wakes nobody.
            if self._due_s(line) < self._wakes_s:
                self._changed.notify()

    def counts(self) -> SinkCounts:
        with self._changed:
            return SinkCounts(self.name, self._sent, self._dropped, self._waiting)

    def begin_to_close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    def end(self, wait_s: float) -> None:
        if not self._thread.is_alive():
            return
        self._thread.join(wait_s)
        if self._thread.is_alive():
            with self._changed:
                self._drop_all()
                if self._command:
                    os.killpg(self._command.pid, signal.SIGKILL)

    def _work(self) -> None:
        while due := self._next():
            try:
                self._deliver(self._encode([notice for _, run in due for notice in run]))
                reason = None
            except Exception as error:
                # Whatever it is: without this thread, `put` would fail, and with it a sync.
                reason = _reason(error)
            with self._changed:
                if reason is None:
                    self._succeed(due)
                else:
                    self._fail(due, reason)
        with self._changed:
            self._drop_all()

    def _next(self) -> _Due:
        """Wait for a notice that is due, or for many of an event. Empty at the end."""
        with self._changed:
            while True:
                now_s = self._clock.monotonic_s()
                lines = [line for line in self._lines.values() if line.notices]
                if self._is_closing:
                    untried = [line for line in lines if not line.attempts]
                    return self._with_others(untried[0], untried, now_s) if untried else []
                line = min(lines, key=self._due_s, default=None)
                left_s = self._due_s(line) - now_s if line else None
                if line and left_s is not None and left_s <= 0:
                    return self._with_others(line, [each for each in lines if each.due_s <= now_s], now_s)
                self._wakes_s = inf if left_s is None else now_s + left_s
                self._changed.wait(left_s)

    def _due_s(self, line: _Line) -> float:
        minute = self._minutes.get(line.notices[0].event)
        return max(line.due_s, minute.ends_s) if minute and minute.sent >= ALONE_MAX else line.due_s

    def _with_others(self, line: _Line, ready: Sequence[_Line], now_s: float) -> _Due:
        """Return the line's first notice or, if its event has too many to send them one by one, those of all `ready`.

        Of each line, these are its first ones of the event. After a refusal they are fewer and fewer, so that one that
        is always refused does not take the others with it.
        """
        notice, event = line.notices[0], line.notices[0].event
        if not isinstance(notice, Notice) or event is NoticeKind.SYNCED:
            return [(line, [notice])]
        minute = self._minutes.get(event)
        if minute is None or minute.ends_s <= now_s:
            minute = self._minutes[event] = _Minute(now_s + JOINED_EACH_S)
        others = (each for each in ready if each is not line and each.notices[0].event is event)
        due, left = [], max(1, JOINED_MAX >> line.attempts)
        for each in (line, *others):
            run = list(islice(takewhile(lambda one: one.event is event, each.notices), left))
            due.append((each, run))
            left -= len(run)
            if not left:
                break
        is_many = minute.sent + sum(len(run) for _, run in due) > ALONE_MAX
        return due if is_many else [(line, [notice])]

    def _succeed(self, due: _Due) -> None:
        number = sum(len(run) for _, run in due)
        self._sent += number
        if minute := self._minutes.get(due[0][1][0].event):
            minute.sent += number
        for line, run in due:
            line.failures, line.due_s = 0, 0.0
            for notice in run:
                if _is_first(line, notice):
                    self._pop(line)

    def _fail(self, due: _Due, reason: str) -> None:
        now_s, jitter = self._clock.monotonic_s(), uniform(0.8, 1.2)
        for line, (notice, *_) in due:
            line.failures += 1
            line.attempts += _is_first(line, notice)
            if line.attempts >= ATTEMPTS_MAX:
                self._pop(line)
                line.failures = 0
                self._drop(notice, f"{reason}, {ATTEMPTS_MAX} times")
            else:
                line.due_s = now_s + min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** (line.failures - 1)) * jitter
        first_line, (first, *_) = due[0]
        if first_line.failures == 1:
            hint = f"dvsync tries again. If it goes on, check the address or command of {self.name}."
            tables = {"tables": len(due)} if len(due) > 1 else {}
            _log.warning(
                events.NOTICE_FAILED,
                sink=self.name,
                table=first.table,
                **tables,
                notice=first.event,
                reason=reason,
                hint=hint,
            )

    def _pop(self, line: _Line) -> None:
        line.notices.popleft()
        line.attempts, line.due_s = 0, 0.0
        self._waiting -= 1

    def _drop(self, notice: Message, reason: str) -> None:
        self._dropped += 1
        hint = f"Check the address or command of {self.name}; `dvsync status` shows what the notice would have said."
        _log.error(
            events.NOTICE_DROPPED, sink=self.name, table=notice.table, notice=notice.event, reason=reason, hint=hint
        )

    def _drop_all(self) -> None:
        for line in self._lines.values():
            for notice in line.notices:
                # The next start calls hooks for all tables.
                if notice.event is NoticeKind.SYNCED:
                    self._dropped += 1
                else:
                    self._drop(notice, "the sink was removed, or dvsync ended")
            line.notices.clear()
        self._waiting = 0

    def _encode(self, messages: Sequence[Message]) -> bytes:
        notices = [message for message in messages if isinstance(message, Notice)]
        if notices:
            return msgspec.json.encode(notices[0] if len(notices) == 1 else _join(notices))
        from daemon.lineage.events import render  # noqa: PLC0415 - an extra

        (event,) = messages
        assert isinstance(event, LineageEvent)
        assert isinstance(self.settings, LineageSettings), "no other sink wants lineage"
        return render(event, self.settings.namespace)

    def _deliver(self, body: bytes) -> None:
        """Raises an exception unless the receiver took it."""
        if self.settings.command:
            self._run(self.settings.command, body)
        else:
            _post(self.settings, body)

    def _run(self, command: Sequence[str], body: bytes) -> None:
        """Run a command until it ends; what it left in the background goes on. After the timeout, kill all of it."""
        # Not a pipe: a program in the background would hold it open, and what is written there would be in memory.
        with TemporaryFile() as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
            with self._changed:
                self._command = process
            try:
                process.communicate(body, self.settings.timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise
            finally:
                with self._changed:
                    self._command = None
            if process.returncode:
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - STDERR_BYTES_MAX))
                raise subprocess.CalledProcessError(process.returncode, command, stderr=errors.read())


def _is_first(line: _Line, notice: Message) -> bool:
    """Whether the notice that was sent is still the line's first: a newer one may have replaced it meanwhile."""
    return bool(line.notices) and line.notices[0] is notice


class _NoRedirects(HTTPRedirectHandler):
    """A redirected POST would become a GET without its body, and look like a success."""

    def redirect_request(self, *_: object) -> None:
        return None


def _post(settings: SinkSettings, body: bytes) -> None:
    assert settings.url is not None, "a sink has an address or a command"
    headers = {"content-type": "application/json", **settings.headers}
    request = Request(settings.url, data=body, headers=headers, method="POST")
    with build_opener(_NoRedirects).open(request, timeout=settings.timeout_s) as answer:
        answer.read(1)


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, subprocess.CalledProcessError):
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        text = f"exit code {error.returncode}: {last}"
    elif isinstance(error, subprocess.TimeoutExpired):
        text = f"no end within {error.timeout:.3g} s"
    return excerpt(scrub(text), TEXT_CHARACTERS_MAX)
