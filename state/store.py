"""The verbs of the state store, by user. Each verb is one transaction, except `record_rebuilt`.

One object offers all of them. SQLite, PostgreSQL and the tests' store in memory behave the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from state.records import (
    CommitIdentity,
    DeleteFileRecord,
    FileKind,
    FileStatus,
    Intent,
    Lease,
    LiveFile,
    OrphanReason,
    Outcome,
    Pause,
    ProofRecord,
    SyncRun,
    TableError,
    TableRecord,
    Wait,
    WrittenFile,
)
from state.reports import Deletions, TableCounts


class StateUnavailable(Exception):
    """The database cannot be read or written now. The verb that raised it changed nothing, except `record_rebuilt`."""


class LeaseLost(StateUnavailable):
    """Another process holds the lease that this store had taken."""


class DatabaseReplaced(LeaseLost):
    """The database's file was removed or replaced: another one has the lease, and this store can never have it."""


class LeaseStore(Protocol):
    """Who may work on the state: for the process as a whole, and before each commit."""

    def claim_share(self, number: int) -> int:
        """Return the number of the share whose tables this database remembers: the first that was ever claimed."""

    def check_writable(self) -> None:
        """Raise StateUnavailable if the database cannot be written. Changes nothing."""

    def read_lease(self) -> Lease: ...

    def take_lease(self, seen: Lease, holder: str, *, has_lock: bool, address: str | None = None) -> bool:
        """Take the lease if it is still as it was `seen`; False if it is not.

        Once another process takes the lease, every writing verb of this object raises LeaseLost and writes nothing. An
        object that never took the lease, such as that of a command, is not restricted.
        """

    def renew_lease(self, *, has_lock: bool) -> None:
        """Show that the holder is alive. Raises LeaseLost, also if the database's contents are older than before."""

    def check_lease(self) -> None:
        """Raise LeaseLost when another process has taken the lease that this object took."""

    def give_back_lease(self) -> None:
        """Free the lease, so that another process can take it at once. Raises LeaseLost."""


class TableStore(Protocol):
    """The tables: their cursors, errors and runs, and people's requests. For the scheduling and the commands."""

    def open_table(self, name: str, source: str, target: str) -> TableRecord:
        """The table's row, created if it is new. If the source or target of a known name changed, it starts empty."""

    def find_table(self, name: str, source: str, target: str) -> TableRecord | None:
        """The table's row; None if no row has this name, or if the source or target is another."""

    def list_tables(self) -> list[TableRecord]: ...

    def rename_table(self, table_id: int, name: str) -> None:
        """Give the table another name, which no other table has. Nothing else changes."""

    def forget_table(self, table_id: int) -> None:
        """Remove the table and all its rows from the store. No file is touched."""

    def record_pause(self, table_id: int, pause: Pause | None) -> None:
        """Pause the table, or end its pause."""

    def end_pause(self, table_id: int, *, at_ms: int) -> None:
        """End the table's pause if its time is over at `at_ms`."""

    def record_resync_wanted(self, table_id: int, wanted: bool) -> None:
        """Record that the next sync must rewrite the table, or that it has done so."""

    def record_failure(self, table_id: int, error: TableError | None) -> None:
        """Replace the table's error. None also ends its parking: the next poll tries again."""

    def record_wait(self, table_id: int, wait: Wait | None) -> None: ...

    def record_proof(self, table_id: int, proof: ProofRecord | None) -> None: ...

    def record_run(self, run: SyncRun) -> None: ...

    def list_runs(self, table_id: int, *, runs_max: int) -> list[SyncRun]:
        """List the newest runs, the newest first."""

    def count(self, table_id: int) -> TableCounts: ...

    def find_deletions(self, table_id: int, *, rows_max: int) -> Deletions:
        """Sum up what is deleted, with at most `rows_max` files, partitions and delete files: the worst ones."""


class FileLedger(Protocol):
    """The files of a table, and the intents to commit them. For the syncs and the maintenance."""

    def find_live_files(self, table_id: int, paths: Collection[str]) -> dict[str, LiveFile]:
        """Find the live files among `paths`, by path. The cost grows with `paths`, not with the table."""

    def read_live_files(self, table_id: int) -> Iterable[LiveFile]:
        """Read every live file, sorted by path, in batches from the database. For resynchronising."""

    def find_delete_files(
        self, table_id: int, data_files: Collection[str], *, dead: bool = False
    ) -> list[DeleteFileRecord]:
        """Find each live delete file with positions of any of `data_files`, with all its mappings.

        With `dead`, each with a dead blob of any of `data_files`, which need not be live.
        """

    def find_served(self, table_id: int, delete_files: Collection[str]) -> dict[str, set[str]]:
        """Find, for each of these delete files, the *live* data files whose positions it holds."""

    def find_recent_commits(self, table_id: int) -> tuple[CommitIdentity, ...]:
        """Find the last commits of the Delta table as they were when they were shown, at most RECENT_COMMITS_MAX."""

    def record_intent(self, intent: Intent, pending: Mapping[FileKind, Sequence[str]]) -> None:
        """Open the intent, and record its first files as `record_pending` does. A known intent does not change."""

    def record_pending(self, intent_id: int, paths: Mapping[FileKind, Sequence[str]]) -> None:
        """Write a row with status pending for each file, before the file is written.

        A known path is no error: a live file stays live, and a file that an earlier intent left behind belongs to this
        intent from now on.
        """

    def record_prepared(self, intent_id: int, outcome: Outcome) -> None:
        """Store what `record_synced` will apply, before the Iceberg commit is tried."""

    def find_open_intents(self, table_id: int) -> list[tuple[Intent, Outcome | None]]:
        """Intents neither synced nor abandoned, oldest first, with what was prepared for them."""

    def record_synced(self, intent_id: int | None, outcome: Outcome, *, at_ms: int) -> None:
        """Apply `outcome`: cursor, live files, delete files, mappings; the intent ends.

        Pending files of the intent become live, `unwritten_files` are forgotten, removed delete files become orphaned.
        The table's error is cleared if a version was synced or rows were changed. The second time nothing changes.
        """

    def record_rebuilt(
        self,
        outcome: Outcome,
        live_files: Iterable[LiveFile],
        delete_files: Iterable[DeleteFileRecord],
        *,
        at_ms: int,
        synced_at_ms: int | None = None,
    ) -> None:
        """Replace all that is remembered as live for the table by what was read from Iceberg and Delta.

        `synced_at_ms` is when Iceberg began to show it, if that was before `at_ms`.

        For example, delete files {d0, d1} are live, d2 and d3 are pending, and `delete_files` has {d1, d2}. Afterwards
        {d1, d2} are live. d0 is an orphan for DATA_FILES_GONE, unless the outcome gives the reason; d3 is an orphan for
        COMMIT_FAILED. Live manifests, lists and metadata files stay live. If the intent with the outcome's snapshot id
        has pending files, they become live, because its commit landed. All open intents end as synced.

        Only the cursor, `removed_delete_files` and `unwritten_files` of `outcome` are used. The iterables must not read
        this table's live files from the store, because they are forgotten first.

        Uses many transactions, so that other tables can be written meanwhile. Until the last one, and after a crash in
        between, the table has the outcome's version but no snapshot, and must be rebuilt.
        """

    def record_abandoned(
        self,
        intent_id: int,
        reason: OrphanReason,
        *,
        at_ms: int,
        in_use: Collection[str] = (),
        unwritten: Collection[str] = (),
    ) -> None:
        """End an intent that did not land. Its pending files become orphaned.

        Exceptions are files `in_use`, which become live, and files `unwritten`, which are forgotten.
        """

    def record_orphans(
        self, table_id: int, kind: FileKind, paths: Sequence[str], reason: OrphanReason, *, at_ms: int
    ) -> None:
        """Record files that a scan found and that are not live. Known paths stay as they are."""

    def record_unreferenced(self, table_id: int, paths: Collection[str], reason: OrphanReason, *, at_ms: int) -> None:
        """Record that no snapshot refers to these files any more. Those not in use now are orphaned from `at_ms` on.

        A delete file is taken if it is orphaned now, a manifest, a list or a metadata file if it is live or orphaned
        now. All others stay as they are, since a sync may have made them live in the meantime: live delete
        files with what they serve, manifests that live files are in, and whatever is pending or deleted.
        """

    def record_still_used(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        """Restart the grace period of orphans that are still in use, although they should not be.

        Their reason stays. Files that are not orphaned now are left alone, and orphans that older snapshots show: their
        grace period has not begun.
        """

    def record_table_replaced(self, table_id: int, *, at_ms: int) -> None:
        """The Iceberg table is recreated: set aside what was written for its predecessor.

        Every file that is pending, live or used by older snapshots is an orphan of the replaced table from `at_ms` on;
        orphans of failed commits do not change. The live data files, their mappings and the snapshot are forgotten: if
        the earlier table comes back, it must be rebuilt. Open intents and the version stay. If this fails half-way, the
        metadata location stays too, and the verb can be repeated.
        """

    def record_sizes(self, table_id: int, sizes_bytes: Mapping[str, int]) -> None:
        """Store the sizes of files that dvsync wrote, by path; unknown paths are ignored."""

    def record_deleted(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        """Mark orphans that no longer exist as deleted."""

    def forget_before(self, table_id: int, before_ms: int, *, orphans: bool = False) -> None:
        """Forget deleted files, ended intents and runs from before `before_ms`.

        With `orphans`, also forget files that became orphans before then, except those of a replaced table.
        """

    def list_written(self, table_id: int, statuses: Collection[FileStatus]) -> list[WrittenFile]:
        """List the files that dvsync wrote with one of `statuses`, the oldest first."""

    def list_for_cleanup(self, table_id: int, *, due_ms: int, now_ms: int) -> tuple[list[WrittenFile], int]:
        """List what a cleanup judges: live files, and orphans. Also counts the orphans that it need not judge yet.

        Those, perhaps very many, became orphans after `due_ms` and not after `now_ms`, because their snapshot was
        expired: nothing but their grace period is left.
        """

    def has_orphans(self, table_id: int, *, before_ms: int, reasons: Collection[OrphanReason]) -> bool:
        """Return whether any file became an orphan, for one of `reasons`, at `before_ms` or earlier."""

    def find_crowded(self, table_id: int, *, delete_files_max: int, deleted_share: float) -> list[str]:
        """Find live data files with more than `delete_files_max` delete files, sorted.

        Also those with more than one delete file of which at least `deleted_share` of the rows are deleted.
        """

    def find_mostly_dead(self, table_id: int, *, dead_share: float) -> list[str]:
        """Find live delete files with dead blobs, which are more than `dead_share` of their positions, sorted."""


class StateStore(LeaseStore, TableStore, FileLedger, Protocol):
    """The whole store. Safe to use from many threads.

    Every verb but `open_table` and `find_table` takes ids that the store gave or was given: for a table that it does
    not know it raises LookupError, and so do `record_pending` and `record_prepared` for an intent.
    """

    def close(self) -> None: ...
