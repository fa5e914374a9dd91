"""Read a table of `make demo` with PyIceberg and Polars: `python examples/read_iceberg.py [demo]`."""

from __future__ import annotations

import sys
from pathlib import Path

import polars
from pyiceberg.catalog import load_catalog

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo").absolute()
catalog = load_catalog("local", type="sql", uri=f"sqlite:///{folder}/catalog.db")
orders = catalog.load_table("sales.orders")

print("PyIceberg:", orders.scan(row_filter="region = 'north'").to_arrow().num_rows, "orders in the north")
print(polars.scan_iceberg(orders).group_by("status").len().sort("status").collect())
for snapshot in orders.snapshots():
    summary = snapshot.summary
    if summary is not None:
        print(
            f"Delta version {summary['dvsync.delta.version']}: {summary.operation.value}, "
            f"{summary['total-records']} rows, {summary['total-position-deletes']} deleted"
        )
