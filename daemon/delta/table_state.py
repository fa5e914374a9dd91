"""The interface to a Delta table's whole state at one version. Spark implements it, and so does `snapshot.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from daemon.delta.actions import AddFile, Metadata, Protocol, find_doubled, resolve_path
from daemon.errors import CorruptInput
from state.records import DeletionVectorDescriptor

T = TypeVar("T")

# One row for each live file: the needed fields of its add action, with the deletion vector's fields as columns.
ADDS = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("partition_values", pa.map_(pa.string(), pa.string())),
        pa.field("size", pa.int64()),
        pa.field("stats", pa.string()),
        pa.field("dv_storage_type", pa.string()),
        pa.field("dv_path", pa.string()),
        pa.field("dv_offset", pa.int32()),
        pa.field("dv_size", pa.int32()),
        pa.field("dv_cardinality", pa.int64()),
        pa.field("base_row_id", pa.int64()),
    ]
)


@dataclass(frozen=True)
class TableState(ABC):
    """A snapshot of the Delta table at `location`. `files` counts its live data files."""

    location: str
    version: int
    timestamp_ms: int
    protocol: Protocol
    metadata: Metadata
    files: int

    @abstractmethod
    def read_adds(self, *, with_dv_only: bool = False) -> Iterator[AddFile]:
        """Yield the live files, always in one order, without statistics, which are the largest part of an action."""

    @abstractmethod
    def find_adds(self, is_wanted: pa.BooleanArray) -> Iterator[AddFile]:
        """Yield the wanted live files with their statistics. `is_wanted` has one value for each file of `read_adds`."""

    @abstractmethod
    def map_adds(
        self,
        function: Callable[[int, Iterable[AddFile]], Iterator[T]],
        parts: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Iterable[T]:
        """Apply `function` to the live files, with statistics, in `parts` parts, each sorted by path.

        `function` takes a part's number, from 0 on, and its files, and may run in other processes. A part without
        files may be skipped. `on_progress` receives the number of parts done, and of all parts. The values may be
        iterated several times. Raises what `function` raises.
        """


def check_unique(paths: Iterable[str]) -> None:
    """Raise `CorruptInput` if two live adds have the same (resolved) path. Delta shows the file's rows twice."""
    if doubled := find_doubled(paths):
        path, count = doubled
        raise CorruptInput(
            f"the log has {count} live adds for the one path {path}",
            path=path,
            hint="Delta shows the file's rows as often. Remove one of the adds with the program that wrote them; the "
            "log may name the file by its relative and by its absolute path. Or rewrite the file in Delta, for example "
            "by an UPDATE of its rows. If a checkpoint has both adds, remove it, provided the log has an older "
            "checkpoint and all commits after it. Then `dvsync resume` the table.",
        )


def adds_batch(adds: Iterable[AddFile]) -> pa.RecordBatch:
    """Turn actions into rows of ADDS."""
    rows = list(adds)
    vectors = [add.deletion_vector for add in rows]
    columns: dict[str, list[Any]] = {
        "path": [add.path for add in rows],
        "partition_values": [list(add.partition_values.items()) for add in rows],
        "size": [add.size for add in rows],
        "stats": [add.stats for add in rows],
        "dv_storage_type": [vector and vector.storage_type for vector in vectors],
        "dv_path": [vector and vector.path_or_inline_dv for vector in vectors],
        "dv_offset": [vector and vector.offset for vector in vectors],
        "dv_size": [vector and vector.size_in_bytes for vector in vectors],
        "dv_cardinality": [vector and vector.cardinality for vector in vectors],
        "base_row_id": [add.base_row_id for add in rows],
    }
    return pa.RecordBatch.from_pydict(columns, ADDS)


def adds_from_batches(batches: Iterable[pa.RecordBatch], location: str | None = None) -> Iterator[AddFile]:
    """Turn rows with the columns of `ADDS` into actions; `stats` may be missing.

    With the table's `location`, paths are resolved as in the log; without it, they are resolved already.
    """
    for row in (row for batch in batches for row in batch.to_pylist()):
        descriptor = None
        if row["dv_storage_type"] is not None:
            descriptor = DeletionVectorDescriptor(
                storage_type=row["dv_storage_type"],
                path_or_inline_dv=row["dv_path"],
                offset=row["dv_offset"],
                size_in_bytes=row["dv_size"],
                cardinality=row["dv_cardinality"],
            )
        path = row["path"] if location is None else resolve_path(location, row["path"])
        partition_values = dict(row["partition_values"] or ())
        if len(partition_values) < len(row["partition_values"] or ()):
            raise CorruptInput(
                "an add has two partition values for one column",
                path=path,
                hint="Fix the program that wrote the log or its checkpoint.",
            )
        yield AddFile(
            path=path,
            partition_values=partition_values,
            size=row["size"],
            data_change=False,
            stats=row.get("stats"),
            deletion_vector=descriptor,
            base_row_id=row["base_row_id"],
        )
