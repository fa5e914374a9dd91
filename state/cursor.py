"""Moves a table's cursor by a recorded outcome. Pure, and the same in every store."""

from __future__ import annotations

from msgspec.structs import replace

from state.records import RECENT_COMMITS_MAX, CommitIdentity, Outcome, TableRecord


def with_outcome(table: TableRecord, outcome: Outcome) -> TableRecord:
    """Return the table with all that `outcome` says of it."""
    # All that an outcome and a table have in common has one name.
    said = {name: getattr(outcome, name) for name in Outcome.__struct_fields__ if name in TableRecord.__struct_fields__}
    return replace(table, synced_version=outcome.to_version, **said)


def advance_cursor(table: TableRecord, outcome: Outcome, *, at_ms: int) -> TableRecord:
    """Return the table after `outcome`. If it synced a version or changed rows, clear the error and set the time.

    The time does not change if the cursor was already there, because the outcome is then applied a second time.
    """
    advanced = with_outcome(table, outcome)
    before = (table.delta_table_id, table.synced_version, table.source_timestamp_ms)
    has_moved = before != (advanced.delta_table_id, advanced.synced_version, advanced.source_timestamp_ms)
    if has_moved or outcome.added_files or outcome.changed_dvs or outcome.removed_files:
        synced_at_ms = table.last_synced_at_ms if advanced == table else at_ms
        return replace(advanced, error=None, last_synced_at_ms=synced_at_ms)
    return advanced


def join_commits(table: TableRecord, known: tuple[CommitIdentity, ...], outcome: Outcome) -> tuple[CommitIdentity, ...]:
    """Return the commits to remember after `outcome`: the newest ones up to its version, of its Delta table.

    Example: 3, 4 and 5 are known. If commit 6 is shown, 3 to 6 are remembered; if Delta's state at 4 is shown again,
    only 3 and 4.
    """
    if outcome.delta_table_id != table.delta_table_id:
        known = ()
    joined = {each.version: each for each in (*known, *outcome.recent_commits) if each.version <= outcome.to_version}
    return tuple(joined[version] for version in sorted(joined)[-RECENT_COMMITS_MAX:])
