"""Delta's new commits: whether there are some, whether the log is still the one that was followed, and reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import uniform
from threading import Event

from msgspec.structs import replace as with_fields

from daemon.delta.actions import Commit
from daemon.errors import ResyncNeeded, SyncError
from daemon.store.durable import is_local
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown, unchanged_outcome
from daemon.sync.proof import Checksums
from state import TableRecord

# A table without news is synced this often, to notice foreign changes of the Iceberg table and removed commits.
CONTINUITY_INTERVAL_S = 600.0
# The newest synced commit file is checked this often, to notice that the log was replaced.
NEWEST_COMMIT_INTERVAL_S = 60.0
# Each poll checks a local commit file that is younger than this: while it is copied, it may end at a line's end.
UNFINISHED_COMMIT_MAX_S = 60.0
# The most Delta commits that one sync reads.
COMMITS_MAX = 100
# A table that is more versions behind than this catches up with several versions per snapshot.
FOLD_AFTER_VERSIONS = 200


class News:
    """What has happened in the Delta log since the last sync. Used by one thread at a time, except `doubt`."""

    def __init__(self, context: TableContext, checksums: Checksums) -> None:
        self._context = context
        self._checksums = checksums
        self._synced: TableRecord | None = None
        self._seen_version: int | None = None  # that `are_there` found: the next sync need not check it again
        self._in_doubt, self._doubted = True, False
        self._continuity_due_s = self._newest_commit_due_s = 0.0

    def are_there(self) -> bool:
        """Return whether a sync has something to do. One or two requests; no Spark, and no listing of an intact log."""
        log, now_s = self._context.log, self._context.clock.monotonic_s()
        if self._in_doubt:
            return True
        version = self._synced.synced_version if self._synced else None
        if version is None:
            return log.is_there()
        if now_s >= self._continuity_due_s:
            return True
        if log.has_next(version + 1):
            self._seen_version = version + 1
            return True
        if now_s >= self._newest_commit_due_s:
            # The log may be damaged: a later commit exists although the next one is missing. Found without a listing.
            if not log.is_untouched(version) or log.has_version(version + 2):
                with suppress(ResyncNeeded):
                    log.check_continuity(version)
                return True
            self._newest_commit_due_s = now_s + self._until_next_check_s()
        return False

    def _until_next_check_s(self) -> float:
        clock, synced_ms = self._context.clock, self._synced.source_timestamp_ms if self._synced else None
        is_young = synced_ms is not None and clock.now_ms() - synced_ms < UNFINISHED_COMMIT_MAX_S * 1000
        return 0.0 if is_young and is_local(self._context.location) else NEWEST_COMMIT_INTERVAL_S

    def doubt(self) -> None:
        """Let `are_there` return True until a sync has begun after this and ended. From any thread."""
        self._in_doubt = self._doubted = True
        self._continuity_due_s = 0.0

    def begin_sync(self) -> bool:
        """A sync begins. Returns whether there were doubts since the last one, or this is the first one."""
        is_in_doubt, self._in_doubt, self._doubted = self._in_doubt, True, False
        return is_in_doubt

    def end_sync(self, record: TableRecord | None) -> None:
        """The sync ended without an error; `record` is what is shown now."""
        # Somebody may have had doubts while it ran.
        self._in_doubt = self._doubted
        self._synced = record
        self._newest_commit_due_s = self._context.clock.monotonic_s() + self._until_next_check_s()

    def check_continuity(self, shown: Shown) -> bool:
        """Return whether there is a next version. Raises `ResyncNeeded` if the log was replaced: it is listed if there
        is none, and every CONTINUITY_INTERVAL_S also if there is always one.
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
        self.put_off_listing()
        return has_next

    def put_off_listing(self) -> None:
        """The log was listed, and what it listed is remembered or shown."""
        # Thousands of tables that began together must not be synced together for ever.
        interval_s = uniform(0.8, 1.0) * CONTINUITY_INTERVAL_S
        self._continuity_due_s = self._context.clock.monotonic_s() + interval_s

    def read(self, shown: Shown, stop: Event, others_wait: Callable[[], bool]) -> Iterator[tuple[list[Commit], bool]]:
        """Yield groups of Delta's new commits, each with whether another commit follows. At least one commit exists.

        Each group becomes one snapshot. While `others_wait`, only one group is read: the table's turn comes again. A
        version that gets a tag ends its group.

        Example: version 4 is shown, and the log ends at 7. Normally the groups are [5], [6] and [7]. If the table is
        far behind, or `others_wait`, there is one group: [5, 6, 7]. If then 7 cannot be read, the group is [5, 6], and
        the next read of 7 raises its error.
        """
        limits, log = self._context.limits, self._context.log
        version = shown.record.synced_version
        assert version is not None, "what is shown has a version"
        last = version + COMMITS_MAX
        may_share = not limits.one_snapshot_per_version
        far_behind: bool | None = None
        has_next = True
        while has_next and version < last and not stop.is_set():
            group: list[Commit] = []
            size_bytes = 0
            busy = may_share and others_wait()
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
                        hint="dvsync commits the whole new table in one snapshot.",
                    )
                group.append(commit)
                size_bytes += commit.size_bytes
                has_next = self._has_next(version, ends_group=not (far_behind or busy))
                if far_behind is None:
                    far_behind = may_share and has_next and log.has_version(version + FOLD_AFTER_VERSIONS)
                if not (far_behind or busy) or self._context.settings.is_tagged(version):
                    break
            yield group, has_next
            if others_wait():
                return

    def _has_next(self, version: int, *, ends_group: bool) -> bool:
        """Return whether a commit follows. On an object store, a group's last checksum file is read with it."""
        log = self._context.log
        if not ends_group or is_local(self._context.location):
            return log.has_next(version + 1)
        with ThreadPoolExecutor(1, thread_name_prefix="request") as pool:
            fetched = pool.submit(self._checksums.fetch, version)
            has_next = log.has_next(version + 1)
            fetched.result()
        return has_next
