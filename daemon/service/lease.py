"""One process at a time works on a state database: it holds the lease, and others refuse or stand by.

The lease is a row of the database that its holder renews. If the holder is suspended for longer than the lease, another
process takes over: the database then refuses the old holder's writes, and without them it makes no commit.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import structlog
from filelock import FileLock, Timeout

from daemon.clock import Clock
from daemon.errors import StateInUse, StateStoreAway
from daemon.observe import log as events
from state import Lease, LeaseLost, StateUnavailable
from state.sql.lease import LeaseStore

# How often a holder renews the lease, and others read it, in the length of a lease.
RENEWALS_PER_LEASE = 3
KEEPER_END_MAX_S = 5.0
UNWRITABLE = "Check the state database's disk, permissions or server: nothing is synced until it can be written."

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def describe_process() -> str:
    """This process, described for people who read about the holder of the lease."""
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()} ({command}), since {started}"


class LeaseKeeper:
    """Takes the lease of one state database, and keeps it.

    A holder is silent as long as its row does not change, measured on this process's monotonic clock: neither another
    machine's clock nor a clock that jumps matters. For an SQLite file, the operating system's lock is free as soon as
    the holder's process has ended.
    """

    def __init__(
        self, store: LeaseStore, clock: Clock, *, sqlite_file: Path | None, lease_s: float, address: str | None = None
    ) -> None:
        self._store = store
        self._address = address
        self._clock = clock
        self._lock: FileLock | None = None
        if sqlite_file is not None:
            # One lock for every spelling of the path. Not per thread, since another thread takes it than renews it.
            self._lock = FileLock(f"{sqlite_file.resolve()}.lock", thread_local=False)
        self._lease_s = lease_s
        self.renewal_interval_s = lease_s / RENEWALS_PER_LEASE
        self._seen: Lease | None = None
        # What was asked for before this process read its configuration is done.
        self._reloads: int | None = None
        self._seen_since_s = 0.0
        # Whether the holder showed a sign of life when the row was last read.
        self.is_holder_alive = False
        self._given_back = Event()
        self._renewals: Thread | None = None

    def try_take(self) -> str | None:
        """Take the lease if it is free, or if its holder's process has ended or was silent for a whole lease.

        Returns None when this process holds the lease now, else who holds it. Raises StateUnavailable, StateStoreAway.
        """
        has_lock = self._try_lock()
        taken = False
        try:
            seen, now_s = self._store.read_lease(), self._clock.monotonic_s()
            self._reloads = seen.reloads if self._reloads is None else self._reloads
            # Also a command writes the row: only its holder changes these.
            is_news = self._seen is None or (seen.token, seen.renewals) != (self._seen.token, self._seen.renewals)
            self.is_holder_alive = (self._seen is not None and is_news) or (self._lock is not None and not has_lock)
            if is_news:
                self._seen, self._seen_since_s = seen, now_s
            is_free = seen.holder is None and (has_lock or self._lock is None)
            is_gone = seen.has_lock and has_lock
            # Token 0: no lease was ever taken, but an old dvsync without leases may hold the lock.
            is_silent = now_s - self._seen_since_s >= self._lease_s and seen.token > 0
            if is_free or is_gone or is_silent:
                taken = self._store.take_lease(seen, describe_process(), has_lock=has_lock, address=self._address)
                if taken and seen.holder is not None:
                    _log.warning(events.LEASE_TAKEN_OVER, holder=seen.holder, had_ended=is_gone)
            return None if taken else seen.holder or "the process that has locked its file"
        finally:
            if has_lock and not taken:
                self._unlock()

    def keep(
        self,
        on_lost: Callable[[str], None],
        on_unrenewed: Callable[[str | None], None] = lambda _: None,
        on_reload: Callable[[], None] = lambda: None,
    ) -> None:
        """Renew the lease until it is given back, in a thread of its own.

        `on_lost` is called with the new holder, `on_unrenewed` with the reason why the lease cannot be renewed, and
        with None once it can be again, `on_reload` when a command has changed the configuration.
        """
        callbacks = (on_lost, on_unrenewed, on_reload)
        self._renewals = Thread(target=self._renew, args=callbacks, name="lease", daemon=True)
        self._renewals.start()

    def _renew(
        self, on_lost: Callable[[str], None], on_unrenewed: Callable[[str | None], None], on_reload: Callable[[], None]
    ) -> None:
        is_unrenewed = False
        while not self._given_back.wait(self.renewal_interval_s):
            try:
                reloads = self._store.renew_lease(has_lock=self._try_lock())
                if reloads != self._reloads:
                    self._reloads = reloads
                    on_reload()
                if is_unrenewed:
                    is_unrenewed = False
                    on_unrenewed(None)
                    _log.info(events.LEASE_RENEWED)
            except LeaseLost as error:
                self._unlock()
                on_lost(str(error))
                return
            except Exception as error:
                # While the database is away, nobody else can take the lease either.
                on_unrenewed(str(error))
                if not is_unrenewed:
                    _log.error(events.LEASE_UNRENEWED, reason=str(error), hint=UNWRITABLE)
                is_unrenewed = True

    def give_back(self) -> None:
        """Free the lease at once. If that fails, the next process waits for the length of a lease."""
        self._given_back.set()
        if self._renewals is not None:
            self._renewals.join(KEEPER_END_MAX_S)
        # If the renewal hangs it may hold the write lock, so leave the row alone.
        if self._renewals is None or not self._renewals.is_alive():
            with suppress(StateUnavailable):
                self._store.give_back_lease()
        self._unlock()

    def _try_lock(self) -> bool:
        """Whether this process has the operating system's lock, which only an SQLite file has."""
        if self._lock is None:
            return False
        try:
            if not self._lock.is_locked:
                self._lock.acquire(timeout=0)
        except Timeout:
            return False
        except OSError as error:
            raise StateStoreAway(
                f"the state database cannot be locked: {(error.strerror or str(error)).lower()}",
                path=self._lock.lock_file,
                hint="dvsync needs to write to the folder of its state database.",
            ) from error
        return True

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()


@contextmanager
def hold_lease(keeper: LeaseKeeper, stop: Event) -> Iterator[None]:
    """Hold the lease while the block lasts; `stop` is set when it is lost.

    Waits for a holder that shows no sign of life. Raises StateInUse when another process is at work, or when `stop` was
    set while waiting.
    """
    holder = keeper.try_take()
    while holder is not None and not keeper.is_holder_alive and not stop.wait(keeper.renewal_interval_s):
        holder = keeper.try_take()
    if holder is not None:
        raise StateInUse(
            f"the state database is in use by {holder}",
            hint="Stop that process first, or let it do the work: `dvsync sync --wait` waits for it. Meanwhile "
            "pause, resume, resync, forget, cleanup and the commands that only read work.",
        )
    keeper.keep(lambda _: stop.set())
    try:
        yield
    finally:
        keeper.give_back()
