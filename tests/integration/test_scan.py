"""`read_delta` shows what Delta's own reader shows, at every version, and skips what it need not read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from daemon.delta_writer.deletion import delete_rows
from daemon.errors import CorruptInput, Unsupported
from daemon.spark.failures import known_errors
from daemon.spark.scan import MARKER, read_delta
from tests.integration.test_histories import CREATE, PARTITIONED, rows
from tests.kit.handmade import HandmadeTable
from tests.kit.histories import TOUR, History, Step, steps
from tests.kit.spark_process import conf_values

SPLIT = "spark.sql.files.maxPartitionBytes"
CODEGEN = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}
DV = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    """Sets settings of the session for the rest of a test."""
    with ExitStack() as changed:
        yield lambda settings: changed.enter_context(conf_values(spark, settings))


def counted(frame: DataFrame) -> Counter[str]:
    return Counter(map(repr, frame.collect()))


def assert_as_delta(spark: SparkSession, folder: Path, where: str = "true") -> DataFrame:
    """The scan has the rows and the types of Delta's own reader. Returns the scan."""
    ours, delta = read_delta(spark, str(folder)), spark.read.format("delta").load(str(folder))
    assert ours.dtypes == delta.dtypes
    expected = counted(delta.where(where))
    assert expected and counted(ours.where(where)) == expected
    return ours


def play(spark: SparkSession, history: History, played: list[Step]) -> None:
    """Each version has the rows of the history's model, and some are read with Delta, too, which is slow."""
    for step in played:
        history.play(step)
    folder, versions = str(history.folder), range(1, len(history.states))
    assert numbered({version: read_delta(spark, folder, version=version) for version in versions}) == Counter(
        (version, *row) for version in versions for row in history.rows(version)
    )
    told = versions[::-8]
    reader = spark.read.format("delta")
    assert numbered({version: reader.option("versionAsOf", version).load(folder) for version in told}) == Counter(
        (version, *row) for version in told for row in history.rows(version)
    )


def numbered(frames: dict[int, DataFrame]) -> Counter[tuple[Any, ...]]:
    together = [frame.select(F.lit(version), "id", "part", "value") for version, frame in frames.items()]
    return Counter(map(tuple, reduce(DataFrame.union, together).collect()))


@pytest.mark.parametrize("partitioned", [pytest.param(False, marks=pytest.mark.long), True])
def test_tour(spark: SparkSession, tmp_path: Path, partitioned: bool) -> None:
    """DVs of every storage type that grow, shrink, vanish and return."""
    play(spark, History(tmp_path / "t", partitioned=partitioned), TOUR)


@pytest.mark.long
@settings(max_examples=2, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps(changes_max=5), st.booleans())
def test_random_histories(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, played: list[Step], partitioned: bool
) -> None:
    """Random histories whose first file has more rows than one Roaring container."""
    play(spark, History(tmp_path_factory.mktemp("t") / "t", partitioned=partitioned, big=True), played)


@pytest.mark.long
def test_types(spark: SparkSession, tmp_path: Path, conf: Any) -> None:
    """Columns of all kinds, partition values with odd signs, and files of before and after a change of the schema."""
    folder = tmp_path / "50% é t"
    table = f"delta.`{folder}`"
    spark.sql(CREATE.format(t=table, partitioned=PARTITIONED))
    spark.sql(f"INSERT INTO {table} {rows(0, 60, 2)}")
    spark.sql(f"DELETE FROM {table} WHERE id % 7 = 0")
    assert_as_delta(spark, folder, "part = 'a b/c=d%é#?' AND amount > 3")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN name TO `a.b `")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN place.city TO town")
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS (extra INT AFTER id, place.zip INT FIRST)")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN score")
    spark.sql(f"UPDATE {table} SET extra = 9 WHERE id % 5 = 1")
    assert_as_delta(spark, folder)
    conf(CODEGEN)
    assert_as_delta(spark, folder, "place.town = 'c1' AND day IS NULL AND extra IS NULL")
    conf({"spark.sql.parquet.enableVectorizedReader": "false"})
    assert_as_delta(spark, folder)


def test_ids(spark: SparkSession, tmp_path: Path) -> None:
    """With column mapping by id, columns are found by their ids, whatever their names in the file."""
    folder = tmp_path / "t"
    table = f"delta.`{folder}`"
    mapped = "'delta.columnMapping.mode' = 'id', 'delta.enableDeletionVectors' = 'true'"
    spark.sql(f"CREATE TABLE {table} (id INT, s STRUCT<x: INT, y: INT>) USING delta TBLPROPERTIES ({mapped})")
    spark.sql(f"INSERT INTO {table} SELECT id, named_struct('x', id, 'y', -id) FROM range(0, 20, 1, 1)")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN s.x TO z")
    (file,) = (path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts)
    data = pq.read_table(file)
    nested = [field.with_name(f"other {field.name}") for field in data.schema.field(1).type]
    kinds = [
        data.schema.field(0).with_name("other"),
        pa.field("s", pa.struct(nested), metadata=data.schema.field(1).metadata),
    ]
    arrays = [
        data.column(0).combine_chunks(),
        pa.StructArray.from_arrays(data.column(1).combine_chunks().flatten(), fields=nested),
    ]
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(kinds)), file)
    file.with_name(f".{file.name}.crc").unlink()
    spark.sql(f"DELETE FROM {table} WHERE id % 3 = 0")
    assert_as_delta(spark, folder, "id < 15 AND s.z > 2")


@pytest.mark.long
def test_old_and_odd_files(spark: SparkSession, tmp_path: Path, conf: Any) -> None:
    """INT96 timestamps, CHAR, generated columns, widened types, variants."""
    conf({"spark.sql.parquet.outputTimestampType": "INT96"})
    folder = tmp_path / "t"
    table = f"delta.`{folder}`"
    spark.sql(
        f"CREATE TABLE {table} (id INT, c CHAR(5), v VARCHAR(5), seen TIMESTAMP, amount DECIMAL(6, 2), noted VARIANT,"
        f" later INT NOT NULL) USING delta"
        f" TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.enableTypeWidening' = 'true')"
    )
    values = "'ab', 'cd', timestamp_micros(id * 1000001), id / 4, parse_json(concat('{\"a\": ', id, '}')), id"
    spark.sql(f"INSERT INTO {table} SELECT id, {values} FROM range(0, 20, 1, 1)")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN amount TYPE DECIMAL(9, 2)")
    spark.sql(f"INSERT INTO {table} SELECT id + 3000000000, {values} FROM range(0, 5, 1, 1)")
    spark.sql(f"DELETE FROM {table} WHERE id % 3 = 0")
    assert_as_delta(spark, folder, "c = 'ab' AND seen > '1970-01-01T00:00:03' AND noted:a::int < 18")
    assert_as_delta(spark, folder, "id >= 3000000000 OR amount = 4.25")


@pytest.mark.parametrize(
    ("vectorized", "where"),
    [
        pytest.param("true", "true", marks=pytest.mark.long),
        ("true", "id BETWEEN 800 AND 3100"),
        pytest.param("false", "id > 800", marks=pytest.mark.long),
    ],
)
def test_split_files(spark: SparkSession, tmp_path: Path, conf: Any, vectorized: str, where: str) -> None:
    """Rows keep their positions in files of several row groups that Spark splits, and where it skips row groups."""
    for name, start in (("a", 0), ("b", 3_000)):
        data = pa.table({"id": range(start, start + 3_000), "text": [f"text {n}" for n in range(3_000)]})
        (tmp_path / "t").mkdir(exist_ok=True)
        pq.write_table(data, tmp_path / "t" / f"{name}.parquet", row_group_size=500)
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CONVERT TO DELTA parquet.`{tmp_path}/t`")
    spark.sql(f"ALTER TABLE {table} SET {DV}")
    spark.sql(f"DELETE FROM {table} WHERE id < 3000 AND (id % 3 = 0 OR id BETWEEN 900 AND 1700)")
    conf({SPLIT: "16k", "spark.sql.parquet.enableVectorizedReader": vectorized, **CODEGEN})
    assert assert_as_delta(spark, tmp_path / "t", where).rdd.getNumPartitions() > 2


def test_plan(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The marker, its filter and its projection are steps of the plan; without DVs there is none of them."""
    table = HandmadeTable(tmp_path / "t")
    table.create()
    paths = [table.write_file([(n, "x", "a"), (n + 1, "y", "b")]) for n in (0, 10)]
    table.commit([table.add(path) for path in paths])
    read_delta(spark, table.location).explain()
    plain = capsys.readouterr().out
    assert "Filter (" not in plain and "row_index" not in plain
    table.commit(table.delete({paths[0]: {1}}))
    frame = read_delta(spark, table.location)
    frame.select("id").explain(extended=True)
    told = capsys.readouterr().out
    assert re.search(rf"Project \[id#\d+L, .*\]\n.*Filter \(cast\({MARKER}#\d+ as int\) = 0\)", told)
    assert re.search(rf"Filter \({MARKER}\(.*row_index.*\) = 0\)", told)
    assert "ReadSchema: struct<id:bigint,_tmp_metadata_row_index:bigint>" in told
    assert sorted(row.id for row in frame.collect()) == [0, 10, 11]


def test_keep_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """Deleted rows stay on demand, and are marked, beside files without a deletion vector."""
    table = HandmadeTable(tmp_path / "t", partitioned=True)
    table.create()
    paths = [table.write_file([(n, part, "a"), (n + 1, part, "b")]) for n, part in ((0, "x"), (10, "y"))]
    table.commit([table.add(path) for path in paths])
    kept = read_delta(spark, table.location, keep_deleted=True)
    assert kept.dtypes[-1] == (MARKER, "tinyint") and {row[MARKER] for row in kept.collect()} == {0}
    table.commit(table.delete({paths[0]: {1}}))
    kept = read_delta(spark, table.location, keep_deleted=True)
    assert kept.dtypes[-1] == (MARKER, "tinyint")
    assert sorted((row.id, row[MARKER]) for row in kept.collect()) == [(0, 0), (1, 1), (10, 0), (11, 0)]


def files_read(frame: DataFrame) -> int:
    frame.collect()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return int(leaves.head().metrics().apply("numFiles").value())


@pytest.mark.long
def test_skipped_files(spark: SparkSession, tmp_path: Path) -> None:
    """Filters skip files by partition values and statistics; files without statistics are read."""
    folder = tmp_path / "t"
    table = f"delta.`{folder}`"
    spark.sql(
        f"CREATE TABLE {table} (n INT, s STRING, seen TIMESTAMP, part INT) USING delta PARTITIONED BY (part) {DV}"
    )
    made = "SELECT {n} + id, if({n} = 20, NULL, 's{n}'), timestamp_micros(({n} + id) * 1000001), {n} FROM range(9)"
    for n in (0, 10, 20):
        spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM ({made.format(n=n)})")
    spark.sql(f"DELETE FROM {table} WHERE n % 5 = 1")
    frame = read_delta(spark, str(folder))
    for where, files in {
        "true": 3,
        "part = 10": 1,
        "part + 1 > 10": 2,
        "part IN (0, 20) AND n < 10": 1,
        "n = 13": 1,
        "13 = n": 3,
        "n IN (3, 25)": 2,
        "n > 18": 1,
        "n >= 18": 2,
        "n < 0": 0,
        "n < 5 OR s = 's10'": 3,
        "s IS NULL": 1,
        "s IS NOT NULL": 2,
        "s <=> NULL AND n <= 10": 0,
        "seen = '1970-01-01T00:00:08.000008Z'": 1,
        "seen > '1970-01-01T00:00:18.000017Z'": 2,
        "seen > '1970-01-01T00:00:18.002Z'": 1,
    }.items():
        assert files_read(frame.where(where)) == files, where
    assert_as_delta(spark, folder, "n < 5 OR s = 's10' OR seen > '1970-01-01T00:00:25Z'")


def test_files_without_statistics(spark: SparkSession, tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path / "t")
    table.create()
    path = table.write_file([(1, "x", "a"), (2, "y", "b")])
    action = table.add(path, deleted={0}, storage="i")
    del action["add"]["stats"]
    table.commit([action])
    assert [row.id for row in read_delta(spark, table.location).where("id > 1 AND part IS NOT NULL").collect()] == [2]


@pytest.mark.parametrize("name", ["_under.parquet", "é/a b%20+c.parquet"])
def test_file_names(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = HandmadeTable(tmp_path / "t")
    table.create()
    (table.folder / name).parent.mkdir(exist_ok=True)
    path = table.write_file([(1, "x", "a"), (2, "y", "b")], name=name.removesuffix(".parquet"))
    table.commit([table.add(path, deleted={0}, storage="p")])
    assert_as_delta(spark, table.folder)


def test_partition_values(spark: SparkSession, tmp_path: Path) -> None:
    """Timestamps may have the form of ISO 8601, an empty text is null, and a text of another type is refused."""
    table = HandmadeTable(tmp_path / "t", partitioned=True)
    table.create()
    table.commit([{"metaData": table.metadata((("id", "long"), ("part", "timestamp"), ("value", "string")))}])
    texts = ("1999-12-31T23:59:59.123456Z", "1999-12-31 23:59:59.123456", "")
    actions = []
    for number, text in enumerate(texts):
        actions.append(table.add(table.write_file([(number, "x", "a")])))
        actions[-1]["add"]["partitionValues"] = {"part": text}
    table.commit(actions)
    moments = [row.part and str(row.part) for row in read_delta(spark, table.location).orderBy("id").collect()]
    assert moments == ["1999-12-31 23:59:59.123456", "1999-12-31 23:59:59.123456", None]
    # In a zone that is not the session's, the second one is in the next year.
    done = delete_rows(
        table.location,
        "part >= TIMESTAMP '2000-01-01 00:00:00Z'",
        spark=spark,
        engine="spark",
        time_zone="America/New_York",
        dry_run=True,
    )
    assert done.deleted_rows == 1
    actions[0]["add"]["partitionValues"] = {"part": "soon"}
    table.commit(actions[:1])
    with pytest.raises(CorruptInput, match="soon is no timestamp, but the partition value of column part"):
        read_delta(spark, table.location)


def test_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Features and columns that are not known are refused by name."""
    table = HandmadeTable(tmp_path / "t")
    table.create()
    table.commit([{"protocol": table.protocol(["deletionVectors", "teleportation"])}])
    with pytest.raises(Unsupported, match="reader feature teleportation is not supported"):
        read_delta(spark, table.location)
    assert read_delta(spark, table.location, version=0).count() == 0
    table.commit([{"protocol": table.protocol()}, {"metaData": table.metadata([(MARKER, "long")])}])
    with pytest.raises(Unsupported, match=f"the name of column {MARKER} is reserved"):
        read_delta(spark, table.location)


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (-1, "do not match the CRC-32"),
        (1, "size in its file is not the log's, 36"),
        (None, "does not hold 3 positions"),
    ],
)
def test_damaged_vectors(spark: SparkSession, tmp_path: Path, offset: int | None, message: str) -> None:
    """A damaged deletion vector is CorruptInput and names its file."""
    table = HandmadeTable(tmp_path / "t")
    table.create()
    path = table.write_file([(n, "x", "a") for n in range(5)])
    action = table.add(path, deleted={1, 3})
    (file,) = table.dv_files.values()
    if offset is None:
        action["add"]["deletionVector"]["cardinality"] = 3
    else:
        data = bytearray(file.read_bytes())
        data[offset] ^= 1
        file.write_bytes(data)
    table.commit([action])
    frame = read_delta(spark, table.location)
    with pytest.raises(CorruptInput, match=message) as raised, known_errors():
        frame.collect()
    assert raised.value.path == f"file://{file}" and raised.value.offset == 1
