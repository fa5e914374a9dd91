"""Rewrites a shared delete file without the data files that leave."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.errors import CorruptInput
from daemon.iceberg.position_deletes import PositionDeleteFile, PositionDeleteWriter
from daemon.iceberg.pyiceberg_ext.file_io import S3FileIO
from daemon.store.storage import FileIOStorage
from daemon.translate.delete_files import Rewrite


def rewrite_delete_file(rewrite: Rewrite, properties: Mapping[str, str]) -> PositionDeleteFile:
    """Write the positions that `rewrite` keeps, with one row group in memory at a time.

    `properties` are those of the Iceberg table's FileIO. Raises `CorruptInput` when the old file does not hold the
    recorded positions; nothing refers to the new file then.
    """
    with (
        FileIOStorage(properties).open_input(rewrite.old.path) as source,
        PositionDeleteWriter(S3FileIO(dict(properties)), rewrite.output_path) as writer,
    ):
        parquet = pq.ParquetFile(source)
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, columns=["file_path", "pos"])
            # Sorted by data file, so each one's rows are together and in order.
            for path in pc.unique(rows["file_path"]).to_pylist():
                if path in rewrite.kept:
                    positions = rows.filter(pc.equal(rows["file_path"], path))["pos"].combine_chunks()
                    values = memoryview(positions.buffers()[1]).cast("q")
                    writer.write(path, values[positions.offset :][: len(positions)])
        written = writer.finish()
    expected = {mapping.data_file: mapping.positions for mapping in rewrite.old.mappings}
    for path, positions in written.data_files:
        if positions != expected[path]:
            raise CorruptInput(
                f"the delete file holds {positions} positions of {path}, but {expected[path]} are recorded",
                path=rewrite.old.path,
                hint="Run `dvsync resync`, which rewrites the Iceberg table from Delta.",
            )
    return written
