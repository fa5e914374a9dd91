"""A Delta table of many data files that are hard links of a few: ten columns with statistics, partitioned by day."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from tests.kit.handmade import HandmadeTable, new_uuid
from tests.kit.handmade_managed import Managed
from tests.kit.unity import UnityTable

COLUMNS = (
    ("id", "long"),
    ("part", "string"),
    ("customer", "long"),
    ("quantity", "integer"),
    ("price", "double"),
    ("amount", "decimal(18,2)"),
    ("status", "string"),
    ("comment", "string"),
    ("shipped", "date"),
    ("created", "timestamp"),
)
ROWS = 100
FILES_PER_DAY = 1000
# ext4 allows 65,000 names for one file.
LINKS_MAX = 50_000
ADDS_PER_COMMIT = 5_000


def shown_rows(table: Table) -> int:
    """The rows of the current snapshot, by its summary."""
    snapshot = table.current_snapshot()
    assert snapshot and snapshot.summary
    records, deleted = (snapshot.summary[f"total-{what}"] for what in ("records", "position-deletes"))
    return int(records or 0) - int(deleted or 0)


@dataclass
class LargeTable:
    """The table, and its live data files in the order in which they were added."""

    delta: HandmadeTable
    paths: list[str]
    size_bytes: int
    deleted: dict[str, set[int]] = field(default_factory=dict)
    descriptors: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, path: str) -> dict[str, Any]:
        """The add action of a file as it is now."""
        action = {
            "path": path,
            "partitionValues": {"part": path.partition("/")[0].removeprefix("part=")},
            "size": self.size_bytes,
            "modificationTime": 0,
            "dataChange": True,
            "stats": STATS,
        }
        if path in self.descriptors:
            action["deletionVector"] = self.descriptors[path]
        return {"add": action}

    def remove(self, path: str) -> dict[str, Any]:
        action = {"path": path, "deletionTimestamp": 0, "dataChange": True}
        if path in self.descriptors:
            action["deletionVector"] = self.descriptors[path]
        return {"remove": action}

    def set_deleted(self, paths: Sequence[str], positions: Iterable[int]) -> None:
        """Give these files a deletion vector each, all in one `.bin`, without a commit."""
        new = {path: set(positions) for path in paths}
        self.descriptors.update(self.delta.write_dvs(new))
        self.deleted.update(new)

    def commit_deleted(self, path: str, positions: Iterable[int], operation: str = "DELETE") -> None:
        """One commit that changes this file's deletion vector."""
        removed = self.remove(path)
        self.set_deleted([path], positions)
        self.delta.commit([removed, self.add(path)], operation=operation)

    def commit_removed(self, path: str) -> None:
        """One commit that removes this file whole."""
        self.delta.commit([self.remove(path)], operation="DELETE")

    def live_rows(self, files: int) -> int:
        return files * ROWS - sum(map(len, self.deleted.values()))


def _columns() -> dict[str, list[Any]]:
    rows, day, noon = range(ROWS), date(2026, 1, 1), datetime(2026, 1, 1, 12, tzinfo=UTC)
    return {
        "id": list(rows),
        "customer": [row * 7919 for row in rows],
        "quantity": [row % 12 for row in rows],
        "price": [row / 8 for row in rows],
        "amount": [Decimal(row) / 4 for row in rows],
        "status": [("new", "paid", "sent")[row % 3] for row in rows],
        "comment": [f"comment number {row}" for row in rows],
        "shipped": [day + timedelta(days=row % 28) for row in rows],
        "created": [noon + timedelta(seconds=row) for row in rows],
    }


_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.int64()),
        ("quantity", pa.int32()),
        ("price", pa.float64()),
        ("amount", pa.decimal128(18, 2)),
        ("status", pa.string()),
        ("comment", pa.string()),
        ("shipped", pa.date32()),
        ("created", pa.timestamp("us", tz="UTC")),
    ]
)


def _text(value: Any) -> Any:
    """A value as Delta's statistics spell it."""
    match value:
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case _:
            return value


STATS = json.dumps(
    {
        "numRecords": ROWS,
        "minValues": {name: _text(min(values)) for name, values in _columns().items()},
        "maxValues": {name: _text(max(values)) for name, values in _columns().items()},
        "nullCount": dict.fromkeys(_columns(), 0),
        "tightBounds": False,
    }
)


def make_large_table(folder: Path, *, files: int, with_dv: int = 0, managed: bool = False) -> LargeTable:
    """A table of `files` data files; `with_dv` of them, spread evenly, have ten deleted rows each.

    If it is `managed`, a catalog ratifies its commits, and the last one is not published.
    """
    delta = (Managed if managed else HandmadeTable)(folder, partitioned=True)
    (folder / "_delta_log").mkdir(parents=True)
    if isinstance(delta, Managed):
        delta.told = UnityTable(str(new_uuid()), delta.location)
        delta.staged("").mkdir()
    delta.commit([{"protocol": delta.protocol()}, {"metaData": delta.metadata(COLUMNS)}], operation="CREATE TABLE")
    table = LargeTable(delta, [], 0)
    for number in range(files):
        day = date(2026, 1, 1) + timedelta(days=number // FILES_PER_DAY)
        path = f"part={day}/part-{number:06d}-0f9c4a7e-7c1b-4b0e-9a53-c000.snappy.parquet"
        if number % FILES_PER_DAY == 0:
            (folder / f"part={day}").mkdir()
        if number % LINKS_MAX == 0:
            original = folder / path
            pq.write_table(pa.table(_columns(), schema=_SCHEMA), original)
            table.size_bytes = original.stat().st_size
        else:
            os.link(original, folder / path)
        table.paths.append(path)
    if with_dv:
        table.set_deleted(table.paths[:: files // with_dv][:with_dv], range(0, ROWS, 10))
    for start in range(0, files, ADDS_PER_COMMIT):
        if isinstance(delta, Managed):
            delta.publish()
        delta.commit([table.add(path) for path in table.paths[start : start + ADDS_PER_COMMIT]])
    return table
