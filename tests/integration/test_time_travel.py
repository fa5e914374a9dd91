"""What older snapshots show once the columns have changed: what Delta's own time travel does, or they are gone."""

from __future__ import annotations

from pathlib import Path

import polars
import pyarrow as pa

from tests.kit.follow import Followed
from tests.kit.readers import assert_same_rows, duckdb_connection, read_iceberg, rows_of
from tests.kit.service import Service

PLAIN = "'delta.columnMapping.mode' = 'none'"
MAPPED = "'delta.columnMapping.mode' = 'name'"
CREATE = "TABLE {t} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', %s) AS SELECT %s FROM range(10)"
FIRST, SECOND = "id, concat('n', id) AS name, id AS number", "concat('s', id) AS id, id AS number, id + 1 AS more"


def check_history(table: Followed) -> list[int]:
    """Every reader shows at each snapshot what Delta shows at its version. Returns the versions, the oldest first."""
    iceberg = table.bench.iceberg()
    versions = []
    for snapshot in sorted(iceberg.snapshots(), key=lambda each: each.sequence_number or 0):
        assert snapshot.summary is not None and snapshot.schema_id is not None
        version, snapshot_id = int(str(snapshot.summary["dvsync.delta.version"])), snapshot.snapshot_id
        fields = iceberg.schemas()[snapshot.schema_id].fields
        delta = table.writer.delta(table.source, version)
        by_duckdb = duckdb_connection().execute(
            "SELECT * FROM iceberg_scan(?, snapshot_from_id => ?)", [iceberg.metadata_location, snapshot_id]
        )
        found: dict[str, pa.Table] = {
            "PyIceberg": iceberg.scan(snapshot_id=snapshot_id).to_arrow(),
            "Spark": table.writer.spark(read_iceberg, iceberg.metadata_location, ("*",), snapshot_id),
            "Polars": polars.scan_iceberg(iceberg, snapshot_id=snapshot_id).collect().to_arrow(),
            "DuckDB": by_duckdb.to_arrow_table(),
        }
        for reader, rows in found.items():
            assert_same_rows(rows_of(rows, fields), rows_of(delta, fields), reader, f"version {version}")
        versions.append(version)
    return versions


def told(table: Followed) -> list[list[str]]:
    """The columns for which the daemon says that it expired snapshots."""
    lines = [line for line in table.service.daemon.lines if line["event"] == "snapshots.expired"]
    return [line["columns"] for line in lines if line["table"] == table.bench.name]


def test_a_column_of_another_type(service: Service, tmp_path: Path) -> None:
    """The snapshots that would show it as null leave with the commit that makes it so; what comes later stays."""
    table = Followed(service, tmp_path)
    table.step("CREATE " + CREATE % (PLAIN, FIRST))
    table.step("DELETE FROM {t} WHERE id % 5 = 0")
    assert check_history(table) == [0, 1]
    table.step("CREATE OR REPLACE " + CREATE % (PLAIN, SECOND))
    table.step("DELETE FROM {t} WHERE number > 6")
    assert check_history(table) == [2, 3]
    assert told(table) == [["id"]]
    table.step("RESTORE TABLE {t} TO VERSION AS OF 1")
    assert check_history(table) == [4]
    assert told(table) == [["id"], ["id"]]


def test_column_mapping_keeps_the_history(service: Service, tmp_path: Path) -> None:
    """Switched on midway, the table replaced then: Delta counts on, and no column takes the place of another one."""
    table = Followed(service, tmp_path)
    table.step("CREATE " + CREATE % (PLAIN, FIRST))
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 5 = 0")
    table.step("CREATE OR REPLACE " + CREATE % (MAPPED, SECOND))
    table.step("CREATE OR REPLACE " + CREATE % (MAPPED, FIRST))
    assert check_history(table) == [0, 2, 3, 4]
    assert told(table) == []


def test_column_mapping_that_comes_with_another_table(service: Service, tmp_path: Path) -> None:
    """Delta counts the columns anew: the older files have names only, and their ids are other columns' now."""
    table = Followed(service, tmp_path)
    table.step("CREATE " + CREATE % (PLAIN, FIRST))
    table.step("DELETE FROM {t} WHERE id % 5 = 0")
    table.step("CREATE OR REPLACE " + CREATE % (MAPPED, SECOND))
    table.step("DELETE FROM {t} WHERE number > 6")
    assert check_history(table) == [2, 3]
    assert told(table) == [["id", "name", "number"]]
