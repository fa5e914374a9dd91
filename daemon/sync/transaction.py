"""One change of the Iceberg table, in the order that makes a crash at any point repairable:

1. the intent: recorded with the id that the snapshot will have;
2. the names: every file's name is recorded before the file exists;
3. the files: delete files and manifests are written;
4. the account: the totals of the new manifests must equal Delta's totals;
5. the outcome: stored beside the intent (except that of a whole table);
6. the commit: the manifest list, and one compare-and-swap at the catalog;
7. the record: the stored outcome is applied to the state store.

A `SyncError` or `OSError` in 3 or 4 abandons the intent, and its files become orphans. After a crash, if the state
store is unavailable, and from step 5 on, the intent stays open. Then `end_intents` (recovery.py) searches the table for
a snapshot with the intent's id, and records or abandons the intent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import count
from typing import Self
from uuid import uuid4

from msgspec.structs import replace as with_fields
from pyiceberg.table import Table

from daemon.errors import PipelineAway, SyncError
from daemon.iceberg.account import Account, account_of, check_account
from daemon.iceberg.marker import DEFINED_ON
from daemon.iceberg.puffin import SUFFIX
from daemon.iceberg.retention import Tag
from daemon.iceberg.row_delta import RowDelta, TableView, prepare_snapshot
from daemon.iceberg.target import Definition, view_of
from daemon.mirror.substitution import find_mirror_name, name_mirror
from daemon.observe import tracing
from daemon.store.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown, marker_of, placed, shown_in
from daemon.translate.delete_files import DeleteFileResult, DeleteFileTask
from state import FileKind, FileStatus, Intent, LiveFile, OrphanReason, Outcome, with_outcome


class Transaction:
    """One change of the table that is `shown`. Used as a `with` block: an error abandons the change.

    Its table gets `definition`, or keeps its own. `step` times or traces a step by its name. `id` is the intent's and
    the snapshot's id. Call `begin` first, and one of `show`, `define` and `expire` last.
    """

    def __init__(
        self,
        context: TableContext,
        shown: Shown,
        definition: Definition | None = None,
        *,
        from_version: int | None = None,
        to_version: int,
        step: Callable[[str], AbstractContextManager[object]] = tracing.step,
    ) -> None:
        self._context = context
        self._step = step
        self._is_open = False
        self.id = uuid4().int >> 65  # positive, 63 bits. Iceberg spec, "Snapshots"
        self._intent = Intent(
            id=self.id,
            table_id=shown.record.id,
            from_version=from_version,
            to_version=to_version,
            created_at_ms=context.clock.now_ms(),
        )
        self.move_to(shown, definition)

    def move_to(self, shown: Shown, definition: Definition | None) -> None:
        """Apply the change to the table as it is now: others may have committed since the files were named."""
        table = shown.table
        own = Definition(table.schema(), table.spec(), format_version=table.metadata.format_version)
        self._record, self._table, self._definition = shown.record, table, definition or own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        if self._is_open and isinstance(error, SyncError | OSError):
            # The tasks of a failed Spark job may still be writing.
            self.abandon(may_be_writing=isinstance(error, PipelineAway))

    def begin(self, names: Mapping[FileKind, Sequence[str]]) -> None:
        """Record the intent, and the names of the files that are written first."""
        self._context.store.record_intent(self._intent, names)
        self._is_open = True

    @property
    def target_properties(self) -> dict[str, str]:  # of the Iceberg table's FileIO
        return self._context.target_properties(self._table)

    @property
    def data_files(self) -> FileIOStorage:
        return self._context.data_files_of(self._table)

    def delete_file_names(self, suffix: str) -> Iterator[str]:
        """Yield paths for delete files. They are unique and sortable, and depend only on the id."""
        for number in count():
            yield self._place_beside_data(f"{self.id}-{number:06d}-deletes{suffix}")

    def name_mirror(self, data_file: str, made: str, kind: str) -> str:
        """Return a path for a mirror, which no other file has."""
        return self._place_beside_data(name_mirror(self.id, data_file, made, kind))

    def _place_beside_data(self, name: str) -> str:
        folder = self._context.settings.delete_files_location
        return f"{folder}/{name}" if folder else self._view().locations.new_data_location(name)

    def name_manifests(self, count: int) -> tuple[str, ...]:
        """Name `count` manifests that Spark's tasks write."""
        name = self._view().locations.new_metadata_location
        return tuple(name(f"{uuid4()}-{self.id}-m{number}.avro") for number in range(count))

    def _view(self) -> TableView:
        return view_of(self._table, self._definition)

    def announce(self, paths: Sequence[str]) -> None:
        """Record the names of files before these exist."""
        by_kind: dict[FileKind, list[str]] = defaultdict(list)
        for path in paths:
            by_kind[kind_of(path)].append(path)
        if by_kind:
            self._context.store.record_pending(self.id, by_kind)

    def write_delete_files(self, tasks: Sequence[DeleteFileTask]) -> list[DeleteFileResult]:
        """Write delete files whose names are recorded. They are complete and on the disk when this returns."""
        context = self._context
        return context.runner.write_delete_files(
            tasks, table_location=context.location, storage=context.storage, target_properties=self.target_properties
        )

    def show(
        self,
        delta: RowDelta,
        account: Account,
        outcome: Outcome,
        *,
        live_files: Iterable[LiveFile] | None = None,
        operation: str | None = None,
    ) -> Shown:
        """Write the manifests of `delta`, commit the snapshot, with the account and `operation` in its summary, and
        record `outcome`. Raises AccountMismatch, before the commit, if the manifests' totals differ from `account`.

        The outcome of a whole table, which comes with its `live_files`, is too large to be stored first: if the commit
        lands without being recorded, the state store is rebuilt from the table.
        """
        context, settings = self._context, self._context.settings
        with self._step("prepare"):
            prepared = prepare_snapshot(self._view(), delta, self.announce)
        check_account(account, account_of(prepared.manifests, account.size_bytes))
        outcome, version = placed(outcome, prepared), outcome.to_version
        if live_files is None:
            context.store.record_prepared(self.id, outcome)
        # From here on only the Iceberg table shows whether the intent landed.
        self._is_open = False
        marker = marker_of(outcome).to_summary(from_version=self._intent.from_version, operation=operation)
        age_max_ms = round(settings.tag_retention_s * 1000)
        tag = Tag(f"delta-v{version}", age_max_ms) if settings.is_tagged(version) else None
        with self._step("commit"):
            summary = marker | account.to_summary()
            table = context.target.commit(self._table, self._definition, prepared, summary, self.announce, tag=tag)
        return self._recorded(outcome, table, live_files)

    def define(self, outcome: Outcome) -> Shown:
        """Change the table to its new definition and record `outcome`, without a snapshot."""
        self._is_open = False
        stamp = {**marker_of(outcome).to_summary(), DEFINED_ON: str(self._table.metadata.current_snapshot_id)}
        table = self._context.target.define(self._table, self._definition, self.announce, stamp)
        return self._recorded(outcome, table)

    def expire(self, snapshot_ids: Sequence[int], tags: Sequence[str], outcome: Outcome) -> Shown:
        """Remove old snapshots and tags from the table's metadata."""
        self._is_open = False
        return self._recorded(outcome, self._context.target.expire(self._table, snapshot_ids, tags, self.announce))

    def abandon(self, *, may_be_writing: bool = False) -> None:
        """Give up the change, whose commit has not begun, and remove its files. Those that cannot be become orphans."""
        self._is_open = False
        store, removed = self._context.store, list[str]()
        # LookupError: the table's row and its intents were removed meanwhile.
        with suppress(SyncError, LookupError):
            pending = () if may_be_writing else store.list_written(self._intent.table_id, (FileStatus.PENDING,))
            storage = FileIOStorage(self.target_properties)
            # The files of this change are named after it. The next attempt uses its mirrors again.
            own = (file for file in pending if str(self.id) in file.path and file.kind is not FileKind.MIRROR)
            for path in (file.path for file in own):
                storage.delete(path)
                removed.append(path)
        at_ms = self._context.clock.now_ms()
        store.record_abandoned(self.id, OrphanReason.COMMIT_FAILED, at_ms=at_ms, unwritten=removed)

    def _recorded(self, outcome: Outcome, table: Table, live_files: Iterable[LiveFile] | None = None) -> Shown:
        outcome = shown_in(outcome, table)
        store, at_ms, files = self._context.store, self._context.clock.now_ms(), outcome.added_delete_files
        with self._step("record"):
            if live_files is None:
                store.record_synced(self.id, outcome, at_ms=at_ms)
            else:
                store.record_rebuilt(with_fields(outcome, added_delete_files=()), live_files, files, at_ms=at_ms)
        return Shown(with_outcome(self._record, outcome), table)


def kind_of(path: str) -> FileKind:
    """Return the kind of a file that dvsync writes, by its name."""
    name = path.rpartition("/")[2]
    if find_mirror_name(name):
        return FileKind.MIRROR
    if name.endswith((".parquet", SUFFIX)):
        return FileKind.DELETE_FILE
    if name.endswith(".metadata.json"):
        return FileKind.METADATA
    return FileKind.MANIFEST_LIST if name.startswith("snap-") else FileKind.MANIFEST
