"""One process at a time works on a state database."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from daemon.errors import StateStoreAway


@contextmanager
def hold_state(sqlite_file: Path | None) -> Iterator[None]:
    """Keep every other `dvsync run`, `sync`, `compact` and `expire` away from this SQLite file while the block lasts.

    Any other database is asked by `Database.held` instead. Raises StateStoreAway when another process holds the state.
    """
    if sqlite_file is None:
        yield
        return
    path = sqlite_file.with_name(f"{sqlite_file.name}.lock")
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        holder = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
        raise StateStoreAway(
            f"the state database is in use by {holder}",
            path=str(sqlite_file),
            hint="Let that one work or stop it first; status, pause, resume, resync and cleanup work beside it.",
        ) from None
    except OSError as error:
        raise StateStoreAway(
            f"the state database cannot be locked: {(error.strerror or str(error)).lower()}",
            path=str(path),
            hint="dvsync needs to write to the folder of its state database.",
        ) from error
    try:
        # The text is for people; the lock itself is the operating system's and ends with the process.
        started = datetime.now(UTC).isoformat(timespec="seconds")
        path.write_text(f"process {os.getpid()} ({' '.join(sys.argv)}), started {started}\n", encoding="utf-8")
        yield
    finally:
        lock.release()
