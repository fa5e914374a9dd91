"""The interface to a Delta table's whole state at one version. Spark implements it, and so does `snapshot.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from daemon.delta.actions import AddFile, Identity, LogicalFile, Metadata, Protocol, find_doubled
from daemon.delta.uri import PLAIN_PATH, describe, fold_identity, name_file
from daemon.errors import CorruptInput, FileLiveTwice
from daemon.store.locations import FileMeta
from state.records import DeletionVectorDescriptor

T = TypeVar("T")

# The columns of ADDS that a deletion vector has.
DV_FIELDS = {
    "dv_storage_type": "storage_type",
    "dv_path": "path_or_inline_dv",
    "dv_offset": "offset",
    "dv_size": "size_in_bytes",
    "dv_cardinality": "cardinality",
}
# PROTOCOL.md, "Add File and Remove File": the needed fields of an add, as column, type and place in the action.
_FIELDS = (
    ("path", pa.string(), "path"),
    ("partition_values", pa.map_(pa.string(), pa.string()), "partitionValues"),
    ("size", pa.int64(), "size"),
    ("stats", pa.string(), "stats"),
    ("dv_storage_type", pa.string(), "deletionVector.storageType"),
    ("dv_path", pa.string(), "deletionVector.pathOrInlineDv"),
    ("dv_offset", pa.int32(), "deletionVector.offset"),
    ("dv_size", pa.int32(), "deletionVector.sizeInBytes"),
    ("dv_cardinality", pa.int64(), "deletionVector.cardinality"),
    ("base_row_id", pa.int64(), "baseRowId"),
)
PLACES = {name: place for name, _, place in _FIELDS}
# A row for each live file. `uri` is null until `resolve_rows`, and mostly afterwards.
ADDS = pa.schema([*((name, kind) for name, kind, _ in _FIELDS), ("uri", pa.string())])
HINT_DOUBLED = (
    "Delta shows the file's rows as often, and Iceberg cannot. If its spellings differ, OPTIMIZE the table. If its "
    "deletion vectors differ, RESTORE an older version; or SET spark.databricks.delta.duplicateActionCheck.enabled = "
    "false, and then OPTIMIZE, or REORG TABLE … APPLY (PURGE). Then `dvsync resume` the table."
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
    recent_commits: Mapping[int, FileMeta]  # the last up to `version`, as they were listed before the state was read

    def size_in_delta(self, add: AddFile) -> int:
        """Return the size of a live file's data file, as Delta's totals count it."""
        return add.size

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

        `function` takes a part's number and its files, and may run in other processes. A part without files may be
        skipped. `on_progress` receives the number of parts done, and of all. The values may be iterated several times.
        """


def check_unique(files: Collection[LogicalFile]) -> None:
    """Raise `FileLiveTwice` if two live files are at one path: Delta shows the rows twice, Iceberg cannot."""
    if doubled := find_doubled(path for path, _ in files):
        path, count = doubled
        told = sorted(describe(identity) for other, identity in files if other == path)
        raise FileLiveTwice(
            f"the log has {count} live adds for the one path {path}: {'; '.join(told)}", path=path, hint=HINT_DOUBLED
        )


def check_rows(rows: pa.Table) -> None:
    """Raise as `check_unique` does for the live files in `rows`, which has resolved paths."""
    paths = rows["path"]
    if pc.count_distinct(paths).as_py() == len(paths):
        return
    counts = pc.value_counts(paths)
    path = counts.field("values").filter(pc.greater(counts.field("counts"), 1))[0]
    doubled = adds_from_batches(rows.filter(pc.equal(paths, path)).to_batches())
    check_unique([add.logical_file for add in doubled])


class Reconciliation:
    """Tells which logical files are live. Commits come from the newest to the oldest: a file's first action decides."""

    def __init__(self) -> None:
        self._added: set[LogicalFile] = set()
        self._removed: dict[LogicalFile, set[Identity]] = defaultdict(set)

    def take_commit(self, removes: Iterable[LogicalFile], adds: Collection[LogicalFile]) -> list[bool]:
        """Return for each add whether it is live. Raises as `is_live` does."""
        for path, identity in removes:
            self._removed[path, fold_identity(path, identity)].add(identity)
        live = [self.is_live(add) for add in adds]
        self._added.update(adds)
        return live

    def paths(self) -> set[str]:
        return {path for path, _ in (*self._added, *self._removed)}

    def is_live(self, file: LogicalFile) -> bool:
        """Return whether no commit so far decided about the file. Raises `FileLiveTwice` if nobody can tell."""
        if file in self._added:
            return False
        path, identity = file
        removed = self._removed.get((path, fold_identity(path, identity)), ())
        if not removed or identity in removed:
            return not removed
        raise FileLiveTwice(
            f"Delta removes {path} {min(map(describe, removed))}, and its add is {describe(identity)}: whether these "
            "are one file depends on the reader",
            path=path,
            hint="Remove the file with the path of its add, with the program that wrote the log, or overwrite its rows "
            "in Delta. Then `dvsync resume` the table.",
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
        **{column: [vector and getattr(vector, name) for vector in vectors] for column, name in DV_FIELDS.items()},
        "base_row_id": [add.base_row_id for add in rows],
        "uri": [add.uri for add in rows],
    }
    return pa.RecordBatch.from_pydict(columns, ADDS)


def resolve_rows(location: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Replace the columns `path` and `uri` as `name_file` does, and raises; `uri` may be missing."""
    paths = rows["path"]
    others = pc.invert(pc.match_substring_regex(paths, PLAIN_PATH))
    places = pc.binary_join_element_wise(location, paths, "/")
    uris = pa.nulls(len(paths), pa.string())
    if pc.any(others).as_py():
        named = [name_file(location, path) for path in paths.filter(others).to_pylist()]
        places = pc.replace_with_mask(places, others, pa.array([place for place, _ in named], pa.string()))
        uris = pc.replace_with_mask(uris, others, pa.array([uri for _, uri in named], pa.string()))
    columns = {**dict(zip(rows.schema.names, rows.columns, strict=True)), "path": places, "uri": uris}
    return pa.RecordBatch.from_pydict(columns)


def adds_from_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[AddFile]:
    """Turn rows with the columns of `ADDS`, after `resolve_rows`, into actions; `stats` may be missing."""
    for row in (row for batch in batches for row in batch.to_pylist()):
        descriptor = None
        if row["dv_storage_type"] is not None:
            descriptor = DeletionVectorDescriptor(**{name: row[column] for column, name in DV_FIELDS.items()})
        partition_values = dict(row["partition_values"] or ())
        if len(partition_values) < len(row["partition_values"] or ()):
            raise CorruptInput(
                "an add has two partition values for one column",
                path=row["path"],
                hint="Fix the program that wrote the log or its checkpoint.",
            )
        yield AddFile(
            path=row["path"],
            partition_values=partition_values,
            size=row["size"],
            data_change=False,
            stats=row.get("stats"),
            deletion_vector=descriptor,
            base_row_id=row["base_row_id"],
            uri=row["uri"],
        )
