"""The hooks of the configuration: what waits for each, in memory, and the thread that sends it, beside the syncs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice, takewhile
from random import uniform
from threading import Condition, Lock, Thread

import structlog

from daemon.clock import Clock
from daemon.config.settings import HookSettings, NoticeKind, Settings
from daemon.notices.delivery import Receiver, describe_failure
from daemon.notices.notice import Notice, Run, encode
from daemon.observe import log as events

# The notices of an event that come within this time after one was sent are joined.
JOINED_EACH_S = 10.0
# Receivers take no bodies of any size.
JOINED_MAX = 500
# The messages that wait for one hook. Of further ones, the new ones are dropped.
WAITING_MAX = 10_000
# A message is tried this often, for some 15 minutes, and then dropped.
ATTEMPTS_MAX = 20
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0
# A command waits this long at its end, the daemon shorter.
COMMAND_END_MAX_S = 30.0

Message = Notice | Run

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass
class _Line:
    """A table's waiting messages. `attempts` are the first message's, `failures` those since the last success."""

    messages: deque[Message] = field(default_factory=deque)
    attempts: int = 0
    failures: int = 0
    due_s: float = 0.0


# What is sent in one: the first messages of some lines.
_Batch = list[tuple[_Line, list[Message]]]


class Hook:
    """A line for each table, so that a message that fails holds up only later ones of its table."""

    def __init__(self, name: str, settings: HookSettings, clock: Clock) -> None:
        self.settings = settings
        self.name = name
        self._clock = clock
        self._lines: dict[str, _Line] = {}
        # When the next notice of an event is sent, with those that have come until then.
        self._next_s: dict[str, float] = {}
        self._changed = Condition()
        self.sent = self.dropped = self.waiting = 0  # messages since the hook was configured
        self._is_closing = False
        self._receiver = Receiver(settings)
        # Started for the first message: most commands have none.
        self._thread = Thread(target=self._work, name=name, daemon=True)

    def wants(self, message: Message) -> bool:
        if isinstance(message, Run):
            is_wanted = self.settings.format == "openlineage"
        else:
            is_wanted = self.settings.format == "json" and message.event in self.settings.events
        return is_wanted and any(fnmatchcase(message.table, each) for each in self.settings.tables)

    def put(self, message: Message) -> None:
        with self._changed:
            if self._is_closing:
                return
            if not self._thread.is_alive():
                self._thread.start()
            line = self._lines.setdefault(message.table, _Line())
            if message.event is NoticeKind.SYNCED:
                # Whoever reads the newest metadata needs no older one. If it fails, too, it waits as that did.
                if line.messages and line.messages[0].event is NoticeKind.SYNCED:
                    line.attempts = 0
                others = deque(each for each in line.messages if each.event is not NoticeKind.SYNCED)
                self.waiting -= len(line.messages) - len(others)
                line.messages = others
            elif self.waiting >= WAITING_MAX:
                self._drop(message, f"{WAITING_MAX} others wait")
                return
            line.messages.append(message)
            self.waiting += 1
            self._changed.notify()

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
            self._receiver.kill()

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._receiver.deliver(_body([message for _, run in batch for message in run]))
                reason = None
            except Exception as error:
                # Whatever it is: without this thread, `put` would fail, and with it a sync.
                reason = describe_failure(error)
            with self._changed:
                if reason is None:
                    self._succeed(batch)
                else:
                    self._fail(batch, reason)
        with self._changed:
            self._drop_all()

    def _next(self) -> _Batch:
        """Wait for a message that is due. Empty at the end, when all have been tried."""
        with self._changed:
            while True:
                now_s = self._clock.monotonic_s()
                lines = [line for line in self._lines.values() if line.messages]
                if self._is_closing:
                    ready = [line for line in lines if not line.attempts]
                else:
                    ready = [line for line in lines if self._due_s(line) <= now_s]
                if ready or self._is_closing:
                    return _batch(sorted(ready, key=lambda line: line.due_s))
                self._changed.wait(min(map(self._due_s, lines)) - now_s if lines else None)

    def _due_s(self, line: _Line) -> float:
        return max(line.due_s, self._next_s.get(line.messages[0].event, 0.0))

    def _succeed(self, batch: _Batch) -> None:
        first = batch[0][1][0]
        if _is_joined(first):
            self._next_s[first.event] = self._clock.monotonic_s() + JOINED_EACH_S
        for line, run in batch:
            self.sent += len(run)
            line.failures = 0
            for message in run:
                if _is_first(line, message):
                    self._pop(line)

    def _fail(self, batch: _Batch, reason: str) -> None:
        now_s, jitter = self._clock.monotonic_s(), uniform(0.8, 1.2)
        for line, (message, *_) in batch:
            line.failures += 1
            line.attempts += _is_first(line, message)
            if line.attempts >= ATTEMPTS_MAX:
                self._pop(line)
                line.failures = 0
                self._drop(message, f"{reason}, {ATTEMPTS_MAX} times")
            else:
                line.due_s = now_s + min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** (line.failures - 1)) * jitter
        line, (message, *_) = batch[0]
        if line.failures == 1:
            _log.warning(
                events.NOTICE_FAILED,
                hook=self.name,
                table=message.table,
                tables=len(batch),
                notice=message.event,
                reason=reason,
                hint=f"dvsync tries again. If this continues, check the address or command of {self.name}.",
            )

    def _pop(self, line: _Line) -> None:
        line.messages.popleft()
        # The table that waits longest is the next.
        line.attempts, line.due_s = 0, self._clock.monotonic_s()
        self.waiting -= 1

    def _drop(self, message: Message, reason: str) -> None:
        self.dropped += 1
        hint = f"Check the address or command of {self.name}; `dvsync status` shows what the notice would have said."
        _log.error(
            events.NOTICE_DROPPED, hook=self.name, table=message.table, notice=message.event, reason=reason, hint=hint
        )

    def _drop_all(self) -> None:
        for line in self._lines.values():
            for message in line.messages:
                # The next start sends it for each table.
                if message.event is NoticeKind.SYNCED:
                    self.dropped += 1
                else:
                    self._drop(message, "the hook was removed, or dvsync ended")
            line.messages.clear()
        self.waiting = 0


def _is_joined(message: Message) -> bool:
    return isinstance(message, Notice) and message.event is not NoticeKind.SYNCED


def _is_first(line: _Line, message: Message) -> bool:
    """Whether the message that was sent is still the line's first: a newer one may have replaced it meanwhile."""
    return bool(line.messages) and line.messages[0] is message


def _batch(ready: Sequence[_Line]) -> _Batch:
    """Return the first message, with those of the same event that all lines begin with if such are joined.

    After a refusal they are fewer and fewer, so that one that is always refused does not take the others with it.
    """
    if not ready:
        return []
    first = ready[0].messages[0]
    left = max(1, JOINED_MAX >> ready[0].attempts) if _is_joined(first) else 1
    batch: _Batch = []
    for line in ready:
        run = list(islice(takewhile(lambda each: each.event is first.event, line.messages), left))
        left -= len(run)
        if run:
            batch.append((line, run))
    return batch


def _body(messages: Sequence[Message]) -> bytes:
    if notices := [message for message in messages if isinstance(message, Notice)]:
        return encode(notices)
    from daemon.notices.openlineage import render  # noqa: PLC0415 - an extra

    (run,) = messages
    assert isinstance(run, Run), "a hook gets notices or lineage"
    return render(run)


class Outbox:
    """All hooks of the configuration. Safe to use from any thread."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._hooks: list[Hook] = []
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Use other settings. Unchanged hooks keep their queue. Removed hooks try each untried message once."""
        with self._lock:
            left, self._hooks = self._hooks, []
            for number, each in enumerate(settings.hooks):
                name = f"hooks[{number}]"
                hook = next((hook for hook in left if hook.settings == each), None)
                if hook:
                    left.remove(hook)
                    hook.name = name
                self._hooks.append(hook or Hook(name, each, self._clock))
            for hook in left:
                hook.begin_to_close()

    def put(self, message: Message) -> None:
        """Send the message soon to each hook that wants it. Never waits."""
        with self._lock:
            for hook in self._hooks:
                if hook.wants(message):
                    hook.put(message)

    def hooks(self) -> list[Hook]:
        with self._lock:
            return list(self._hooks)

    def close(self, wait_s: float) -> None:
        """Try once what was not tried yet, for at most `wait_s`. Then kill commands, and drop what is left."""
        end_s = self._clock.monotonic_s() + wait_s
        for hook in self._hooks:
            hook.begin_to_close()
        for hook in self._hooks:
            hook.end(max(0.0, end_s - self._clock.monotonic_s()))
