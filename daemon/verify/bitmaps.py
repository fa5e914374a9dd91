"""The second level: compares the positions that Spark's Iceberg reader returns with those that Delta leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
from pyroaring import BitMap64

from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.position_set import as_bitmap
from daemon.spark.bitmaps import decode_bitmap
from daemon.store.storage import FileIOStorage
from daemon.verify.findings import POSITIONS_NAMED_MAX, Fault, Findings, Level, Sample
from daemon.verify.metadata import FilePair
from state import Difference

# Of deletion vectors that are decoded at a time.
VECTORS_AT_ONCE = 256


@dataclass(frozen=True)
class BitmapCheck:
    """`live` has what `aggregate_positions` found: a row for each data file of which the reader returns rows."""

    live: pa.Table
    storage: FileIOStorage
    location: str
    findings: Findings

    def compare(self, pairs: Sequence[FilePair], sample: Sample) -> None:
        """Compare the files of `pairs`, which are all files of `sample` in Delta, with those that have rows."""
        # The bitmaps stay in the file that Spark's answer is in.
        live = {
            path: (bitmap.as_buffer(), cardinality)
            for batch in self.live.to_batches()
            for path, bitmap, cardinality in zip(
                batch["file"].to_pylist(), batch["bitmap"], batch["cardinality"].to_pylist(), strict=True
            )
            if sample.has(path)
        }
        for start in range(0, len(pairs), VECTORS_AT_ONCE):
            some = pairs[start : start + VECTORS_AT_ONCE]
            descriptors = [pair.add.deletion_vector for pair in some if pair.add.deletion_vector]
            vectors = iter(read_position_sets(self.storage, self.location, descriptors))
            for pair in some:
                expected = BitMap64(range(pair.entry.data_file.record_count))
                if pair.add.deletion_vector:
                    expected -= as_bitmap(next(vectors))
                found = live.pop(pair.add.path, None)
                positions = decode_bitmap(pair.add.path, *found) if found else BitMap64()
                self._compare_file(pair.add.path, expected, positions)
        for path, (_, cardinality) in live.items():
            detail = f"Spark returns {cardinality} rows of the file, and Delta does not have it"
            self._found(Fault.FILE_SURPLUS, path, detail, ())

    def _compare_file(self, path: str, expected: BitMap64, found: BitMap64) -> None:
        missing, surplus = expected - found, found - expected
        if missing:
            self._found(Fault.ROWS_MISSING, path, f"Spark does not return {len(missing)} rows that Delta has", missing)
        if surplus:
            self._found(Fault.ROWS_SURPLUS, path, f"Spark returns {len(surplus)} rows that Delta has deleted", surplus)

    def _found(self, fault: Fault, path: str, detail: str, positions: BitMap64 | tuple[()]) -> None:
        first = tuple(islice(positions, POSITIONS_NAMED_MAX))
        self.findings.add(Difference(Level.BITMAPS, fault, path, detail, positions=first))
