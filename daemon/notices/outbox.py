"""The hooks of the configuration, each in a thread of its own, so that none holds up a sync or another hook."""

from __future__ import annotations

from threading import Lock

from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.notices.hook import Hook, HookCounts, Message


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

    def counts(self) -> list[HookCounts]:
        with self._lock:
            return [hook.counts() for hook in self._hooks]

    def close(self, wait_s: float) -> None:
        """Try once what was not tried yet, for at most `wait_s`. Then kill commands, and drop what is left."""
        end_s = self._clock.monotonic_s() + wait_s
        for hook in self._hooks:
            hook.begin_to_close()
        for hook in self._hooks:
            hook.end(max(0.0, end_s - self._clock.monotonic_s()))
