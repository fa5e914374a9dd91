"""Mark the rows of a condition in new deletion vectors, without Delta's writer, and print them.

After `make demo`: `python examples/write_deletion_vectors.py [demo/config.yaml] [sales.orders] ["amount < 100"]`.
The configuration names the table, its store and the Spark master. Nothing is committed, so the table's rows stay;
the file with the vectors stays in its folder until VACUUM removes it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import unquote

import msgspec

from daemon.clock import SystemClock
from daemon.config.load import load_settings
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import load_log_segment
from daemon.delta.snapshot import replay
from daemon.spark.bitmaps import DataFileRows, aggregate_positions, write_deletion_vectors
from daemon.spark.failures import known_errors
from daemon.spark.hadoop import with_stores
from daemon.spark.scan import MARKER, read_delta
from daemon.spark.session import SparkPipeline
from daemon.store.locations import canonical
from daemon.store.storage import FileIOStorage

config, name, condition = [*sys.argv[1:], *["demo/config.yaml", "sales.orders", "amount < 100"][len(sys.argv) - 1 :]]
settings = load_settings(Path(config))
(table,) = (each for each in settings.tables if each.name == name)
properties = settings.file_properties(table.catalog)

# A later version may change these files: a writer must check that before it commits the new vectors.
storage = FileIOStorage(properties)
log = DeltaLog(storage, table.source, SystemClock())
state = replay(log, load_log_segment(log))
assert state is not None
older = {add.path: add.deletion_vector for add in state.read_adds()}

pipeline = SparkPipeline(with_stores(settings))
with pipeline.session() as spark, known_errors():
    everything = read_delta(spark, table.source, version=state.version, properties=properties, keep_deleted=True)
    rows = everything.selectExpr("*", "_metadata.file_path AS file", "_metadata.row_index AS position")
    counts = {row["file"]: row["count"] for row in rows.groupBy("file").count().collect()}
    # Spark encodes the paths as URLs.
    files = {file: DataFileRows(count, older[canonical(unquote(file))]) for file, count in counts.items()}
    marked = rows.where(f"{MARKER} = 0 AND ({condition})")
    bitmaps = aggregate_positions(marked, file="file", position="position")
    vectors = list(write_deletion_vectors(bitmaps, files, location=table.source, properties=properties))
pipeline.close()

for vector in vectors:
    print(msgspec.json.encode(vector).decode())
print(f"{len(vectors)} of the {len(files)} data files of version {state.version} have rows where {condition}.")
print(
    "A writer would commit for each a remove, and an add with the descriptor if there is one; see examples/README.md."
)
