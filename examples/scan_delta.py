"""Read a Delta table without Delta's reader: `python examples/scan_delta.py [demo/lake/orders]`, after `make demo`."""

from __future__ import annotations

import sys

from daemon.config.settings import SparkSettings
from daemon.spark.failures import known_errors
from daemon.spark.scan import MARKER, read_delta
from daemon.spark.session import SparkPipeline

location = sys.argv[1] if len(sys.argv) > 1 else "demo/lake/orders"
pipeline = SparkPipeline(SparkSettings(master="local[2]"))
with pipeline.session() as spark, known_errors():
    orders = read_delta(spark, location)
    orders.explain()
    print(orders.count(), "rows; in the files:")
    read_delta(spark, location, keep_deleted=True).groupBy(MARKER).count().show()
pipeline.close()
