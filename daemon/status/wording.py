"""What operators read of a table's status: parts of the lines and sentences of commands, page and log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.filesize import decimal

from daemon.status.table_status import WORST_FIRST, PauseStatus, ProofStatus, SyncState, TableStatus, pause_status
from daemon.sync.verbs import next_resync
from daemon.texts import counted
from state import MirrorCount, Pause

UNKNOWN_REASON = "why is not known: the state database was rebuilt"


def count_states(statuses: Sequence[TableStatus]) -> str:
    """How many tables are in which state, the worst first."""
    counts = Counter(status.state for status in statuses)
    if not statuses:
        return "no tables"
    return f"{counted(len(statuses), 'table')}: " + ", ".join(
        f"{counts[state]} {state}" for state in WORST_FIRST if counts[state]
    )


def size_text(size_bytes: int | None) -> str:
    return "unknown size" if size_bytes is None else decimal(size_bytes)


def mirrors_text(mirrors: Sequence[MirrorCount]) -> str:
    """How many data files have mirrors, and of what size: `12 (3.1 GB)`."""
    files = sum(each.files for each in mirrors)
    return f"{files:,} ({decimal(sum(each.size_bytes for each in mirrors))})" if files else "0"


def paused_text(pause: Pause | PauseStatus) -> str:
    """The end of a sentence that begins with the table; so are the others about it."""
    if isinstance(pause, Pause):
        pause = pause_status(pause)
    until = f", until {pause.until}" if pause.until else ""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"paused since {pause.since} by {pause.by}{until}{reason}"


def missing_text(source: str) -> str:
    return f"no Delta table has been seen at {source} yet; check the path, or wait for the table"


def resync_text(status: TableStatus) -> str:
    return next_resync(status.name, is_held=status.state in (SyncState.PAUSED, SyncState.PARKED))


def differences_text(differences: Mapping[str, int]) -> str:
    return ", ".join(f"{fault} ({count:,})" for fault, count in differences.items())


def differing_text(proof: ProofStatus) -> str:
    return f"differs from Delta, found {proof.at}: {differences_text(proof.differences)}"
