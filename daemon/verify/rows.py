"""The second and the third level: compares the rows, by position and by value, that readers of both tables return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyroaring import BitMap64

from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.position_set import as_bitmap
from daemon.mirror.substitution import Mirrors
from daemon.spark.bitmaps import decode_bitmap
from daemon.spark.row_hashes import FILE, ROWS, differing_positions, has_positions, hash_rows, without_positions
from daemon.store.locations import canonical
from daemon.sync.context import TableContext
from daemon.verify.findings import NAMED_MAX, POSITIONS_NAMED_MAX, Fault, Findings, Level, Sample
from daemon.verify.metadata import FilePair
from state import Difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of deletion vectors that are decoded at a time.
VECTORS_AT_ONCE = 256


def compare_positions(
    context: TableContext, live: pa.Table, pairs: Sequence[FilePair], sample: Sample, findings: Findings
) -> None:
    """Compare the files of `pairs`, which are all files of `sample` in Delta, with those that Iceberg's readers return.

    `live` has what `aggregate_positions` found: a row for each data file of which Spark's Iceberg reader returns rows.
    """

    def found(fault: Fault, path: str, detail: str, positions: Iterable[int] = ()) -> None:
        first = tuple(islice(positions, POSITIONS_NAMED_MAX))
        findings.add(Difference(Level.BITMAPS, fault, path, detail, positions=first))

    # The bitmaps stay in the file that Spark's answer is in.
    returned = {
        path: (bitmap.as_buffer(), cardinality)
        for batch in live.to_batches()
        for path, bitmap, cardinality in zip(
            batch["file"].to_pylist(), batch["bitmap"], batch["cardinality"].to_pylist(), strict=True
        )
        if sample.has(path)
    }
    for start in range(0, len(pairs), VECTORS_AT_ONCE):
        some = pairs[start : start + VECTORS_AT_ONCE]
        descriptors = [pair.add.deletion_vector for pair in some if pair.add.deletion_vector]
        vectors = iter(read_position_sets(context.storage, context.location, descriptors))
        for pair in some:
            path, expected = pair.add.path, BitMap64(range(pair.entry.data_file.record_count))
            if pair.add.deletion_vector:
                expected -= as_bitmap(next(vectors))
            bitmap = returned.pop(path, None)
            positions = decode_bitmap(path, *bitmap) if bitmap else BitMap64()
            if missing := expected - positions:
                found(Fault.ROWS_MISSING, path, f"Spark does not return {len(missing)} rows that Delta has", missing)
            if surplus := positions - expected:
                found(Fault.ROWS_SURPLUS, path, f"Spark returns {len(surplus)} rows that Delta has deleted", surplus)
    for path, (_, cardinality) in returned.items():
        found(Fault.FILE_SURPLUS, path, f"Spark returns {cardinality} rows of the file, and Delta does not have it")


def compare_rows(
    delta: DataFrame,
    iceberg: DataFrame,
    columns: Sequence[str],
    sample: Sample,
    findings: Findings,
    *,
    mirrors: Mirrors,
) -> None:
    """Compare the rows in the files of `sample`, as Delta's own reader and Spark's Iceberg reader return all rows."""
    rows = iceberg if has_positions(delta) else without_positions(iceberg)
    delta_hashes = _by_file(hash_rows(delta, columns), sample, lambda file: mirrors.place_of(canonical(unquote(file))))
    iceberg_hashes = _by_file(hash_rows(rows, columns), sample, str)
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


def _by_file(hashes: pa.Table, sample: Sample, path_of: Callable[[str], str]) -> Mapping[str, dict[str, Any]]:
    rows = (row for batch in hashes.to_batches() for row in batch.to_pylist())
    named = ((path_of(row[FILE]), row) for row in rows)
    return {path: row for path, row in named if sample.has(path)}
