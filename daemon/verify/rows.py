"""The third level: compares the values of all rows, column by column, as two readers return them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from daemon.spark.row_hashes import FILE, ROWS, differing_positions, has_positions, hash_rows, without_positions
from daemon.store.locations import canonical
from daemon.verify.findings import NAMED_MAX, POSITIONS_NAMED_MAX, Fault, Findings, Level, Sample
from state import Difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class RowCheck:
    """Compares the rows of Delta's own reader with those of Spark's Iceberg reader."""

    delta: DataFrame
    iceberg: DataFrame
    columns: Sequence[str]
    findings: Findings

    def compare(self, sample: Sample) -> None:
        """Compare the files of `sample`. Spark reads the files of the others as well."""
        rows = self.iceberg if has_positions(self.delta) else without_positions(self.iceberg)
        delta = _by_file(hash_rows(self.delta, self.columns), sample, is_encoded=True)
        iceberg = _by_file(hash_rows(rows, self.columns), sample, is_encoded=False)
        for path in sorted(delta.keys() | iceberg.keys()):
            ours, theirs = iceberg.get(path, {}), delta.get(path, {})
            if ours.get(ROWS, 0) != theirs.get(ROWS, 0):
                fault = Fault.ROWS_MISSING if ours.get(ROWS, 0) < theirs.get(ROWS, 0) else Fault.ROWS_SURPLUS
                detail = f"{ours.get(ROWS, 0)} rows in Iceberg, {theirs.get(ROWS, 0)} in Delta"
                self.findings.add(Difference(Level.ROWS, fault, path, detail))
                continue
            for number, column in enumerate(self.columns):
                if ours[f"h{number}"] != theirs[f"h{number}"]:
                    self._found_values(path, theirs[FILE], column)

    def _found_values(self, path: str, encoded: str, column: str) -> None:
        positions: list[int] = []
        if self.findings.counts[Fault.VALUES] < NAMED_MAX and has_positions(self.delta):
            ours = self.iceberg.where(self.iceberg[FILE] == path)
            theirs = self.delta.where(self.delta[FILE] == encoded)
            positions = differing_positions(ours, theirs, column, POSITIONS_NAMED_MAX)
        detail = "the readers return different values"
        self.findings.add(Difference(Level.ROWS, Fault.VALUES, path, detail, column, tuple(positions)))


def _by_file(hashes: pa.Table, sample: Sample, *, is_encoded: bool) -> Mapping[str, dict[str, Any]]:
    rows = (row for batch in hashes.to_batches() for row in batch.to_pylist())
    named = ((canonical(unquote(row[FILE])) if is_encoded else row[FILE], row) for row in rows)
    return {path: row for path, row in named if sample.has(path)}
