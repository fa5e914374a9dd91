"""The main path of one table: `Follower.sync` compares the Iceberg table with the state store, then follows Delta.

The Iceberg table decides how far we are; the state store only remembers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Event

import structlog
from msgspec.structs import replace as with_fields
from pyiceberg.table import Table

from daemon import log as events
from daemon import tracing
from daemon.config.settings import NoticeKind
from daemon.config.share import ALL
from daemon.delta.actions import Commit
from daemon.delta.checksum import Totals
from daemon.durable import is_local
from daemon.errors import (
    AccountMismatch,
    CatalogAway,
    CommitIncomplete,
    CorruptInput,
    ObjectMissing,
    ReplacementNeeded,
    ResyncNeeded,
    SchemaChanged,
    StateMismatch,
    SyncError,
    TargetChanged,
    TargetHeld,
    TargetUnreadable,
    Unsupported,
)
from daemon.iceberg.account import Account, find_account
from daemon.iceberg.marker import shown_by
from daemon.iceberg.schema_changes import Layout, describe_changes, layout_of
from daemon.lineage.runs import Run, Written, catalog_place
from daemon.outbox import make_notice
from daemon.sync.advance import advance
from daemon.sync.context import TableContext, as_sync_errors
from daemon.sync.first_sync import first_sync
from daemon.sync.outcomes import Shown, SyncOutcome, SyncResult, remembered_account, unchanged_outcome
from daemon.sync.patience import OLDER_ICEBERG, check_delta_not_older, forget_seen, is_put_back, seconds_seen
from daemon.sync.proof import Checksums, check_state
from daemon.sync.recovery import (
    check_ours,
    check_owner,
    check_source,
    commits_to_state,
    end_intents,
    load_shown,
    rebuild,
)
from daemon.sync.restore import restore_metadata
from daemon.sync.transaction import Transaction
from daemon.translate.definition import shape_of
from daemon.translate.existing_table import check_format_version, check_places, lacks_row_ids
from state import TableRecord

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# A table without news is synced this often, to notice foreign changes of the Iceberg table and removed commits.
CONTINUITY_INTERVAL_S = 600.0
# The newest synced commit file is checked this often, to notice that the log was replaced.
NEWEST_COMMIT_INTERVAL_S = 60.0
# On a local file system its writer may not have finished it: a file that is copied there may end at a line's end. So
# each poll checks a commit file that is younger than this.
UNFINISHED_COMMIT_MAX_S = 60.0


class Follower:
    """Keeps one Iceberg table in step with one Delta table. Used by one thread at a time."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        # When this process began to follow the table.
        self._since_ms = context.clock.now_ms()
        self._synced_version: int | None = None
        self._synced_timestamp_ms: int | None = None
        # A version that `has_news` found, so that the next sync need not check it again.
        self._seen_version: int | None = None
        self._in_doubt, self._doubted = True, False
        self._continuity_due_s = self._newest_commit_due_s = 0.0
        # The other dvsync's table is up to date to this version: the commits after its marker change nothing.
        self._others_version = -1
        # The table id in the other dvsync's marker, after a check that it is our source.
        self._others_table_id: str | None = None
        # Why the next sync does not read the log's commits.
        self._compare_reason: str | None = None
        self._checksums = Checksums(context.log)

    def has_news(self) -> bool:
        """Return whether a sync has something to do. One or two requests; no Spark, and no listing of an intact log.

        Raises ObjectMissing if the log of a synced table is gone.
        """
        log, now_s = self._context.log, self._context.clock.monotonic_s()
        if self._in_doubt:
            return True
        if self._synced_version is None:
            return log.is_there()
        if now_s >= self._continuity_due_s:
            return True
        if log.has_next(self._synced_version + 1):
            self._seen_version = self._synced_version + 1
            return True
        if now_s >= self._newest_commit_due_s:
            # The log may be damaged: a later commit exists although the next one is missing. Found without a listing.
            if not log.is_untouched(self._synced_version) or log.has_version(self._synced_version + 2):
                with suppress(ResyncNeeded):
                    log.check_continuity(self._synced_version)
                return True
            self._newest_commit_due_s = now_s + self._until_next_check_s()
        return False

    def _until_next_check_s(self) -> float:
        clock, synced_ms = self._context.clock, self._synced_timestamp_ms
        is_young = synced_ms is not None and clock.now_ms() - synced_ms < UNFINISHED_COMMIT_MAX_S * 1000
        return 0.0 if is_young and is_local(self._context.location) else NEWEST_COMMIT_INTERVAL_S

    def find_newest(self, known: int | None) -> int | None:
        """Find Delta's newest version, beginning at version `known`. One request if there is no newer one.

        Raises ObjectStoreAway.
        """
        return self._context.log.find_newest(known)

    def compare(self, reason: str) -> None:
        """Let the next sync compare Delta's newest state with Iceberg, instead of reading the commits in between."""
        self._in_doubt, self._compare_reason = True, reason

    def doubt(self) -> None:
        """Let `has_news` return True until a sync has begun after this and ended. From any thread."""
        self._in_doubt = self._doubted = True
        self._continuity_due_s = 0.0

    def sync(
        self, *, stop: Event | None = None, full: bool = False, others_wait: Callable[[], bool] = lambda: False
    ) -> SyncResult:
        """Run one bounded cycle. Raises a `SyncError` that names the table; the versions shown before it stay recorded.

        `full` writes the Iceberg table anew from Delta's whole newest state instead of following the log. While
        `others_wait`, the available versions may share a snapshot.
        """
        is_in_doubt, self._in_doubt, self._doubted = self._in_doubt, True, False
        with as_sync_errors(self._context.settings.name), self._context.committing:
            shown, result = self._sync(stop or Event(), full, others_wait, is_in_doubt=is_in_doubt)
            if shown and shown.record.resync_wanted:
                self._context.store.record_resync_wanted(shown.record.id, False)
            if shown and shown.record.wait:
                self._context.store.record_wait(shown.record.id, None)
        # Somebody may have had doubts while this ran.
        self._in_doubt = self._doubted
        self._synced_version = shown.record.synced_version if shown else None
        now_s = self._context.clock.monotonic_s()
        self._synced_timestamp_ms = shown.record.source_timestamp_ms if shown else None
        self._newest_commit_due_s = now_s + self._until_next_check_s()
        return result

    def _sync(
        self, stop: Event, full: bool, others_wait: Callable[[], bool], *, is_in_doubt: bool
    ) -> tuple[Shown | None, SyncResult]:
        context = self._context
        settings = context.settings
        record = context.store.open_table(settings.name, settings.source, settings.target)
        full = full or record.resync_wanted
        if record.synced_version is None and not context.log.is_there():
            if record.resync_wanted:
                # The first sync writes the whole table anyway.
                context.store.record_resync_wanted(record.id, False)
            return None, SyncResult(SyncOutcome.WAITING, None, None)
        table = self._find_table(record, full)
        put_back = not full and is_put_back(context, record, table)
        record = end_intents(context, record, table)
        if table is None:
            made = self._show_whole("first sync", record)
            self._tell_if_gone(record)
            return made
        check_ours(context, record, table)
        check_owner(context, record, table)
        check_format_version(settings, table)
        check_places(table.metadata.location, table.properties, context.location)
        if full:
            return self._replace(record, table, "a resync was asked for", is_wanted=True)
        self._give_way(record, table)
        # The hint of an earlier commit is missing if the process was killed, the store failed or the setting is new.
        context.target.update_hint(table)
        try:
            shown = self._upgraded(load_shown(context, record, table, is_in_doubt=is_in_doubt, put_back=put_back))
            return self._follow(record, shown, stop, others_wait)
        except ReplacementNeeded as needed:
            return self._replace(record, table, str(needed))
        except TargetChanged as error:
            if settings.on_foreign_commit != "overwrite":
                raise
            replaced = self._replace(record, table, str(error))
            text = f"the Iceberg table was overwritten with Delta's state: {error.message}"
            context.announce(make_notice(NoticeKind.TARGET_CHANGED, replaced[0].record, text, context.clock))
            return replaced

    def _follow(
        self, record: TableRecord, shown: Shown, stop: Event, others_wait: Callable[[], bool]
    ) -> tuple[Shown, SyncResult]:
        """Show Delta's new versions, by the log if it can be followed, else by comparing states."""
        rebuilt = shown.record.snapshot_id != record.snapshot_id
        outcome = SyncOutcome.REBUILT if rebuilt else SyncOutcome.UNCHANGED
        result = SyncResult(outcome, None, shown.record.synced_version)
        reason, self._compare_reason = self._compare_reason, None
        if shown.record.must_compare or reason:
            shown, step = self._compare(shown, reason or "the state store is in doubt")
            result = result.then(step)
        else:
            try:
                news = self._read_news(shown, stop, others_wait) if self._check_continuity(shown) else ()
                for commits, has_next in news:
                    for current, step in self._steps(shown, commits):
                        shown, result = current, result.then(step)
                    result = result.with_more(has_next)
                return shown, result
            except (StateMismatch, AccountMismatch) as mismatch:
                shown, step = self._compare_rebuilt(shown, mismatch)
                result = result.then(step)
            except ResyncNeeded as needed:
                shown, step = self._compare(shown, str(needed))
                result = result.then(step)
        assert shown.record.synced_version is not None, "what is shown has a version"
        return shown, result.with_more(self._context.log.has_version(shown.record.synced_version + 1))

    def _upgraded(self, shown: Shown) -> Shown:
        """Upgrade the Iceberg table to the format version of the settings. Its delete files stay as they are."""
        context, table = self._context, shown.table
        # Also if somebody else upgraded the table.
        if lacks_row_ids(table, context.settings):
            raise ReplacementNeeded(
                "the table gets Delta's row ids with the new format version",
                path=table.metadata_location,
                hint="dvsync rewrites the Iceberg table from Delta.",
            )
        if table.metadata.format_version >= context.settings.format_version:
            return shown
        outcome = unchanged_outcome(shown.record)
        definition = shape_of(table, context.settings).definition
        with Transaction(context, shown.record, table, definition, to_version=outcome.to_version) as transaction:
            transaction.begin({})
            shown = transaction.define(definition, outcome)
        _log.info(events.TARGET_UPGRADED, format_version=context.settings.format_version)
        return shown

    def _find_table(self, record: TableRecord, full: bool) -> Table | None:
        find = self._context.target.find_table
        try:
            # Of several replicas of the catalog, one may be behind.
            return find() or (find() if record.metadata_location else None)
        except CatalogAway:
            # What it answered before may be over.
            forget_seen(self._context, record, OLDER_ICEBERG)
            raise
        except (TargetUnreadable, ObjectMissing) as error:
            if not full:
                raise
            return restore_metadata(self._context, record, error)

    def _replace(
        self, record: TableRecord, table: Table, reason: str, *, is_wanted: bool = False
    ) -> tuple[Shown, SyncResult]:
        """Write the whole table anew from Delta's state, without relying on the table or the state store."""
        before = layout_of(table)
        shown, result = self._show_whole("resync", record, table, is_wanted=is_wanted)
        _log.warning(events.TARGET_OVERWRITTEN, reason=reason)
        self._tell_if_replaced(record, shown.record)
        self._tell_changes(before, shown)
        return shown, result

    def _show_whole(
        self, step: str, record: TableRecord, table: Table | None = None, *, is_wanted: bool = True
    ) -> tuple[Shown, SyncResult]:
        """Show Delta's whole newest state in one snapshot, in a new Iceberg table or in `table`."""
        started_ms = self._context.clock.now_ms()
        with tracing.step(step):
            shown, result = first_sync(self._context, record, table, is_wanted=is_wanted)
        self._put_off_listing()
        self._publish(shown, result, started_ms)
        return shown, result

    def _publish(self, shown: Shown, result: SyncResult, started_ms: int) -> None:
        """Tell the lineage of what is shown now."""
        context, record, snapshot, written = self._context, shown.record, shown.table.current_snapshot(), None
        if result.snapshots and snapshot and snapshot.summary:
            rows, size_bytes, files = (
                int(snapshot.summary.get(key, 0) or 0)
                for key in ("added-records", "added-files-size", "added-data-files")
            )
            written = Written(rows, size_bytes, files)
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

    def _tell_if_gone(self, record: TableRecord) -> None:
        """Log and announce that the catalog had lost the Iceberg table of `record`, which was made anew."""
        if record.metadata_location is None:
            return
        target, before, here = record.target, record.catalog, self._context.settings.catalog
        if before in (None, here):
            reason = f"the catalog had no table {target} any more, so dvsync created it again"
        else:
            reason = (
                f"{target} moved from the catalog {before} to {here}, where dvsync created it; the table in {before} "
                f"stays at version {record.synced_version}: drop it when nobody reads it any more"
            )
        reason += f"; the former table's metadata file was {record.metadata_location}"
        _log.warning(events.TARGET_OVERWRITTEN, reason=reason)
        self._context.announce(make_notice(NoticeKind.TARGET_CHANGED, record, reason, self._context.clock))

    def _tell_if_replaced(self, before: TableRecord, record: TableRecord) -> None:
        """Log and announce that another Delta table is at the source than the one of `before`."""
        if before.delta_table_id in (None, record.delta_table_id):
            return
        text = (
            f"the Delta table was replaced by another one at version {record.synced_version} (id "
            f"{record.delta_table_id} instead of {before.delta_table_id}); the former one was at version "
            f"{before.synced_version}"
        )
        _log.warning(events.SOURCE_REPLACED, reason=text)
        self._context.announce(make_notice(NoticeKind.SOURCE_REPLACED, record, text, self._context.clock))

    def _tell_changes(self, before: Layout, shown: Shown) -> None:
        """Log and announce the columns that differ from those of `before`, which readers may have relied on."""
        changes, record, clock = describe_changes(before, layout_of(shown.table)), shown.record, self._context.clock
        if changes:
            _log.warning(events.SCHEMA_CHANGED, version=record.synced_version, changes=changes)
            text = f"has another schema since version {record.synced_version}: {'; '.join(changes)}"
            self._context.announce(make_notice(NoticeKind.SCHEMA_CHANGED, record, text, clock))

    def _give_way(self, record: TableRecord, table: Table) -> None:
        """Raise `TargetChanged` if the table shows another source, `TargetHeld` while another dvsync keeps it in step.

        If Delta has new versions for a whole lease and the other dvsync shows none, it is presumed dead. If it comes
        back, its commit fails, because the commit needs the snapshot that it knew. Then it gives way itself.

        A dvsync that served another share, and last committed before we began, has left the table to us. Of two that
        still run, the one that began later takes over, and the other one gives way.
        """
        writer, marker, current = self._context.writer, shown_by(table), table.metadata.current_snapshot_id
        if marker is None or current == record.snapshot_id:
            return
        if any(intent.id == current for intent, _ in self._context.store.find_open_intents(record.id)):
            return
        if marker.delta_table_id not in (record.delta_table_id, self._others_table_id):
            check_source(self._context, table, marker)
            self._others_table_id = marker.delta_table_id
        if writer is None or marker.writer in (None, writer.name):
            return
        # An older dvsync names no share: it followed all tables.
        if (marker.share or str(ALL)) != str(writer.share) and table.metadata.last_updated_ms < self._since_ms:
            _log.info(events.TARGET_MOVED, holder=marker.writer, share=marker.share)
            return
        silence, silent_s = f"silent after {table.metadata_location}", 0.0
        if self._is_behind(marker.version):
            silent_s = seconds_seen(self._context, record, silence)
        else:
            forget_seen(self._context, record, silence)
        if silent_s >= writer.lease_s:
            _log.warning(events.TARGET_TAKEN_OVER, holder=marker.writer, silent_s=round(silent_s))
            return
        raise TargetHeld(
            f"the dvsync with the state {marker.writer} keeps the Iceberg table in step (at version {marker.version})",
            hint=f"If that dvsync runs, stop one of the two. This process takes over {writer.lease_s:g} s after a new "
            "Delta version that the other does not sync. If it no longer exists, perhaps because state.url changed, "
            f"`dvsync resync {self._context.settings.name}` takes over at once.",
        )

    def _is_behind(self, version: int) -> bool:
        """Return whether a commit after `version` changes the Iceberg table. Other commits are never shown there."""
        log = self._context.log
        version = max(version, self._others_version)
        while log.has_version(version + 1):
            with suppress(CommitIncomplete, CorruptInput, Unsupported):
                commit = log.read_commit(version + 1, bytes_max=self._context.limits.commit_bytes_max)
                if not (any(commit.file_actions) or commit.metadata or commit.protocol):
                    version = self._others_version = version + 1
                    continue
            return True
        return False

    def _read_news(
        self, shown: Shown, stop: Event, others_wait: Callable[[], bool]
    ) -> Iterator[tuple[list[Commit], bool]]:
        """Yield groups of Delta's new commits, each with whether another commit follows. At least one commit exists.

        Each group becomes one snapshot. Each version is asked for once. While `others_wait`, only one group is read:
        the table's turn comes again. A version that gets a tag ends its group.

        Example: version 4 is shown, and the log ends at 7. Normally the groups are [5], [6] and [7]. If the table is
        far behind, or `others_wait`, there is one group: [5, 6, 7]. If then 7 cannot be read, the group is [5, 6], and
        the next read of 7 raises its error.
        """
        limits, log = self._context.limits, self._context.log
        version = shown.record.synced_version
        assert version is not None, "what is shown has a version"
        last = version + limits.commits_max
        far_behind: bool | None = None
        has_next = True
        while has_next and version < last and not stop.is_set():
            group: list[Commit] = []
            size_bytes = 0
            busy = limits.fold_when_busy and others_wait()
            # A group's actions stay in memory until they are shown, so its size is limited.
            while has_next and version < last and size_bytes <= limits.commit_bytes_max and not stop.is_set():
                try:
                    with self._context.step("read"):
                        commit = log.read_commit(version + 1, bytes_max=limits.commit_bytes_max)
                except SyncError:
                    if not group:
                        raise
                    break  # Show the commits before it first; then it is read again, and its error is raised.
                version += 1
                if commit.metadata and commit.metadata.id != shown.record.delta_table_id:
                    raise ResyncNeeded(
                        f"version {version} replaces the Delta table by another one (id {commit.metadata.id})",
                        version=version,
                        hint="dvsync shows the whole new table in one snapshot.",
                    )
                group.append(commit)
                size_bytes += commit.size_bytes
                has_next = self._has_next(version, ends_group=not (far_behind or busy))
                if far_behind is None:
                    far_behind = has_next and log.has_version(version + limits.fold_after_versions)
                if not (far_behind or busy) or self._context.settings.is_tagged(version):
                    break
            yield group, has_next
            if others_wait():
                return

    def _has_next(self, version: int, *, ends_group: bool) -> bool:
        """Return whether a commit follows `version`.

        On an object store, the checksum file of a version that ends a group is read at the same time.
        """
        log = self._context.log
        if not ends_group or is_local(self._context.location):
            return log.has_next(version + 1)
        with ThreadPoolExecutor(1, thread_name_prefix="request") as pool:
            fetched = pool.submit(self._checksums.fetch, version)
            has_next = log.has_next(version + 1)
            fetched.result()
        return has_next

    def _check_continuity(self, shown: Shown) -> bool:
        """Return whether there is a next version. Raises `ResyncNeeded` if the log was replaced.

        Lists the log if there is none, and every CONTINUITY_INTERVAL_S also if there is always one.
        """
        log, store, record = self._context.log, self._context.store, shown.record
        version, timestamp_ms = record.synced_version, record.source_timestamp_ms
        assert version is not None and timestamp_ms is not None, "what is shown has a version and its time"
        has_next = self._seen_version == version + 1 or log.has_next(version + 1)
        self._seen_version = None
        if has_next and self._context.clock.monotonic_s() < self._continuity_due_s:
            log.check_commit(version, timestamp_ms, has_next=has_next)
            return has_next
        recent = store.find_recent_commits(record.id)
        learned = log.check_continuity(version, recent)
        log.check_commit(version, timestamp_ms, recent, has_next=has_next)
        if learned:
            remembering = with_fields(unchanged_outcome(record), recent_commits=learned)
            store.record_synced(None, remembering, at_ms=self._context.clock.now_ms())
        self._put_off_listing()
        return has_next

    def _put_off_listing(self) -> None:
        """The log was listed, and what it listed is remembered or shown."""
        self._continuity_due_s = self._context.clock.monotonic_s() + CONTINUITY_INTERVAL_S

    def _compare(self, shown: Shown, reason: str) -> tuple[Shown, SyncResult]:
        """Show the difference between Delta's newest state and the state store, which is rebuilt if it is wrong."""
        _log.warning(events.STATES_COMPARED, reason=reason)
        try:
            return self._show_state(shown)
        except (StateMismatch, AccountMismatch) as mismatch:
            return self._compare_rebuilt(shown, mismatch)

    def _compare_rebuilt(self, shown: Shown, mismatch: StateMismatch | AccountMismatch) -> tuple[Shown, SyncResult]:
        """Rebuild the state store from the Iceberg table, then show the difference to Delta's newest state."""
        _log.warning(events.STATES_COMPARED, reason=str(mismatch))
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
        shown, result = self._advance(shown, commits, totals)
        self._put_off_listing()
        self._checksums.learn(commits[-1].version, totals)
        self._tell_if_replaced(before, shown.record)
        return shown, result

    def _steps(self, shown: Shown, commits: list[Commit]) -> Iterator[tuple[Shown, SyncResult]]:
        """Advance by all commits in one step. If they are refused together, advance by one commit at a time.

        Then the commits before the faulty commit are shown, and the error names the faulty commit.
        """
        if len(commits) > 1:
            with suppress(Unsupported, SchemaChanged, StateMismatch, CorruptInput, ObjectMissing):
                yield self._advance(shown, commits)
                return
        for commit in commits:
            shown, step = self._show(shown, commit)
            yield shown, step

    def _show(self, shown: Shown, commit: Commit) -> tuple[Shown, SyncResult]:
        """Advance by one commit. Raises `ResyncNeeded` if a file of it is gone and Delta has newer versions."""
        try:
            return self._advance(shown, [commit])
        except ObjectMissing as missing:
            if not self._context.log.has_version(commit.version + 1):
                raise
            raise ResyncNeeded(
                f"version {commit.version} can no longer be read ({missing.message}), and newer versions exist",
                version=commit.version,
                path=missing.path,
                hint="VACUUM removed files before dvsync read them. dvsync compares both states and commits the "
                "difference.",
            ) from missing

    def _advance(self, shown: Shown, commits: list[Commit], totals: Totals | None = None) -> tuple[Shown, SyncResult]:
        """Show commits of the log, or commits made by a comparison with a Delta state of these `totals`."""
        context, version = self._context, commits[-1].version
        check: Callable[[Account], None]
        if totals is None:
            before = find_account(shown.table.current_snapshot()) or remembered_account(context, shown.record)
            check = partial(self._checksums.check, version)
        else:
            before = remembered_account(context, shown.record)
            check = partial(check_state, totals)
        layout, started_ms = layout_of(shown.table), context.clock.now_ms()
        try:
            with tracing.step("snapshot") as span:
                shown, result = advance(context, shown, commits, before, check)
                span.report(result.figures())
        except SyncError as error:
            # If the error names no file, the refused contents are in the commit file itself.
            path = self._context.log.commit_path(version) if isinstance(error, Unsupported | CorruptInput) else None
            raise error.located(version=version, path=path) from error.__cause__
        self._publish(shown, result, started_ms)
        if any(commit.metadata for commit in commits):
            self._tell_changes(layout, shown)
        return shown, result
