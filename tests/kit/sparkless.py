"""A handmade table's state without a JVM: what `read_table_state` and Spark's tasks give, by a naive replay of the log.

First syncs, rebuilds and comparisons of whole states need Spark; the fault tests need hundreds of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from daemon.delta.actions import Metadata, Protocol
from daemon.delta.log import DeltaLog
from daemon.pipeline import data_manifests
from daemon.pipeline.data_manifests import ManifestTask
from daemon.spark import table_state
from daemon.spark.session import SparkPipeline
from daemon.spark.table_state import TableState, adds_from_batch
from daemon.sync import first_sync, follower, recovery

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
    ]
)


def install(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Put these stand-ins where the product would call Spark; `replace` may be `MonkeyPatch.setattr`."""
    replace(SparkPipeline, "session", contextmanager(_no_session))
    replace(first_sync, "read_table_state", read_table_state)
    replace(recovery, "read_table_state", read_table_state)
    replace(follower, "read_table_state", read_table_state)
    replace(recovery, "select_paths", select_paths)
    replace(recovery, "collect", Frame.collect)
    replace(table_state, "collect", Frame.collect)
    replace(data_manifests, "run_on_spark", run_in_process)
    replace(data_manifests, "watched", lambda *_: nullcontext())


def _no_session(pipeline: SparkPipeline) -> Iterator[None]:
    yield None


@dataclass(frozen=True)
class Frame:
    """As much of a DataFrame as is asked of `TableState.adds`."""

    rows: pa.Table

    def where(self, condition: str) -> Frame:
        assert condition == "dv_storage_type IS NOT NULL"
        return Frame(self.rows.filter(pc.is_valid(self.rows["dv_storage_type"])))

    def drop(self, column: str) -> Frame:
        return Frame(self.rows.drop_columns([column]))

    def repartitionByRange(self, partitions: int, column: str) -> Frame:
        assert partitions == 1
        return self

    def sortWithinPartitions(self, column: str) -> Frame:
        return Frame(self.rows.sort_by(column))

    def collect(self) -> pa.Table:
        return self.rows


def read_table_state(spark: None, log: DeltaLog, version: int | None = None) -> TableState:
    commits = sorted(Path(log.folder.removeprefix("file://")).glob("*.json"))[
        : None if version is None else version + 1
    ]
    live: dict[str, dict[str, Any]] = {}
    newest: dict[str, Any] = {}
    for commit in commits:
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            remove = action.get("remove")
            if remove and remove["path"] in live and _dv_of(remove) == _dv_of(live[remove["path"]]):
                del live[remove["path"]]
        for action in actions:
            newest.update(action)
            if add := action.get("add"):
                live[add["path"]] = add
    return TableState(
        version=len(commits) - 1,
        timestamp_ms=commits[-1].stat().st_mtime_ns // 1_000_000,
        protocol=msgspec.convert(newest["protocol"], Protocol),
        metadata=msgspec.convert(newest["metaData"], Metadata),
        files=len(live),
        adds=Frame(pa.Table.from_pylist([_columns(add) for add in live.values()], ADDS)),  # type: ignore[arg-type]
    )


def _dv_of(action: dict[str, Any]) -> tuple[Any, ...]:
    """What tells the deletion vectors of one path apart. PROTOCOL.md, "Action Reconciliation"."""
    dv = action.get("deletionVector") or {}
    return dv.get("storageType"), dv.get("pathOrInlineDv"), dv.get("offset")


def _columns(add: dict[str, Any]) -> dict[str, Any]:
    dv = add.get("deletionVector") or {}
    return {
        "path": add["path"],
        "partition_values": list(add["partitionValues"].items()),
        "size": add["size"],
        "stats": add.get("stats"),
        "dv_storage_type": dv.get("storageType"),
        "dv_path": dv.get("pathOrInlineDv"),
        "dv_offset": dv.get("offset"),
        "dv_size": dv.get("sizeInBytes"),
        "dv_cardinality": dv.get("cardinality"),
    }


def select_paths(state: TableState, paths: Iterable[str]) -> Frame:
    rows = state.adds.collect()
    return Frame(rows.filter(pc.is_in(rows["path"], pa.array(sorted(paths), pa.string()))))


def run_in_process(frame: Frame, task: ManifestTask, schema: pa.Schema) -> Sequence[pa.RecordBatch]:
    adds = [add for batch in frame.collect().to_batches() for add in adds_from_batch(batch)]
    return [task._write(task.paths[0], adds)] if adds else []
