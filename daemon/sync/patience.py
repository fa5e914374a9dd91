"""What is believed of a table only once it lasts. The state store knows since when: a run of cron is a new process."""

from __future__ import annotations

from pyiceberg.table import Table

from daemon.delta.table_state import TableState
from daemon.errors import CatalogAway, ObjectMissing, SourceCatalogAway, TargetUnreadable
from daemon.iceberg.marker import shown_by
from daemon.iceberg.pyiceberg_ext.metadata_cache import find_or_read_metadata
from daemon.iceberg.references import metadata_files
from daemon.iceberg.version_hint import SUFFIX
from daemon.sync.context import TableContext
from state import TableRecord, Wait

# An older state than the one that was synced, or none, lasts this long before it is believed, on both sides.
OLDER_STATE_MIN_S = 60.0
OLDER_DELTA = "Delta's state is older"
OLDER_ICEBERG = "the catalog's answer is older"


def seconds_seen(context: TableContext, record: TableRecord, what: str) -> float:
    """Return for how long `what` has been seen at each sync of the table; 0 the first time."""
    now_ms, wait = context.clock.now_ms(), record.wait
    # A clock that was set back begins again.
    if wait is None or wait.what != what or wait.since_ms > now_ms:
        wait = Wait(what, now_ms)
        context.store.record_wait(record.id, wait)
    return (now_ms - wait.since_ms) / 1000


def forget_seen(context: TableContext, record: TableRecord, what: str) -> None:
    """`what` is not seen any more."""
    if record.wait and record.wait.what == what:
        context.store.record_wait(record.id, None)


def check_delta_not_older(context: TableContext, record: TableRecord, newest: TableState) -> None:
    """Raise `ObjectMissing` if Delta has just gone back to an older version of the same table: a listing may lag."""
    version, synced = newest.version, record.synced_version
    if newest.metadata.id != record.delta_table_id or synced is None or version >= synced:
        forget_seen(context, record, OLDER_DELTA)
    elif context.settings.is_managed and not record.resync_wanted:
        raise SourceCatalogAway(
            f"the catalog names version {version} as the newest, but version {synced} was synced already",
            version=synced,
            path=context.log.commit_path(synced),
            hint="A replica of the catalog may be behind: dvsync asks again. If the table was really put back, "
            f"`dvsync resync {record.name}` accepts it.",
        )
    elif seconds_seen(context, record, OLDER_DELTA) < OLDER_STATE_MIN_S:
        raise ObjectMissing(
            f"the Delta table ends at version {version}, but version {synced} was synced already",
            version=synced,
            path=context.log.commit_path(synced),
            hint=f"Restore the log. Otherwise Iceberg goes back to version {version} after a minute; "
            f"after `dvsync resync {record.name}`, without the wait.",
        )


def is_put_back(context: TableContext, record: TableRecord, table: Table | None) -> bool:
    """Return whether somebody dropped the table or put back older metadata. Raises `CatalogAway` before that has
    lasted: a catalog behind a cache, or of several servers, may say so for seconds.
    """
    if not _is_older(context, record, table):
        forget_seen(context, record, OLDER_ICEBERG)
        return False
    if seconds_seen(context, record, OLDER_ICEBERG) < OLDER_STATE_MIN_S:
        target, marker = context.settings.target, table and shown_by(table)
        if table is None:
            answer = f"has no table {target}"
            verb = f"`dvsync resync {record.name}`"
            lasting = f"dropped the table, and dvsync creates it again; after {verb}, without the wait."
        else:
            shown = f"Delta version {marker.version}" if marker else "no Delta version"
            answer = f"answers with older metadata of {target}: it shows {shown}"
            lasting = "rolled the table back, and dvsync says what to do."
        raise CatalogAway(
            f"the catalog {context.settings.catalog} {answer}, but version {record.synced_version} was synced already, "
            f"with {record.metadata_location}",
            path=table.metadata_location if table else None,
            hint="A cache or a replica of the catalog may be behind: dvsync asks again. If nothing changes for a "
            f"minute, somebody has {lasting}",
        )
    return True


def _is_older(context: TableContext, record: TableRecord, table: Table | None) -> bool:
    """Return whether `table` is as it was before the recorded metadata file, which it does not know and which is read:
    if that is impossible, no cache is to blame, and `load_shown` decides. So is no table, except in another catalog.
    Whoever rolls a table back makes metadata that is newer.
    """
    location = record.metadata_location
    if table is None:
        return location is not None and record.catalog in (None, context.settings.catalog)
    # Nessie answers a commit with an address of its own.
    if location is None or not location.endswith(SUFFIX) or location in metadata_files(table):
        return False
    try:
        recorded = find_or_read_metadata(table.io.new_input(location))
    except (ObjectMissing, TargetUnreadable, OSError, ValueError):
        return False
    found = table.metadata
    return recorded.table_uuid == found.table_uuid and recorded.last_updated_ms > found.last_updated_ms
