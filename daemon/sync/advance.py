"""One snapshot's work: `advance` folds commits, plans, translates and shows them in one transaction.

`follower.py` decides which commits to advance by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from daemon.delta.actions import Commit
from daemon.delta.protocol import check_protocol
from daemon.delta.replay import TableChange, fold_commits, touched_paths
from daemon.errors import ReplacementNeeded, ResyncNeeded, Unsupported
from daemon.iceberg.account import Account, check_account
from daemon.sync.context import TableContext
from daemon.sync.deletions import Change, write_positions, write_vectors
from daemon.sync.outcomes import Shown, SyncResult, outcome_of_change, result_of_change
from daemon.sync.transaction import Transaction
from daemon.translate.definition import (
    Shape,
    check_references,
    check_unchanged,
    remembering,
    row_id_column,
    row_id_column_of,
    shape_for,
    shape_of,
)
from daemon.translate.plan import account_change
from state import LiveFile


def advance(
    context: TableContext,
    shown: Shown,
    commits: Sequence[Commit],
    before: Account,
    check: Callable[[Account], None],
) -> tuple[Shown, SyncResult]:
    """Show `commits` (consecutive, read and validated) in one Iceberg snapshot, or none if they change no rows.

    `before` is the account of the table now. `check` receives the account after the commits, and raises before anything
    is written. Raises `StateMismatch` if the state store's live files cannot be Delta's.

    After a failure the Iceberg table is unchanged, or the error is `CommitOutcomeUnknown`. The state store knows the
    files that were written, as orphans or by an open intent.
    """
    store, record = context.store, shown.record
    live = store.find_live_files(record.id, touched_paths(commits))
    _check_named_alike(commits, live)
    dv_ids = {path: file.dv_unique_id for path, file in live.items()}
    change = fold_commits(commits, dv_ids)

    shape = _shape_after(context, shown, change, commits)
    with context.step("inspect"):
        inspection = context.runner.inspect_data_files(
            list(change.added.values()), shape.table, context.storage, context.properties
        )
    account = before + account_change(change, live, inspection.metrics)
    check(account)
    shape = shape.with_files(inspection.traits)
    transaction = Transaction(
        context,
        record,
        shown.table,
        shape.definition,
        from_version=change.from_version,
        to_version=change.to_version,
        step=context.step,
    )
    with transaction:
        write_deletions = write_vectors if shape.definition.format_version > 2 else write_positions
        completed = write_deletions(context, transaction, record, shape, Change(change, live, inspection.metrics))
        outcome = outcome_of_change(record, change, completed)
        # If readers would misread the newest snapshot with the new name mapping, it needs a successor.
        if completed.is_empty and record.snapshot_id not in shape.definition.misread.snapshot_ids:
            check_account(account, before)
            shown = transaction.define(shape.definition, outcome)
            return shown, result_of_change(change, completed, shown.record, snapshots=0)
        prepared = transaction.prepare(completed.delta, account)
        shown = transaction.show(
            shape.definition,
            prepared,
            outcome,
            account,
            from_version=change.from_version,
            operation=change.operation,
        )
    return shown, result_of_change(change, completed, shown.record, snapshots=1)


def _check_named_alike(commits: Sequence[Commit], live: Mapping[str, LiveFile]) -> None:
    """Raise `ResyncNeeded` if a live file of the table's folder is named by its absolute path.

    Delta takes that for another file if the log named it by its relative path before, which only the log knows.
    """
    for commit in commits:
        for path in commit.absolute_paths & live.keys():
            raise ResyncNeeded(
                f"version {commit.version} names the live file {path} by its absolute path",
                version=commit.version,
                path=path,
                hint="Delta compares paths as they are written. dvsync compares both states and commits the "
                "difference.",
            )


def _shape_after(context: TableContext, shown: Shown, change: TableChange, commits: Sequence[Commit]) -> Shape:
    """Return the table's shape after `change`, which `commits` make.

    Raises `Unsupported` if Iceberg cannot express it, `CorruptInput` if it is not valid in Delta.
    """
    if change.protocol:
        check_protocol(change.protocol)
    if change.metadata is None:
        shape = shape_of(shown.table, context.settings)
        return remembering(shape, shown.table, change.protocol, None) if change.protocol else shape
    shape = shape_for(change.metadata, shown.table, context.settings)
    shape = remembering(shape, shown.table, change.protocol, change.metadata)
    # If Delta did not track row ids in between, it has given its files other ones, although their paths are the same.
    columns = {row_id_column(commit.metadata) for commit in commits if commit.metadata}
    if shape.table.has_row_ids and columns != {row_id_column_of(shown.table)}:
        raise ReplacementNeeded(
            "Delta began to track row ids, and older data files have other row ids in Iceberg",
            version=change.to_version,
            hint="dvsync writes the table anew from Delta's state, with Delta's row ids.",
        )
    check_unchanged(shape, shown.table, context.settings, change.to_version)
    what = f"column {', '.join(shape.table.replaced)}" if shape.table.replaced else ""
    if shape.table.spec_id != shown.table.metadata.default_spec_id:
        what = what or "the partitioning"
    # Counting reads every live file's row, so it is done only if the answer matters.
    staying = context.store.count(shown.record.id).live_data_files - len(change.removed) if what else 0
    if staying:
        raise Unsupported(
            f"{what} changed while {staying} older data files stay",
            version=change.to_version,
            hint="`dvsync resync` makes it a new column in Iceberg, or a new partitioning; older snapshots that would "
            "show it wrongly expire. If a file does not fit the new column, overwrite it in Delta first.",
        )
    check_references(shape, context.settings)
    return shape
