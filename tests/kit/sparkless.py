"""A handmade table's state without a JVM: what `read_table_state` and Spark's tasks give, by a naive replay of the log.

First syncs, rebuilds and comparisons of whole states need Spark; the fault tests need hundreds of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from daemon.delta.actions import AddFile, Metadata, Protocol
from daemon.delta.log import DeltaLog
from daemon.delta.table_state import ADDS, Progress, TableState, adds_from_batch
from daemon.pipeline import state
from daemon.spark.session import SparkPipeline


def install(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Put these stand-ins where the product would call Spark; `replace` may be `MonkeyPatch.setattr`."""
    replace(SparkPipeline, "session", contextmanager(_no_session))
    replace(state, "read_table_state", read_table_state)


def _no_session(pipeline: SparkPipeline) -> Iterator[None]:
    yield None


@dataclass(frozen=True)
class HandmadeState(TableState):
    """The live files as rows of `ADDS`."""

    rows: pa.Table

    def read_adds(self, *, with_dv_only: bool = False) -> Iterator[AddFile]:
        rows = self.rows.drop_columns(["stats"])
        yield from self._adds(rows.filter(pc.is_valid(rows["dv_storage_type"])) if with_dv_only else rows)

    def find_adds(self, is_wanted: pa.BooleanArray) -> Iterator[AddFile]:
        yield from self._adds(self.rows.filter(is_wanted))

    def map_adds(
        self,
        function: Callable[[int, Iterable[AddFile]], Iterator[Any]],
        parts: int,
        progress: Progress | None = None,
        what: str = "parts",
    ) -> Sequence[Any]:
        assert parts == 1
        return list(function(0, self._adds(self.rows.sort_by("path"))))

    def _adds(self, rows: pa.Table) -> Iterator[AddFile]:
        for batch in rows.to_batches():
            yield from adds_from_batch(batch, self.location)


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
    return HandmadeState(
        location=log.location,
        version=len(commits) - 1,
        timestamp_ms=commits[-1].stat().st_mtime_ns // 1_000_000,
        protocol=msgspec.convert(newest["protocol"], Protocol),
        metadata=msgspec.convert(newest["metaData"], Metadata),
        files=len(live),
        rows=pa.Table.from_pylist([_columns(add) for add in live.values()], ADDS),
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
