"""How a recorded outcome moves a table's cursor. Pure, and the same in every store."""

from __future__ import annotations

from msgspec.structs import replace

from state.records import Outcome, TableRecord


def advance_cursor(table: TableRecord, outcome: Outcome, *, at_ms: int) -> TableRecord:
    """The table after `outcome`, its error cleared. The time stays when the cursor was there already."""
    advanced = replace(
        table,
        delta_table_id=outcome.delta_table_id,
        synced_version=outcome.to_version,
        source_timestamp_ms=outcome.source_timestamp_ms,
        snapshot_id=outcome.snapshot_id,
        metadata_location=outcome.metadata_location,
        must_compare=outcome.must_compare,
        error=None,
    )
    return advanced if advanced == replace(table, error=None) else replace(advanced, last_synced_at_ms=at_ms)
