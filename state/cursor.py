"""How a recorded outcome moves a table's cursor. Pure, and the same in every store."""

from __future__ import annotations

from msgspec.structs import replace

from state.records import Outcome, TableRecord


def advance_cursor(table: TableRecord, outcome: Outcome, *, at_ms: int) -> TableRecord:
    """The table after `outcome`. If a version was synced or rows were changed, its error is cleared and the time set.

    The time stays when the cursor was there already: the outcome is applied once more.
    """
    advanced = replace(
        table,
        delta_table_id=outcome.delta_table_id,
        synced_version=outcome.to_version,
        source_timestamp_ms=outcome.source_timestamp_ms,
        snapshot_id=outcome.snapshot_id,
        metadata_location=outcome.metadata_location,
        must_compare=outcome.must_compare,
    )
    before = (table.delta_table_id, table.synced_version, table.source_timestamp_ms)
    has_moved = before != (advanced.delta_table_id, advanced.synced_version, advanced.source_timestamp_ms)
    if has_moved or outcome.added_files or outcome.changed_dvs or outcome.removed_files:
        synced_at_ms = table.last_synced_at_ms if advanced == table else at_ms
        return replace(advanced, error=None, last_synced_at_ms=synced_at_ms)
    return advanced
