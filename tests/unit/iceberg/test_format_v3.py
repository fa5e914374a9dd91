"""What PyIceberg lacks for format version 3. A failure here says that a new PyIceberg can do it by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV3
from pyiceberg.table.update import UpgradeFormatVersionUpdate

from daemon.iceberg.pyiceberg_ext.format_v3 import allow_version_3, next_row_id
from tests.kit.handmade import Bench, HandmadeTable

UNPATCHED = """
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import update
from pyiceberg.table.metadata import TableMetadataV3

assert update.SUPPORTED_TABLE_FORMAT_VERSION == 2
catalog = SqlCatalog("c", uri="sqlite:///:memory:", warehouse="file://FOLDER")
catalog.create_namespace("n")
try:
    catalog.create_table("n.t", Schema(), properties={"format-version": "3"})
except NotImplementedError:
    print("blocked")
"""


def test_pyiceberg_still_blocks_version_3(tmp_path: Path) -> None:
    """If this fails, PyIceberg writes version 3: see what of `format_v3.py` can go."""
    script = UNPATCHED.replace("FOLDER", str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stdout == "blocked\n", ended.stderr


def test_row_ids_start_at_zero_and_never_come_back(tmp_path: Path) -> None:
    """Iceberg spec, "Row Lineage": `next-row-id` grows by each snapshot's `added-rows`."""
    table = HandmadeTable(tmp_path / "lake")
    table.create()
    bench = Bench(tmp_path / "bench", table.location, table_options={"format_version": 3})
    bench.first_sync_empty(table)
    assert next_row_id(bench.iceberg().metadata) == 0
    for number in range(3):
        table.commit([table.add(table.write_file([(10 * number + row, "x", "y") for row in range(5)]))])
        bench.sync()
    metadata = bench.iceberg().metadata
    assert isinstance(metadata, TableMetadataV3) and metadata.next_row_id == 15
    spans = [(each.first_row_id, each.added_rows) for each in metadata.snapshots]
    assert spans == [(0, 0), (0, 5), (5, 5), (10, 5)]
    on_disk = TableMetadataUtil.parse_raw(Path(bench.iceberg().metadata_location.removeprefix("file://")).read_text())
    assert on_disk == metadata
    bench.close()


def test_an_upgrade_keeps_row_ids_and_there_is_no_way_down(tmp_path: Path) -> None:
    allow_version_3()
    allow_version_3()  # A second call changes nothing.
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("n")
    table = HandmadeTable(tmp_path / "lake")
    table.create()
    bench = Bench(tmp_path / "bench", table.location)
    bench.first_sync_empty(table)
    iceberg = bench.iceberg()
    iceberg._do_commit(updates=(UpgradeFormatVersionUpdate(format_version=3),), requirements=())
    assert (iceberg.metadata.format_version, next_row_id(iceberg.metadata)) == (3, 0)
    with pytest.raises(ValueError, match="Cannot downgrade"):
        iceberg._do_commit(updates=(UpgradeFormatVersionUpdate(format_version=2),), requirements=())
    catalog.close()
    bench.close()
