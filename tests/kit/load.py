"""Load: many handmade Delta tables, some of which get commits all the time."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from threading import Event, Thread

from tests.kit.handmade import HandmadeTable
from tests.kit.handmade_histories import History


class Load:
    """`count` tables below `folder`, `t000` and so on; the first `busy` get a commit each `interval_s` while it runs.

    `committed_s` is when each version of a busy table was there, epoch seconds.
    """

    def __init__(
        self,
        folder: Path,
        random: Random,
        *,
        count: int,
        busy: int,
        interval_s: float = 1.0,
        history: type[History] = History,
    ) -> None:
        self.histories: dict[str, History] = {}
        for number in range(count):
            table = HandmadeTable(folder / f"t{number:03d}", partitioned=True)
            table.create()
            self.histories[table.folder.name] = history(table, random)
            self.histories[table.folder.name].play()
        self.busy = list(self.histories)[:busy]
        self._interval_s = interval_s
        self._stop = Event()
        self._thread = Thread(target=self._run)
        self.committed_s: dict[tuple[str, int], float] = {}
        self.late_s = 0.0

    @property
    def tables(self) -> dict[str, HandmadeTable]:
        return {name: history.table for name, history in self.histories.items()}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            # Spread over the interval, as tables that know nothing of each other are.
            for name in self.busy:
                if self._stop.wait(max(0.0, due_s - time.monotonic())):
                    return
                self.late_s = max(self.late_s, time.monotonic() - due_s)
                self.histories[name].play()
                self.committed_s[name, self.histories[name].table.version] = time.time()
                due_s += self._interval_s / len(self.busy)
