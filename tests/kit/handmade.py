"""Delta tables made by hand, without Spark: log actions, Parquet files and deletion vectors as PROTOCOL.md has them.

Also the dvsync parts to follow one, on a SQLite state database and a SQL catalog in a temporary folder. The first sync
of a table without files needs no Spark, so a handmade table is followed from its version 0 on.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyroaring import BitMap64

from daemon.clock import Clock, SystemClock
from daemon.config.settings import LimitsSettings, SparkSettings, TableSettings
from daemon.delta.actions import Metadata, Protocol
from daemon.delta.snapshot import ReplayedState
from daemon.delta.table_state import ADDS
from daemon.iceberg.catalogs import Catalogs
from daemon.service.assembly import Shared, make_context
from daemon.spark.session import SparkPipeline
from daemon.store.storage import FileIOStorage
from daemon.sync.context import Writer
from daemon.sync.first_sync import show_state
from daemon.sync.follower import Follower
from daemon.sync.outcomes import SyncResult
from state import SourceEntry
from state.sql.store import StateStore
from tests.kit.states import lay_database

B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
PORTABLE_MAGIC = 1681511377
FEATURES = ["deletionVectors"]
COLUMNS = (("id", "long"), ("part", "string"), ("value", "string"))
ARROW = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.string())])

ARROW_TYPES = {"string": pa.string(), "integer": pa.int32(), "long": pa.int64()}


# A recorded test seeds it, so that its names are those that Spark met. No two processes give the same.
RANDOM = Random()
os.register_at_fork(after_in_child=RANDOM.seed)


def new_uuid() -> UUID:
    return UUID(int=RANDOM.getrandbits(128), version=4)


def sql_catalog(folder: Path) -> dict[str, str]:
    """The properties of a catalog in a SQLite file of `folder`."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def z85(data: bytes) -> str:
    padded = data + b"\0" * (-len(data) % 4)
    return base64.b85encode(padded).translate(bytes.maketrans(B85, Z85)).decode()


def dv_payload(positions: Iterable[int]) -> bytes:
    """Magic and bitmap: what `sizeInBytes` counts."""
    bitmap = BitMap64(positions)
    bitmap.run_optimize()
    return struct.pack("<i", PORTABLE_MAGIC) + bitmap.serialize()


@dataclass
class HandmadeTable:
    """A Delta table in `folder`; rows are (id, part, value). `live` maps each live data file to its add action."""

    folder: Path
    partitioned: bool = False
    version: int = -1
    table_id: str = field(default_factory=lambda: str(new_uuid()))
    live: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    deleted: dict[str, set[int]] = field(default_factory=dict)
    # `pathOrInlineDv` of a descriptor -> the file that it leads to.
    dv_files: dict[str, Path] = field(default_factory=dict)
    _taken: set[Path] = field(default_factory=set)

    @property
    def location(self) -> str:
        return f"file://{self.folder}"

    def commit_path(self, version: int) -> Path:
        return self.folder / "_delta_log" / f"{version:020d}.json"

    def take_new_files(self) -> list[Path]:
        """The files that this has not returned before, in an order in which a copy of the table is always whole."""
        new = {path for path in self.folder.rglob("*") if path.is_file()} - self._taken
        self._taken |= new
        return sorted(new, key=lambda path: (path.parent.name == "_delta_log", path))

    def create(self) -> None:
        (self.folder / "_delta_log").mkdir(parents=True)
        self.commit([{"protocol": self.protocol()}, {"metaData": self.metadata()}], operation="CREATE TABLE")

    def protocol(self, features: Sequence[str] = FEATURES) -> dict[str, Any]:
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": list(features),
        }

    def metadata(self, columns: Sequence[tuple[str, Any]] = COLUMNS) -> dict[str, Any]:
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
        return {
            "id": self.table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": ["part"] if self.partitioned else [],
            "configuration": {"delta.enableDeletionVectors": "true"},
        }

    def commit_info(self) -> dict[str, Any]:
        """What the next commit says of itself, beside its operation."""
        return {}

    def commit(self, actions: Sequence[Mapping[str, Any]], *, operation: str = "WRITE") -> int:
        """Write the next commit file, whole or not at all, as a real writer does."""
        self.version += 1
        lines = [{"commitInfo": {"operation": operation, "timestamp": 0, **self.commit_info()}}, *actions]
        staged = self.folder / "_delta_log" / f".{new_uuid()}.tmp"
        staged.write_text("".join(json.dumps(line) + "\n" for line in lines))
        staged.rename(self.commit_path(self.version))
        return self.version

    def write_file(self, rows: Sequence[tuple[int, str, str]], *, name: str | None = None) -> str:
        """A data file with these rows (all of one `part` when partitioned); returns its path relative to the table."""
        folder = f"part={rows[0][1]}/" if self.partitioned else ""
        path = f"{folder}{name or f'part-{new_uuid()}'}.parquet"
        (self.folder / folder).mkdir(exist_ok=True)
        table = pa.table({name: [row[index] for row in rows] for index, name in enumerate(ARROW.names)}, schema=ARROW)
        pq.write_table(table.drop_columns(["part"]) if self.partitioned else table, self.folder / path)
        self.rows[path] = list(rows)
        return path

    def add(
        self,
        path: str,
        *,
        deleted: Iterable[int] = (),
        storage: str = "u",
        data_change: bool = True,
        descriptor: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """An add action for a data file that was written before, with all of its `deleted` positions.

        `descriptor` is that of a deletion vector with these positions that was written before.
        """
        rows, positions = self.rows[path], set(deleted)
        ids = [row[0] for row in rows]
        stats = {
            "numRecords": len(rows),
            "minValues": {"id": min(ids)},
            "maxValues": {"id": max(ids)},
            "nullCount": {"id": 0},
            "tightBounds": not positions,
        }
        action: dict[str, Any] = {
            "path": quote(path),
            "partitionValues": {"part": rows[0][1]} if self.partitioned else {},
            "size": (self.folder / path).stat().st_size,
            "modificationTime": 0,
            "dataChange": data_change,
            "stats": json.dumps(stats),
        }
        if positions:
            action["deletionVector"] = descriptor or self.write_dvs({path: positions}, storage)[path]
        self.live[path], self.deleted[path] = action, positions
        return {"add": action}

    def remove(self, path: str, *, data_change: bool = True) -> dict[str, Any]:
        """A remove action of the logical file as it is now."""
        old = self.live.pop(path)
        self.deleted.pop(path, None)
        action = {"path": old["path"], "deletionTimestamp": 0, "dataChange": data_change}
        if "deletionVector" in old:
            action["deletionVector"] = old["deletionVector"]
        return {"remove": action}

    def overwrite(self, columns: Sequence[tuple[str, str]], row: Mapping[str, Any]) -> None:
        """Commit one row in the place of all, in other columns: Delta's `overwriteSchema`."""
        path = f"part-{new_uuid()}.parquet"
        schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in columns])
        pq.write_table(pa.Table.from_pylist([dict(row)], schema), self.folder / path)
        removes = [self.remove(path) for path in list(self.live)]
        self.rows[path] = [(row["id"], row["part"], row.get("value", ""))]
        self.commit([{"metaData": self.metadata(columns)}, *removes, self.add(path)])

    def write_dvs(self, positions: Mapping[str, set[int]], storage: str = "u") -> dict[str, dict[str, Any]]:
        """Deletion vector descriptors by data file; those of storage `u` and `p` share one file."""
        descriptors: dict[str, dict[str, Any]] = {}
        uuid: UUID = new_uuid()
        data = b"\x01"
        for path, deleted in positions.items():
            payload = dv_payload(deleted)
            common = {"sizeInBytes": len(payload), "cardinality": len(deleted)}
            if storage == "i":
                descriptors[path] = {"storageType": "i", "pathOrInlineDv": z85(payload), **common}
                continue
            place = f"{self.location}/deletion_vector_{uuid}.bin" if storage == "p" else z85(uuid.bytes)
            self.dv_files[place] = self.folder / f"deletion_vector_{uuid}.bin"
            descriptors[path] = {"storageType": storage, "pathOrInlineDv": place, "offset": len(data), **common}
            data += struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload))
        if storage != "i":
            (self.folder / f"deletion_vector_{uuid}.bin").write_bytes(data)
        return descriptors

    def delete(self, positions: Mapping[str, Iterable[int]], *, storage: str = "u") -> list[dict[str, Any]]:
        """Churn: each file removed and added with its earlier and these deletions."""
        actions = []
        for path, more in positions.items():
            deleted = self.deleted.get(path, set()) | set(more)
            actions += [self.remove(path), self.add(path, deleted=deleted, storage=storage)]
        return actions

    def live_rows(self) -> list[tuple[int, str, str]]:
        """What every reader must show, sorted."""
        return sorted(
            row
            for path in self.live
            for position, row in enumerate(self.rows[path])
            if position not in self.deleted[path]
        )

    def live_rows_in(self, schema: Schema) -> list[tuple[Any, ...]]:
        """The same in a table of other columns: fewer of the last ones, or more, which are null."""
        columns = len(schema.fields)
        return [(*row[:columns], *[None] * (columns - len(row))) for row in self.live_rows()]


# The granularity of delete files that a new Iceberg table gets, for `monkeypatch.setattr`.
GRANULARITY = "daemon.translate.definition.DELETE_GRANULARITY_DEFAULT"


@dataclass
class Bench:
    """The dvsync parts around one source, in `folder`: state database, SQL catalog, follower.

    Benches in one folder share the catalog; those with one `state_name` are tables of one daemon.
    """

    folder: Path
    source: str
    target: str = "lake.t"
    name: str = "t"
    state_name: str = "state.db"
    catalog_uri: str | None = None
    # Of the catalog (all of them with a `type`, else beside those of the local one), and of the stores on both sides.
    catalog: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    state_url: str | None = None
    spark_settings: SparkSettings = field(default_factory=SparkSettings)
    clock: Clock = field(default_factory=SystemClock)
    table_options: dict[str, Any] = field(default_factory=dict)
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    engine: str = "local"
    writer: Writer | None = None
    # Of a table that a catalog manages, which says what is in these files.
    entry: SourceEntry | None = None
    storage: FileIOStorage | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.open()

    @property
    def state_file(self) -> Path:
        return self.folder / self.state_name

    def open(self) -> None:
        if self.state_url is None and not self.state_file.exists():
            lay_database(self.state_file)
        self.store = StateStore.open(self.state_url or f"sqlite:///{self.state_file}")
        local = sql_catalog(self.folder)
        if self.catalog_uri:
            local["uri"] = self.catalog_uri
        catalog = {**({} if "type" in self.catalog else local), **self.catalog, **self.properties}
        self.catalogs = Catalogs({"local": catalog})
        self.settings = TableSettings(
            source=self.source,
            target=self.target,
            name=self.name,
            catalog="local",
            **{"engine": self.engine, **self.table_options},
        )
        if self.entry:
            self.settings = self.settings.for_entry(self.entry)
        self.spark = SparkPipeline(self.spark_settings)
        self.context = make_context(
            self.settings,
            Shared(self.store, self.spark, self.catalogs, self.clock, self.limits),
            catalog,
            self.storage or FileIOStorage(catalog),
            writer=self.writer,
        )
        self.follower = Follower(self.context)

    def close(self) -> None:
        self.store.close()
        self.catalogs.close()

    def reopen(self) -> None:
        """As after a restart of the process."""
        self.close()
        self.open()

    def first_sync_empty(self, table: HandmadeTable) -> None:
        """The first sync of a table that has no files at its version 0."""
        context = self.context
        record = self.store.open_table(self.name, self.source, self.target)
        commit = context.log.read_commit(0)
        state = ReplayedState(
            location=self.source,
            version=0,
            timestamp_ms=commit.timestamp_ms,
            protocol=msgspec.convert(table.protocol(), Protocol),
            metadata=msgspec.convert(table.metadata(), Metadata),
            files=0,
            recent_commits={},
            rows=ADDS.empty_table(),
        )
        show_state(context, record, state)

    def sync(self, *, full: bool = False) -> SyncResult:
        """One cycle of the follower, in this thread."""
        return self.follower.sync(full=full)

    def iceberg(self) -> Table:
        return self.catalogs.open("local").load_table(self.target)

    def exists(self) -> bool:
        return self.catalogs.open("local").table_exists(self.target)


@contextmanager
def in_step(folder: Path, table: HandmadeTable) -> Iterator[Bench]:
    """A bench below `folder` that has followed the table to its newest version."""
    bench = Bench(folder / "dvsync", table.location)
    bench.follower.sync()
    try:
        yield bench
    finally:
        bench.close()
