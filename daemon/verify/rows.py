"""The third level: compares the values of all rows, column by column, as two readers return them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from daemon.spark.row_hashes import FILE, ROWS, differing_positions, has_positions, hash_rows, without_positions
from daemon.store.locations import canonical
from daemon.verify.findings import NAMED_MAX, POSITIONS_NAMED_MAX, Fault, Findings, Level, Sample
from state import Difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compare_rows(
    delta: DataFrame, iceberg: DataFrame, columns: Sequence[str], sample: Sample, findings: Findings
) -> None:
    """Compare the rows of Delta's own reader with those of Spark's Iceberg reader, in the files of `sample`.

    Spark reads the files of the others as well.
    """
    rows = iceberg if has_positions(delta) else without_positions(iceberg)
    delta_hashes = _by_file(hash_rows(delta, columns), sample, is_encoded=True)
    iceberg_hashes = _by_file(hash_rows(rows, columns), sample, is_encoded=False)
    for path in sorted(delta_hashes.keys() | iceberg_hashes.keys()):
        ours, theirs = iceberg_hashes.get(path, {}), delta_hashes.get(path, {})
        if ours.get(ROWS, 0) != theirs.get(ROWS, 0):
            fault = Fault.ROWS_MISSING if ours.get(ROWS, 0) < theirs.get(ROWS, 0) else Fault.ROWS_SURPLUS
            detail = f"{ours.get(ROWS, 0)} rows in Iceberg, {theirs.get(ROWS, 0)} in Delta"
            findings.add(Difference(Level.ROWS, fault, path, detail))
            continue
        for column in (name for number, name in enumerate(columns) if ours[f"h{number}"] != theirs[f"h{number}"]):
            positions: list[int] = []
            if findings.counts[Fault.VALUES] < NAMED_MAX and has_positions(delta):
                both = iceberg.where(iceberg[FILE] == path), delta.where(delta[FILE] == theirs[FILE])
                positions = differing_positions(*both, column, POSITIONS_NAMED_MAX)
            detail = "the readers return different values"
            findings.add(Difference(Level.ROWS, Fault.VALUES, path, detail, column, tuple(positions)))


def _by_file(hashes: pa.Table, sample: Sample, *, is_encoded: bool) -> Mapping[str, dict[str, Any]]:
    rows = (row for batch in hashes.to_batches() for row in batch.to_pylist())
    named = ((canonical(unquote(row[FILE])) if is_encoded else row[FILE], row) for row in rows)
    return {path: row for path, row in named if sample.has(path)}
