"""Compares each table's status with the previous one, and makes notices of what changed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace

from daemon.clock import Clock
from daemon.config.settings import NoticeKind
from daemon.errors import SchemaChanged, TargetChanged
from daemon.notices.notice import Notice, make_notice
from daemon.status.table_status import Observation, SyncState, TableStatus, table_status
from daemon.status.wording import differing_text
from state import TableRecord

# The event that comes before `parked`, by the error's kind.
ALSO = {TargetChanged.__name__: NoticeKind.TARGET_CHANGED, SchemaChanged.__name__: NoticeKind.SCHEMA_CHANGED}


@dataclass(frozen=True)
class _Seen:
    """What was sent about a table. `trouble` says why it is parked and since when, or that it is gone.

    `record` is its row at the last comparison; None before the first.
    """

    trouble: str | None = None
    is_wrong: bool = False
    metadata_location: str | None = None
    record: TableRecord | None = None

    @property
    def is_well(self) -> bool:
        return self.trouble is None and not self.is_wrong


class Watch:
    """Makes notices of what changed since the previous comparison. Used by one thread."""

    def __init__(
        self, notify: Callable[[Notice], None], clock: Clock, records: Iterable[TableRecord], *, repeats_synced: bool
    ) -> None:
        """Treat `records` as already notified, but with `repeats_synced` not their current metadata.

        A process that was killed may not have sent it, so the daemon sends `synced` once for each table.
        """
        self._notify = notify
        self._clock = clock
        # By the row's id: a table that was forgotten and comes back is another one.
        self._seen: dict[int, _Seen] = {}
        for record in records:
            status = table_status(record, Observation(record), clock.now_ms())
            seen = _look(status, record, _Seen())
            self._seen[record.id] = replace(seen, metadata_location=None) if repeats_synced else seen

    def compare(
        self, records: Iterable[TableRecord], find_status: Callable[[str], TableStatus | None], gone: Container[str]
    ) -> None:
        """`gone` are the names of those tables that are not followed any more.

        Of thousands of tables most are well, and their rows as before: their statuses need not be found.
        """
        former, self._seen = self._seen, {}
        for record in records:
            before = self._seen[record.id] = former.get(record.id, _Seen())
            if before.record == record and before.is_well and _is_well(record) and record.name not in gone:
                continue
            status = find_status(record.name)
            if status is None:
                continue
            after = self._seen[record.id] = replace(_look(status, record, before), record=record)
            for kind, text, hint in _changes(before, after, status):
                self._notify(make_notice(kind, record, text, self._clock, hint))


def _is_well(record: TableRecord) -> bool:
    """Whether there is nothing to tell, also by a status that is still older than the row."""
    return record.error is None and not (record.proof and record.proof.differences.counts)


def _look(status: TableStatus, record: TableRecord, before: _Seen) -> _Seen:
    trouble = before.trouble
    if status.state is SyncState.PARKED and status.error:
        trouble = f"{status.error.kind} {status.error.since}"
    elif status.state is SyncState.GONE and record.synced_version is not None:
        trouble = status.state
    elif status.state is SyncState.SYNCED:
        trouble = None
    is_wrong = not status.proof.is_right if status.proof else before.is_wrong
    # Without a snapshot id, the state store has recorded a part of a first sync.
    location = before.metadata_location if record.snapshot_id is None else record.metadata_location
    return _Seen(trouble, is_wrong, location)


def _changes(before: _Seen, after: _Seen, status: TableStatus) -> Iterable[tuple[NoticeKind, str, str | None]]:
    error = status.error
    if after.trouble not in (None, before.trouble) and error:
        text = f"{error.kind}: {error.message}"
        if status.state is SyncState.GONE:
            yield NoticeKind.GONE, error.message, error.hint
        else:
            if error.kind in ALSO:
                yield ALSO[error.kind], text, error.hint
            yield NoticeKind.PARKED, f"parked: {text}", error.hint
    if after.is_wrong and not before.is_wrong and status.proof:
        yield NoticeKind.PROOF_FAILED, differing_text(status.proof), None
    if after.is_well and not before.is_well:
        yield NoticeKind.RECOVERED, f"is in order again, at version {status.synced_version}", None
    is_new = after.metadata_location not in (None, before.metadata_location)
    if is_new and status.state is not SyncState.GONE:
        yield NoticeKind.SYNCED, f"shows version {status.synced_version}", None
