"""Writes table metadata as JSON. PyIceberg calls Python code for each snapshot's summary: with 500 snapshots this takes
a fifth of a commit's time.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import IcebergBaseModel


class _Snapshot(msgspec.Struct, rename="kebab", omit_defaults=True):
    """Iceberg spec, "Snapshots"."""

    snapshot_id: int
    timestamp_ms: int
    manifest_list: str
    parent_snapshot_id: int | None = None
    sequence_number: int | None = None
    summary: dict[str, str] | None = None
    schema_id: int | None = None
    first_row_id: int | None = None
    added_rows: int | None = None


def write_snapshots_fast() -> None:
    """Make this process write table metadata of version 2 by `to_json`. Patches PyIceberg; no issue is known."""
    TableMetadataV2.model_dump_json = to_json  # type: ignore[assignment, method-assign]


def to_json(metadata: TableMetadata, **options: Any) -> str:
    """Return what `metadata.model_dump_json` returns, in another order."""
    others = IcebergBaseModel.model_dump_json(metadata, exclude={"snapshots"}, **options)
    snapshots = msgspec.json.encode([_values_of(snapshot) for snapshot in metadata.snapshots]).decode()
    return f'{others[:-1]},"snapshots":{snapshots}}}'


def _values_of(snapshot: Snapshot) -> _Snapshot:
    values = vars(snapshot).copy()
    if (summary := snapshot.summary) is not None:
        # Not by its property `additional_properties`: pydantic's private attributes are slow.
        private: dict[str, Any] = summary.__pydantic_private__  # type: ignore[assignment]
        values["summary"] = {"operation": summary.operation.value, **private["_additional_properties"]}
    return _Snapshot(**values)
