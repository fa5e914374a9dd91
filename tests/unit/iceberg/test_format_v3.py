"""What PyIceberg lacks for format version 3. A failure here says that a new PyIceberg can do it by itself."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV3
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.types import ListType, MapType, NestedField, StringType, StructType

from daemon.iceberg.pyiceberg_ext.format_v3 import allow_version_3, next_row_id
from daemon.iceberg.pyiceberg_ext.variant import VariantType, know_variant
from tests.kit.handmade import Bench, HandmadeTable

UNPATCHED = """
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import update
from pyiceberg.schema import Schema
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


def test_pyiceberg_still_knows_no_variant() -> None:
    """If this fails, PyIceberg has the type: see what of `variant.py` can go."""
    script = "from pyiceberg.schema import Schema; Schema.model_validate_json(input())"
    schema = '{"type": "struct", "fields": [{"id": 1, "name": "v", "type": "variant", "required": false}]}'
    ended = subprocess.run([sys.executable, "-c", script], input=schema, capture_output=True, text=True, check=False)
    assert "Unsupported field type: 'variant'" in ended.stderr


def test_a_schema_with_variants_is_what_its_json_says() -> None:
    """Iceberg spec, "Appendix C": wherever a type is named, and in another process, as Spark's tasks have it."""
    know_variant()
    know_variant()  # A second call changes nothing.
    inner = StructType(NestedField(3, "variant", VariantType(), required=True, doc="variant"))
    fields = (
        NestedField(1, "v", VariantType()),
        NestedField(2, "s", inner),
        NestedField(4, "l", ListType(5, VariantType())),
        NestedField(6, "m", MapType(7, StringType(), 8, VariantType())),
    )
    schema = Schema(*fields)
    written = json.loads(schema.model_dump_json())["fields"]
    assert [written[0]["type"], written[1]["type"]["fields"][0]["type"]] == ["variant", "variant"]
    assert [written[2]["type"]["element"], written[3]["type"]["value"]] == ["variant", "variant"]
    assert Schema.model_validate_json(schema.model_dump_json()) == schema
    script = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).find_type('l.element'))"
    ended = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(schema), capture_output=True, check=True)
    assert ended.stdout == b"variant\n"


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
