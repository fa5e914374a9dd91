"""The main path of one table: `Follower.sync`. The Iceberg table says how far we are, the state store remembers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Event

import structlog
from pyiceberg.table import Table

from daemon.config.settings import NoticeKind
from daemon.errors import (
    AccountMismatch,
    CatalogAway,
    CorruptInput,
    ObjectMissing,
    ReplacementNeeded,
    ResyncNeeded,
    SchemaChanged,
    StateMismatch,
    TargetChanged,
    TargetUnreadable,
    Unsupported,
)
from daemon.iceberg.marker import shown_by
from daemon.iceberg.schema_changes import layout_of
from daemon.notices.notice import make_notice
from daemon.observe import log as events
from daemon.observe import tracing
from daemon.sources.ratified import RatifiedStorage
from daemon.sync.advance import advance
from daemon.sync.comparison import commits_to_state, not_mendable
from daemon.sync.context import TableContext, as_sync_errors
from daemon.sync.first_sync import first_sync
from daemon.sync.foreign_deletes import hand_over
from daemon.sync.news import News
from daemon.sync.notices import notify_created_again, notify_replaced_source, notify_schema_change, publish
from daemon.sync.other_writer import OtherWriter
from daemon.sync.outcomes import Shown, SyncOutcome, SyncResult, unchanged_outcome
from daemon.sync.patience import OLDER_ICEBERG, check_delta_not_older, forget_seen, is_put_back
from daemon.sync.proof import Checksums
from daemon.sync.rebuild import rebuild
from daemon.sync.recovery import check_ours, check_owner, end_intents, leave_other_table, load_shown, restore_metadata
from daemon.sync.transaction import Transaction
from daemon.translate.definition import find_faults, shape_of
from daemon.translate.existing_table import check_format_version, check_places, lacks_row_ids
from daemon.translate.readers import misreaders
from state import TableRecord

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# Commits that are refused together are tried one by one.
REFUSALS = (Unsupported, SchemaChanged, StateMismatch, CorruptInput, ObjectMissing)


class Follower:
    """Keeps one Iceberg table in step with one Delta table. Used by one thread at a time."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._compare_reason: str | None = None  # why the next sync does not read the log's commits
        self._checksums = Checksums(context.log)
        self._news = News(context, self._checksums)
        self._other_writer = OtherWriter(context)

    def has_news(self) -> bool:
        """See `News.are_there`."""
        return self._news.are_there()

    def find_newest(self, known: int | None) -> int | None:
        """See `DeltaLog.find_newest`."""
        return self._context.log.find_newest(known)

    def compare(self, reason: str) -> None:
        """Let the next sync compare Delta's newest state with Iceberg, instead of reading the commits in between."""
        self._compare_reason = reason
        self._news.doubt()

    def doubt(self) -> None:
        """See `News.doubt`. From any thread."""
        self._news.doubt()

    def sync(
        self, *, stop: Event | None = None, full: bool = False, others_wait: Callable[[], bool] = lambda: False
    ) -> SyncResult:
        """Run one bounded cycle. Raises a `SyncError` that names the table; the versions shown before it stay recorded.

        `full` rewrites the Iceberg table from Delta's whole newest state instead of following the log. While
        `others_wait`, the available versions may share a snapshot.
        """
        context, store, settings = self._context, self._context.store, self._context.settings
        is_in_doubt = self._news.begin_sync()
        with as_sync_errors(settings.name), context.committing:
            record = store.open_table(settings.name, settings.source, settings.target)
            if record.entry != settings.entry:
                store.record_entry(record.id, settings.entry)
            full = full or record.resync_wanted
            if full and isinstance(context.storage, RatifiedStorage):
                context.storage.forget()
            shown: Shown | None = None
            if record.synced_version is None and not context.log.is_there():
                # A resync that is wanted is done with the first sync, which writes the whole table anyway.
                result = SyncResult(SyncOutcome.WAITING, None, None)
            else:
                record, table, put_back = self._load(record, full)
                if table is None:
                    shown, result = self._show_whole("first sync", record)
                    notify_created_again(context, record)
                elif full:
                    shown, result = self._replace(record, table, "a resync was asked for", is_wanted=True)
                else:
                    self._other_writer.give_way(record, table)
                    # That of an earlier commit is missing if the process was killed, or the setting is new.
                    context.target.update_hint(table)
                    try:
                        if settings.foreign_deletes_max and not settings.is_managed and shown_by(table) is None:
                            shown, result = self._hand_over(record, table)
                        else:
                            shown = load_shown(context, record, table, is_in_doubt=is_in_doubt, put_back=put_back)
                            shown, result = self._follow(record, self._upgraded(shown), stop or Event(), others_wait)
                    except (ReplacementNeeded, TargetChanged) as error:
                        shown, result = self._overwrite(record, table, error)
            if record.resync_wanted:
                store.record_resync_wanted(record.id, False)
            if shown and shown.record.wait:
                store.record_wait(record.id, None)
        self._news.end_sync(shown.record if shown else None)
        return result

    def _load(self, record: TableRecord, full: bool) -> tuple[TableRecord, Table | None, bool]:
        """Load the table if it exists, end the intents that a crash left, and check that it is ours. Returns also the
        record after that, and whether somebody put back older metadata.
        """
        context, find = self._context, self._context.target.find_table
        try:
            # Of several replicas of the catalog, one may be behind.
            table = find() or (find() if record.metadata_location else None)
        except CatalogAway:
            # What it answered before may be over.
            forget_seen(context, record, OLDER_ICEBERG)
            raise
        except (TargetUnreadable, ObjectMissing) as error:
            if not full:
                raise
            table = restore_metadata(context, record, error)
        put_back = not full and is_put_back(context, record, table)
        record = end_intents(context, record, table)
        if table is not None:
            check_ours(context, record, table)
            check_owner(context, record, table)
            check_format_version(context.settings, table)
            check_places(table.metadata.location, table.properties, context.location)
        return record, table, put_back

    def _overwrite(
        self, record: TableRecord, table: Table, error: ReplacementNeeded | TargetChanged
    ) -> tuple[Shown, SyncResult]:
        """Replace a table that cannot be followed. If somebody else changed it, only if the settings say so."""
        context, is_foreign = self._context, isinstance(error, TargetChanged)
        if is_foreign and context.settings.on_foreign_commit != "overwrite":
            raise error
        replaced = self._replace(record, table, str(error))
        if is_foreign:
            text = f"the Iceberg table was overwritten with Delta's state: {error.message}"
            context.notify(make_notice(NoticeKind.TARGET_CHANGED, replaced[0].record, text, context.clock))
        return replaced

    def _follow(
        self, record: TableRecord, shown: Shown, stop: Event, others_wait: Callable[[], bool]
    ) -> tuple[Shown, SyncResult]:
        """Show Delta's new versions, by the log if it can be followed, else by comparing states."""
        context, checksums = self._context, self._checksums
        rebuilt = shown.record.snapshot_id != record.snapshot_id
        outcome = SyncOutcome.REBUILT if rebuilt else SyncOutcome.UNCHANGED
        result = SyncResult(outcome, None, shown.record.synced_version)
        reason, self._compare_reason = self._compare_reason, None
        readers = context.settings.readers
        if returned := sorted(each for each in find_faults(shown.table) if misreaders(each, readers)):
            # All files are checked again, or get mirrors.
            reason = f"the table has other readers now, which would misread: {', '.join(returned)}"
        if shown.record.must_compare or reason:
            shown, step = self._compare(shown, reason or "the state store is in doubt")
        else:
            try:
                news = self._news.read(shown, stop, others_wait) if self._news.check_continuity(shown) else ()
                for commits, has_next in news:
                    try:
                        # A stop may have come before the first of them was read.
                        if commits:
                            shown, step = advance(context, checksums, shown, commits)
                            result = result.then(step)
                    except REFUSALS:
                        if len(commits) == 1:
                            raise
                        # One by one, so that those before the faulty commit are shown, and the error names it.
                        for commit in commits:
                            shown, step = advance(context, checksums, shown, [commit])
                            result = result.then(step)
                    result = replace(result, more=has_next)
                return shown, result
            except (StateMismatch, AccountMismatch) as mismatch:
                shown, step = self._compare_rebuilt(shown, mismatch)
            except ResyncNeeded as needed:
                shown, step = self._compare(shown, str(needed), hint=needed.hint)
        version = shown.record.synced_version
        assert version is not None, "what is shown has a version"
        return shown, replace(result.then(step), more=context.log.has_version(version + 1))

    def _hand_over(self, record: TableRecord, table: Table) -> tuple[Shown, SyncResult]:
        """Delete from Delta what others deleted in Iceberg, then show Delta's newest state in one snapshot, which keeps
        their delete files as far as these show the same rows. If Delta could not get the deletes, the rows are back.
        """
        context = self._context
        handled = hand_over(context, record, table)
        record = leave_other_table(context, record, table)
        try:
            shown = self._upgraded(rebuild(context, record, table, handled.marker, handled.vectors))
            shown, result = self._show_state(shown)
        except (ReplacementNeeded, StateMismatch, AccountMismatch) as mismatch:
            shown, result = self._replace(context.find_record() or record, table, str(mismatch))
        context.notify(make_notice(handled.kind, shown.record, handled.told, context.clock))
        version = shown.record.synced_version
        assert version is not None, "what is shown has a version"
        return shown, replace(result, more=context.log.has_version(version + 1))

    def _upgraded(self, shown: Shown) -> Shown:
        """Upgrade the Iceberg table to the format version of the settings. Its delete files stay as they are."""
        context, table = self._context, shown.table
        # Also if somebody else upgraded the table.
        if lacks_row_ids(table, context.settings):
            what = "the table gets Delta's row ids with the new format version"
            raise not_mendable(what, path=table.metadata_location)
        if table.metadata.format_version >= context.settings.format_version:
            return shown
        outcome = unchanged_outcome(shown.record)
        definition = shape_of(table, context.settings).definition
        with Transaction(context, shown, definition, to_version=outcome.to_version) as transaction:
            transaction.begin({})
            shown = transaction.define(outcome)
        _log.info(events.TARGET_UPGRADED, format_version=context.settings.format_version)
        return shown

    def _replace(
        self, record: TableRecord, table: Table, reason: str, *, is_wanted: bool = False
    ) -> tuple[Shown, SyncResult]:
        """Rewrite the whole table from Delta's state, without relying on the table or the state store."""
        before = layout_of(table)
        shown, result = self._show_whole("resync", record, table, is_wanted=is_wanted)
        _log.warning(events.TARGET_OVERWRITTEN, reason=reason)
        notify_replaced_source(self._context, record, shown.record)
        notify_schema_change(self._context, before, shown)
        return shown, result

    def _show_whole(
        self, step: str, record: TableRecord, table: Table | None = None, *, is_wanted: bool = True
    ) -> tuple[Shown, SyncResult]:
        """Show Delta's whole newest state in one snapshot, in a new Iceberg table or in `table`."""
        started_ms = self._context.clock.now_ms()
        with tracing.step(step):
            shown, result = first_sync(self._context, record, table, is_wanted=is_wanted)
        self._news.put_off_listing()
        publish(self._context, shown, result, started_ms)
        return shown, result

    def _compare(self, shown: Shown, reason: str, **about: str) -> tuple[Shown, SyncResult]:
        """Show the difference between Delta's newest state and the state store, which is rebuilt if it is wrong."""
        _log.warning(events.STATES_COMPARED, reason=reason, **about)
        try:
            return self._show_state(shown)
        except (StateMismatch, AccountMismatch) as mismatch:
            return self._compare_rebuilt(shown, mismatch)

    def _compare_rebuilt(self, shown: Shown, mismatch: StateMismatch | AccountMismatch) -> tuple[Shown, SyncResult]:
        """Rebuild the state store from the Iceberg table, then show the difference to Delta's newest state."""
        _log.warning(events.STATES_COMPARED, reason=str(mismatch), hint=mismatch.hint)
        marker = shown_by(shown.table)
        assert marker is not None, "what is shown is ours"
        shown = rebuild(self._context, shown.record, shown.table, marker)
        try:
            return self._show_state(shown)
        except (Unsupported, CorruptInput):
            if mismatch.version is None:
                raise
            # The newest state cannot be shown, but the versions before the faulty one can.
            return self._show_state(shown, mismatch.version)

    def _show_state(self, shown: Shown, version: int | None = None) -> tuple[Shown, SyncResult]:
        """Show Delta's state at `version`, or the newest, as a difference to what Iceberg shows."""
        context, before = self._context, shown.record
        with context.open_state(version) as state:
            check_delta_not_older(context, before, state)
            commits, totals = commits_to_state(context, shown, state)
        shown, result = advance(context, self._checksums, shown, commits, totals)
        self._news.put_off_listing()
        self._checksums.learn(commits[-1].version, totals)
        notify_replaced_source(context, before, shown.record)
        return shown, result
