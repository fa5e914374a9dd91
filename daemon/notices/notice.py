"""What a hook receives as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from daemon.clock import Clock
from daemon.config.settings import NoticeKind
from daemon.masking import scrub
from daemon.texts import counted, iso_time, some_of
from state import TableRecord


class Notice(msgspec.Struct, frozen=True):
    """An event of one table. `version` is the Delta version that the Iceberg table shows, `at` is UTC."""

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


class JoinedNotices(msgspec.Struct, frozen=True):
    """The same event of many tables."""

    event: NoticeKind
    table: None
    at: str
    text: str
    hint: str
    notices: tuple[Notice, ...]


def make_notice(event: NoticeKind, record: TableRecord, text: str, clock: Clock, hint: str | None = None) -> Notice:
    return Notice(
        event=event,
        table=record.name,
        at=iso_time(clock.now_ms()),
        text=scrub(f"{record.name}: {text}"),
        hint=hint,
        source=scrub(record.source),
        target=record.target,
        version=record.synced_version,
        snapshot_id=record.snapshot_id,
        metadata_location=record.metadata_location,
    )


def encode(notices: Sequence[Notice]) -> bytes:
    """Return one notice as it is, or several of one event as JoinedNotices."""
    if len(notices) == 1:
        return msgspec.json.encode(notices[0])
    first, tables = notices[0], list(dict.fromkeys(notice.table for notice in notices))
    about = f"{counted(len(notices), 'notice')} about {counted(len(tables), 'table')}"
    text = f"{first.event}: {about} ({some_of(tables)}). The first: {first.text}"
    hint = "`dvsync status` and `notices` say what to do for each table."
    return msgspec.json.encode(JoinedNotices(first.event, None, first.at, text, hint, tuple(notices)))
