"""Logs what a sync did to the tables that readers may have relied on, and notifies those who want to know."""

from __future__ import annotations

import structlog

from daemon.config.settings import NoticeKind
from daemon.iceberg.schema_changes import Layout, describe_changes, layout_of
from daemon.notices.notice import Run, Written, catalog_place, make_notice
from daemon.observe import log as events
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown, SyncResult
from state import TableRecord

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def publish(context: TableContext, shown: Shown, result: SyncResult, started_ms: int) -> None:
    """Publish the lineage of the committed version to the hooks."""
    record, snapshot, written = shown.record, shown.table.current_snapshot(), None
    if result.snapshots and snapshot and snapshot.summary:
        keys = ("added-records", "added-files-size", "added-data-files")
        written = Written(*(int(snapshot.summary[key] or 0) for key in keys))
    context.publish(
        Run(
            table=record.name,
            source=record.source,
            target=record.target,
            started_ms=started_ms,
            ended_ms=context.clock.now_ms(),
            version=record.synced_version,
            snapshot_id=record.snapshot_id,
            location=shown.table.location(),
            catalog=catalog_place(context.properties),
            schema=shown.table.schema(),
            written=written,
        )
    )


def notify_created_again(context: TableContext, record: TableRecord) -> None:
    """Log and notify that the catalog had lost the Iceberg table of `record`, which was created again."""
    if record.metadata_location is None:
        return
    target, before, here = record.target, record.catalog, context.settings.catalog
    if before in (None, here):
        reason = f"the catalog had no table {target} any more, so dvsync created it again"
    else:
        reason = (
            f"{target} moved from the catalog {before} to {here}, where dvsync created it; the table in {before} "
            f"stays at version {record.synced_version}: drop it when nobody reads it any more"
        )
    reason += f"; the former table's metadata file was {record.metadata_location}"
    _log.warning(events.TARGET_OVERWRITTEN, reason=reason)
    context.notify(make_notice(NoticeKind.TARGET_CHANGED, record, reason, context.clock))


def notify_replaced_source(context: TableContext, before: TableRecord, record: TableRecord) -> None:
    """Log and notify that another Delta table is at the source than the one of `before`."""
    if before.delta_table_id in (None, record.delta_table_id):
        return
    text = (
        f"the Delta table was replaced by another one at version {record.synced_version} (id "
        f"{record.delta_table_id} instead of {before.delta_table_id}); the former one was at version "
        f"{before.synced_version}"
    )
    _log.warning(events.SOURCE_REPLACED, reason=text)
    context.notify(make_notice(NoticeKind.SOURCE_REPLACED, record, text, context.clock))


def notify_schema_change(context: TableContext, before: Layout, shown: Shown) -> None:
    """Log and notify the columns that differ from those of `before`, which readers may have relied on."""
    changes, record, clock = describe_changes(before, layout_of(shown.table)), shown.record, context.clock
    if changes:
        _log.warning(events.SCHEMA_CHANGED, version=record.synced_version, changes=changes)
        text = f"has another schema since version {record.synced_version}: {'; '.join(changes)}"
        context.notify(make_notice(NoticeKind.SCHEMA_CHANGED, record, text, clock))
