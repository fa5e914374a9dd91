"""The main path: one Delta version after the other into one Iceberg snapshot each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SyncResult:
    """What one cycle did. `outcome`: waiting, unchanged, advanced, rebuilt. Versions are Delta's, inclusive.

    `more` says that the cycle stopped at a bound and the next one should start at once.
    """

    outcome: str
    from_version: int | None
    to_version: int | None
    snapshot_id: int | None = None
    metadata_location: str | None = None
    source_timestamp_ms: int | None = None
    operation: str | None = None
    snapshots: int = 0
    data_files_added: int = 0
    data_files_removed: int = 0
    delete_files_added: int = 0
    delete_files_removed: int = 0
    positions_added: int = 0
    more: bool = False
