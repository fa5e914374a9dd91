"""What a hook receives: a Notice as JSON, or what an OpenLineage event says, before it has OpenLineage's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from daemon.clock import Clock
from daemon.config.settings import NoticeKind
from daemon.masking import USERINFO, scrub
from daemon.store.locations import canonical
from daemon.texts import counted, iso_time, some_of
from state import TableRecord

if TYPE_CHECKING:
    # Slow to import, and some commands with an outbox need no schema.
    from pyiceberg.schema import Schema


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


class RunState(StrEnum):
    """The events of OpenLineage that a hook gets."""

    START = "START"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Written:
    """The new data files of a snapshot: their rows, bytes and number."""

    rows: int
    size_bytes: int
    files: int


@dataclass(frozen=True)
class Deleted:
    """Rows that dvsync deleted from the Delta table, and for whom."""

    rows: int
    by: str


@dataclass(frozen=True)
class Run:
    """A commit to an Iceberg table, with `deleted` one to a Delta table, or with `error` the parking of a table.

    `event` is its beginning or its end.
    Times are epoch milliseconds, UTC. `version` is the Delta version that the commit shows, or is. `location` is the
    Iceberg table's place, `catalog` that of the catalog with the name `target`. `written` is None if there is no new
    snapshot. With `deleted`, `snapshot_id` is the one in which the rows were deleted before, at `location`, if any.
    """

    table: str
    source: str
    target: str
    started_ms: int
    ended_ms: int
    version: int | None = None
    snapshot_id: int | None = None
    location: str | None = None
    catalog: str | None = None
    schema: Schema | None = None
    written: Written | None = None
    deleted: Deleted | None = None
    error: str | None = None
    event: RunState = RunState.START


def events_of(run: Run) -> tuple[Run, Run]:
    """Both events of a run: OpenLineage requires its start, too."""
    return run, replace(run, event=RunState.COMPLETE if run.error is None else RunState.FAIL)


def catalog_place(properties: Mapping[str, str]) -> str | None:
    """Return the namespace of a catalog's tables, as OpenLineage's integration for Spark names it, without secrets."""
    uri, warehouse = properties.get("uri", ""), properties.get("warehouse")
    if uri.startswith(("http://", "https://", "thrift://")):
        return USERINFO.sub("", uri).partition("?")[0].replace("thrift://", "hive://")
    return warehouse and canonical(warehouse)
