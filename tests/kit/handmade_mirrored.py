"""Handmade tables of which some files need mirrors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.handmade import HandmadeTable, new_uuid

FIELD_ID = "PARQUET:field_id"


def with_wrong_ids(schema: pa.Schema) -> pa.Schema:
    """Field ids of other columns, which all readers but Delta's believe."""
    return pa.schema([field.with_metadata({FIELD_ID: str(10 + number)}) for number, field in enumerate(schema)])


@dataclass
class Mirrored(HandmadeTable):
    """Of three files, one needs a mirror with a new footer, one a copy under another name, and one none."""

    def write_file(self, rows: Sequence[tuple[int, str, str]], *, name: str | None = None) -> str:
        number = len(self.rows) % 3
        path = super().write_file(rows, name=name or (f"part#{new_uuid()}" if number == 1 else None))
        if number == 0:
            # A table that is partitioned lacks a column in its files.
            stored = pq.ParquetFile(self.folder / path).read()
            pq.write_table(stored.cast(with_wrong_ids(stored.schema)), self.folder / path)
        return path
