"""Iceberg tables whose data files need not exist: records, a SQL catalog in memory, and independent Avro readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from daemon.clock import SystemClock
from daemon.iceberg.pyiceberg_ext.metadata_cache import remember_metadata
from daemon.iceberg.pyiceberg_ext.records import data_file_record
from daemon.iceberg.row_delta import PreparedSnapshot, RowDelta, prepare_snapshot
from daemon.iceberg.target import Definition, Target, view_of
from tests.kit.readers import duckdb_connection

NOW_MS = 1_700_000_000_000
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()), schema_id=0)
UNPARTITIONED = PartitionSpec(spec_id=0)
BY_PART = PartitionSpec(
    PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part"), spec_id=0
)


class LaterClock(SystemClock):
    """Tells a later time: what has a grace period gets old."""

    late_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round(self.late_s * 1000)


class FixedClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic_s(self) -> float:
        return 0.0


def data_file(path: str, rows: int = 10, part: str | None = None, *, spec: PartitionSpec = UNPARTITIONED) -> DataFile:
    return data_file_record(
        [part for _ in spec.fields],
        spec_id=spec.spec_id,
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        record_count=rows,
        file_size_in_bytes=100 + rows,
        value_counts={1: rows},
        lower_bounds={1: bytes(8)},
    )


def delete_file(
    path: str,
    positions: int = 2,
    serves: str | None = "a",
    part: str | None = None,
    *,
    spec: PartitionSpec = UNPARTITIONED,
) -> DataFile:
    return data_file_record(
        [part for _ in spec.fields],
        spec_id=spec.spec_id,
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        record_count=positions,
        file_size_in_bytes=50,
        split_offsets=[4, 99],
        referenced_data_file=serves,
    )


class StumblingCatalog(SqlCatalog):
    """Raises what it is told to, once, before or after a commit took effect."""

    before: Exception | None = None
    after: Exception | None = None

    def commit_table(self, *arguments: Any, **named: Any) -> Any:
        if self.before:
            raise self.before
        response = super().commit_table(*arguments, **named)
        if self.after:
            raise self.after
        return response


class MadeTable:
    """One table of a catalog in memory, committed to through `Target`."""

    def __init__(self, folder: Path, spec: PartitionSpec = UNPARTITIONED) -> None:
        self.folder = folder
        self.catalog = StumblingCatalog("memory", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
        remember_metadata()
        self.target = Target("local", lambda: self.catalog, "lake.t", None, FixedClock())
        self.definition = Definition(SCHEMA, spec, {"gc.enabled": "false"})
        self.announced: list[str] = []
        self.snapshots = 0

    def table(self) -> Table:
        return self.catalog.load_table("lake.t")

    def prepare(self, table: Table, **changes: Any) -> PreparedSnapshot:
        """Write the manifests of a row delta; snapshot ids count from 1."""
        self.snapshots += 1
        delta = RowDelta(snapshot_id=self.snapshots, **changes)
        return prepare_snapshot(view_of(table, self.definition), delta, self.announced.extend)

    def commit(self, **changes: Any) -> PreparedSnapshot:
        """A snapshot with these changes; the first one creates the table."""
        table = self.table() if self.snapshots else self.target.stage(self.definition)
        prepared = self.prepare(table, **changes)
        self.target.commit(
            table, self.definition, prepared, {"marker": str(prepared.snapshot_id)}, self.announced.extend
        )
        return prepared

    def manifests(self, table: Table | None = None) -> list[ManifestFile]:
        """Those of the current snapshot, as PyIceberg reads them."""
        table = table or self.table()
        snapshot = table.current_snapshot()
        assert snapshot is not None
        return snapshot.manifests(table.io)

    def live(self) -> dict[str, tuple[str, int, int]]:
        """Manifest, snapshot id and data sequence number of each live file, as PyIceberg reads them."""
        io = self.table().io
        return {
            entry.data_file.file_path: (manifest.manifest_path, entry.snapshot_id or 0, entry.sequence_number or 0)
            for manifest in self.manifests()
            for entry in manifest.fetch_manifest_entry(io)
        }

    def summary(self) -> dict[str, str]:
        snapshot = self.table().current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        return dict(snapshot.summary.additional_properties)

    def close(self) -> None:
        self.catalog.close()


def read_avro(path: str) -> list[dict[str, Any]]:
    """The records of an Avro file as DuckDB reads them, with just the fields that the file has."""
    rows = duckdb_connection().execute("SELECT * FROM read_avro(?)", [path.removeprefix("file://")])
    names = [column[0] for column in rows.description or ()]
    return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]


def entries(path: str) -> dict[str, tuple[str, int | None, int | None, int | None]]:
    """Status, snapshot id and both sequence numbers of each entry of a manifest, as they stand in the file."""
    status = ("existing", "added", "deleted")
    return {
        row["data_file"]["file_path"]: (
            status[row["status"]],
            row["snapshot_id"],
            row["sequence_number"],
            row["file_sequence_number"],
        )
        for row in read_avro(path)
    }
