"""What an OpenLineage event says of a table, before it is put into OpenLineage's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from daemon.masking import USERINFO
from daemon.store.locations import canonical

if TYPE_CHECKING:
    # Slow to import, and some commands with an outbox need no schema.
    from pyiceberg.schema import Schema


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
class Run:
    """A commit to an Iceberg table or, with `error`, the parking of a table; `event` is its beginning or its end.

    Times are epoch milliseconds, UTC. `version` is the Delta version that the commit shows. `location` is the Iceberg
    table's place, `catalog` that of the catalog with the name `target`. `written` is None if there is no new snapshot.
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
