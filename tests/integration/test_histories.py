"""Real Delta histories by Spark SQL: after every version all readers show Delta's rows, by one snapshot or none."""

from __future__ import annotations

from pathlib import Path

import polars
import pytest

from tests.kit.follow import Followed
from tests.kit.readers import read_polars_native
from tests.kit.service import Service

CREATE = """
    CREATE TABLE {t} (id BIGINT, name STRING, amount DECIMAL(12, 3), score DOUBLE, seen TIMESTAMP, noted TIMESTAMP_NTZ,
        raw BINARY, place STRUCT<city: STRING, tags: ARRAY<STRING>>, counts MAP<STRING, INT>,
        part STRING, day DATE, num INT)
    USING delta {partitioned} TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '100')
"""
PARTITIONED = "PARTITIONED BY (part, day, num)"
# Ids in `slices` runs, so that each file of an unpartitioned table has a run of its own; three partitions.
ROWS = """
    SELECT id, concat('name-', id, if(id % 4 = 0, ' é', '')) AS name,
        if(id % 9 = 0, NULL, CAST(id * 1.125 AS DECIMAL(12, 3))) AS amount, id / 3.0D AS score,
        timestamp_micros(1577836800123456 + id * 1000001) AS seen,
        if(id % 6 = 0, NULL, CAST(timestamp_micros(id * 61000001 - 100000000000007) AS TIMESTAMP_NTZ)) AS noted,
        CAST(concat('raw', id) AS BINARY) AS raw,
        named_struct('city', concat('c', id % 2), 'tags', array('x', CAST(id AS STRING))) AS place,
        map('k', CAST(id AS INT), 'l', NULL) AS counts,
        element_at(array('a b/c=d%é#?', NULL, 'plain'), CAST(id % 3 AS INT) + 1) AS part,
        element_at(array(DATE'1960-02-29', DATE'2024-02-29', NULL), CAST(id % 3 AS INT) + 1) AS day,
        CAST(id % 3 AS INT) - 1 AS num
    FROM range({start}, {end}, 1, {slices})
"""
MERGE = """
    MERGE INTO {t} t USING ({source}) s ON t.id = s.id
    WHEN MATCHED AND t.id % 2 = 0 THEN DELETE
    WHEN MATCHED THEN UPDATE SET name = concat(s.name, ' merged'), amount = s.amount
    WHEN NOT MATCHED THEN INSERT *
    WHEN NOT MATCHED BY SOURCE AND t.id % 13 = 5 THEN UPDATE SET name = 'lonely'
    WHEN NOT MATCHED BY SOURCE AND t.id % 13 = 6 THEN DELETE
"""


def rows(start: int, end: int, slices: int = 1) -> str:
    return ROWS.format(start=start, end=end, slices=slices)


@pytest.mark.parametrize(
    ("partitioned", "granularity"),
    [
        pytest.param(False, "file", id="whole-file", marks=pytest.mark.long),
        pytest.param(True, "partition", id="partitioned-partition"),
    ],
)
def test_long_history(service: Service, tmp_path: Path, partitioned: bool, granularity: str) -> None:
    """Each version is one snapshot with Delta's rows in all readers, or none when it changes no rows."""
    table = Followed(service, tmp_path, granularity, with_vectors=True)
    table.step(CREATE.format(t="{t}", partitioned=PARTITIONED if partitioned else ""), operation="append")
    table.step(f"INSERT INTO {{t}} {rows(0, 60, 2)}", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 0", operation="delete")
    table.step("UPDATE {t} SET name = 'updated', score = 'NaN' WHERE id % 10 = 3", operation="overwrite")
    table.step(MERGE.format(t="{t}", source=rows(50, 70)), operation="overwrite")
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")

    table.commit_by_hand(*({"add": {**add, "dataChange": False, "tags": {}}} for add in table.live_adds().values()))
    table.step(snapshots=0)  # version 6: ANALYZE adds what is there again, with fresh statistics

    table.step("RESTORE TABLE {t} TO VERSION AS OF 3", spark=True)  # deletion vectors shrink
    table.step("RESTORE TABLE {t} TO VERSION AS OF 1")  # and disappear
    table.step("RESTORE TABLE {t} TO VERSION AS OF 5", spark=True)  # files return, with deletion vectors
    table.step("DELETE FROM {t} WHERE id < 30", operation="delete")  # all rows of some files
    table.step("OPTIMIZE {t}", operation="replace")
    table.step("DELETE FROM {t} WHERE id % 11 = 0", operation="delete")
    table.step("RESTORE TABLE {t} TO VERSION AS OF 10")  # files from before OPTIMIZE return
    table.step("ALTER TABLE {t} ADD COLUMN extra INT", snapshots=0)
    table.step(f"INSERT INTO {{t}} SELECT *, 7 FROM ({rows(100, 120)})", operation="append")
    table.step("UPDATE {t} SET extra = 9 WHERE id % 4 = 0", operation="overwrite")
    table.step("REORG TABLE {t} APPLY (PURGE)", operation="replace")
    assert not table.image.delete_files
    table.step(f"INSERT OVERWRITE {{t}} SELECT *, 1 FROM ({rows(200, 220)})", operation="overwrite")
    table.step("DELETE FROM {t} WHERE id > 203")
    table.step("DELETE FROM {t}", operation="delete")
    assert not table.image.data_files and not table.image.delete_files
    table.step(f"INSERT INTO {{t}} SELECT *, 2 FROM ({rows(0, 9)})", operation="append")
    table.check_leftovers()


@pytest.mark.parametrize(
    ("partitioned", "granularity"),
    [
        pytest.param(False, "partition", id="whole-partition", marks=pytest.mark.long),
        pytest.param(True, "file", id="partitioned-file"),
    ],
)
def test_deletions(service: Service, tmp_path: Path, partitioned: bool, granularity: str) -> None:
    """Deletions that grow, leave with their files, shrink and return are shown with either granularity."""
    table = Followed(service, tmp_path, granularity, with_vectors=True)
    create = CREATE.format(t="{t}", partitioned=PARTITIONED if partitioned else "")
    table.sql(create)
    table.step(f"INSERT INTO {{t}} {rows(0, 60, 3)}", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 0", operation="delete")
    if granularity == "partition":
        # The day this fails, `unfit_readers` has had its time.
        with pytest.raises(polars.exceptions.ComputeError, match="position delete file not limited to one data file"):
            read_polars_native(table.bench.iceberg())
    table.step("UPDATE {t} SET name = 'updated' WHERE id % 10 = 3", operation="overwrite")
    table.step("DELETE FROM {t} WHERE id < 20 OR id % 5 = 0", operation="delete")
    table.step("RESTORE TABLE {t} TO VERSION AS OF 2", operation="overwrite", spark=True)
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")
    table.step("OPTIMIZE {t}", operation="replace")
    table.step("RESTORE TABLE {t} TO VERSION AS OF 4")
    table.step("DELETE FROM {t} WHERE id % 7 = 3")
    table.check_leftovers()


def test_schema_evolution(service: Service, tmp_path: Path) -> None:
    """Columns that are renamed, dropped, added and widened show Delta's values, in old files and new ones."""
    table = Followed(service, tmp_path, with_vectors=True)
    table.step(
        "CREATE TABLE {t} (id INT, place STRUCT<city: STRING, floor: INT>, name STRING, price FLOAT,"
        " amount DECIMAL(6, 2)) USING delta TBLPROPERTIES"
        " ('delta.enableDeletionVectors' = 'true', 'delta.enableTypeWidening' = 'true')"
    )
    values = "id, named_struct('city', concat('c', id), 'floor', CAST(id AS INT)), concat('n', id), id / 4, id / 3"
    table.step(f"INSERT INTO {{t}} SELECT {values} FROM range(0, 20, 1, 1)", operation="append")
    table.step("DELETE FROM {t} WHERE id % 5 = 0", operation="delete")
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", snapshots=0)
    table.step("ALTER TABLE {t} RENAME COLUMN name TO title", snapshots=0)
    table.step(f"INSERT INTO {{t}} SELECT {values} FROM range(20, 30, 1, 1)", operation="append")
    table.step("ALTER TABLE {t} ADD COLUMNS (name STRING AFTER id, place.zip INT FIRST)", snapshots=0)
    table.step("UPDATE {t} SET name = 'new' WHERE id % 4 = 1", operation="overwrite")
    table.step("ALTER TABLE {t} DROP COLUMNS (title, place.floor)", snapshots=0)
    table.step("ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT", snapshots=0)
    table.step("ALTER TABLE {t} ALTER COLUMN amount TYPE DECIMAL(9, 2)", snapshots=0)
    table.step(
        "INSERT INTO {t} SELECT id, concat('n', id), named_struct('zip', 1, 'city', 'x'), 0, 1234567"
        " FROM range(3000000000, 3000000005, 1, 1)",
        operation="append",
    )
    table.step("DELETE FROM {t} WHERE id % 3 = 0", operation="delete")


def test_replaced_table(service: Service, tmp_path: Path) -> None:
    """A table replaced by one of other columns and partitions, and restored, shows Delta's rows and deletions."""
    table = Followed(service, tmp_path, with_vectors=True)
    made = "TABLE {t} USING delta %s TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') AS SELECT"
    plain, partitioned = made % "", made % "PARTITIONED BY (part)"
    table.step(f"CREATE {plain} id, concat('n', id) AS name, 'x' AS part, id AS number FROM range(0, 20, 1, 1)")
    table.step("DELETE FROM {t} WHERE id % 5 = 0", operation="delete")
    table.step(f"CREATE OR REPLACE {partitioned} concat('s', id) AS id, id % 2 AS part, id AS number FROM range(10)")
    table.step("DELETE FROM {t} WHERE number > 6", operation="delete")
    table.step("RESTORE TABLE {t} TO VERSION AS OF 1", operation="overwrite")
    table.step("DELETE FROM {t} WHERE id % 5 = 1", operation="delete")
