"""Tables that Spark writes and readers would misread: with mirrors, all readers show Delta's rows."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from daemon.errors import CorruptInput, Unsupported
from daemon.mirror.substitution import find_mirror_name
from daemon.pipeline import runner
from daemon.spark.answers import map_on_spark
from daemon.verify.findings import Fault, Level, Scope
from daemon.verify.verifier import Verifier
from state import FileKind, FileStatus
from tests.kit.follow import Followed
from tests.kit.handmade import COLUMNS, Bench, HandmadeTable
from tests.kit.handmade_mirrored import Mirrored
from tests.kit.misread import GROWING
from tests.kit.readers import assert_readers_agree, read_delta, read_spark
from tests.kit.service import Service

LISTS = """
    CREATE TABLE {t} (id INT, tags ARRAY<STRING>, scores MAP<STRING, ARRAY<INT>>, deep STRUCT<days: ARRAY<DATE>>)
    USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')
"""
LISTS_ROWS = """
    INSERT INTO {t} SELECT CAST(id AS INT), array('a', NULL, concat('t', id)), map('k', array(CAST(id AS INT), NULL)),
        named_struct('days', if(id %% 3 = 0, NULL, array(DATE'2020-02-29')))
    FROM range(%d, %d, 1, 1)
"""


def test_lists_under_column_mapping(service: Service, tmp_path: Path) -> None:
    """Files without ids of elements get them by a new footer, through all that Delta does; their positions stay."""
    table = Followed(service, tmp_path, options={"mirrors": "footer"}, with_vectors=True)
    table.step(LISTS)
    table.step(LISTS_ROWS % (0, 10), operation="append")
    table.step(LISTS_ROWS % (10, 15), operation="append")
    assert len(mirrors_of(table)) == 2
    # Else the hashes of the files' names decide whether Spark packs both vectors in one file.
    with table.writer.confs({"spark.sql.shuffle.partitions": "1"}):
        table.step("DELETE FROM {t} WHERE id % 4 = 1", operation="delete")
    table.step("UPDATE {t} SET tags = array('u') WHERE id = 2", operation="overwrite")
    table.step("ALTER TABLE {t} RENAME COLUMN tags TO labels", snapshots=0)
    table.step("ALTER TABLE {t} ADD COLUMNS (more MAP<INT, INT>)", snapshots=0)
    before = mirrors_of(table)
    table.step("OPTIMIZE {t}")
    assert len(mirrors_of(table)) == 1
    table.step("RESTORE TABLE {t} TO VERSION AS OF 6")
    assert mirrors_of(table) == before, "those of before are used again"
    table.step("VACUUM {t} RETAIN 0 HOURS", snapshots=0, versions=2)
    table.step("DELETE FROM {t} WHERE id = 14")


def test_lists_in_the_older_layout(service: Service, tmp_path: Path) -> None:
    """Lists of other names and days of another calendar, as Spark 2 wrote them: rewritten."""
    table = Followed(service, tmp_path, options={"mirrors": "rewrite"})
    table.step(
        "CREATE TABLE {t} (id INT, l ARRAY<INT>, m MAP<INT, DECIMAL(9, 2)>, d DATE) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    old = {"spark.sql.parquet.writeLegacyFormat": "true", "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}
    rows = "CAST(id AS INT), array(CAST(id AS INT), NULL), map(1, CAST(id AS DECIMAL(9, 2))), DATE'1400-01-01'"
    with table.writer.confs(old):
        table.step(f"INSERT INTO {{t}} SELECT {rows} FROM range(0, 8, 1, 1)")
    table.step(f"INSERT INTO {{t}} SELECT {rows} FROM range(8, 12, 1, 1)")
    assert len(mirrors_of(table)) == 1
    table.step("DELETE FROM {t} WHERE id % 3 = 0")
    table.step("OPTIMIZE {t}")
    assert not mirrors_of(table)


def convert(session: SparkSession, query: str, folder: Path) -> None:
    session.sql(query).write.parquet(str(folder))
    session.sql(f"CONVERT TO DELTA parquet.`{folder}`")


def test_lists_in_lists_of_a_converted_table(service: Service, tmp_path: Path) -> None:
    """Lists of two levels around those of three: Arrow does not open the file; by a new footer, all readers do."""
    table = Followed(service, tmp_path, options={"mirrors": "footer"})
    lists = "array(array(id, NULL), array(id)) AS l, map('k', array(array(id, NULL))) AS m, array(array(id)) AS two"
    with table.writer.confs({"spark.sql.parquet.writeLegacyFormat": "true"}):
        table.writer.do(convert, f"SELECT id, {lists} FROM range(0, 8, 1, 1)", table.source)
    (path,) = table.source.glob("*.parquet")
    with pytest.raises(pa.ArrowInvalid, match="must not be repeated"):
        pq.ParquetFile(path)
    table.step()
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 3 = 0")
    table.step(f"INSERT INTO {{t}} SELECT id, {lists} FROM range(8, 12, 1, 1)")
    assert [find_mirror_name(path).kind for path in mirrors_of(table).values()] == ["footer"]  # type: ignore[union-attr]
    table.step("OPTIMIZE {t}")
    assert not mirrors_of(table)


def test_spark_counts_what_its_tasks_have_made(spark: SparkSession, tmp_path: Path) -> None:
    """Also if one of them fails: the next try uses the others, and nothing is shown that exceeds the limit."""
    table = GROWING.make(tmp_path / "delta")
    table.commit([GROWING.add(table) for _ in range(5)])
    damaged = table.folder / "3.parquet"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:4] + b"\xff" * 16 + whole[20:])
    options = {"mirrors": "rewrite", "mirror_bytes_max": "3MiB"}

    def made() -> dict[str, int]:
        return {f"file://{path}": path.stat().st_size for path in bench.folder.rglob("*-mirror.parquet")}

    def recorded() -> dict[str, int | None]:
        written = bench.store.list_written(1, (FileStatus.ORPHANED,))
        return {each.path: each.size_bytes for each in written if each.kind is FileKind.MIRROR and each.size_bytes}

    with closing(Bench(tmp_path / "dvsync", table.location, engine="spark", table_options=options)) as bench:
        with pytest.raises(CorruptInput, match="cannot be read"):
            bench.sync()
        first = made()
        assert len(first) == 3 and recorded() == first
        damaged.write_bytes(whole)
        # Each is 400 kB: the eighth is too many, when the ninth is there as well.
        table.commit([GROWING.add(table) for _ in range(3)])
        for _ in range(2):
            with pytest.raises(Unsupported, match="more than mirror_bytes_max, 3,145,728"):
                bench.sync()
            assert first.items() < made().items() and len(made()) == 9
            assert recorded() == made()
    with closing(
        Bench(tmp_path / "dvsync", table.location, engine="spark", table_options={"mirrors": "rewrite"})
    ) as bench:
        bench.sync()
        assert {each.path: each.size_bytes for each in bench.store.list_live_mirrors(1)} == made()


def faults_at(bench: Bench, level: Level) -> Mapping[Fault, int]:
    """What a verification finds."""
    proof = Verifier(bench.context).verify(Scope(level), Event())
    assert proof
    return dict(proof.findings.counts)


def test_defaults_that_delta_fills_in(spark: SparkSession, tmp_path: Path) -> None:
    """EXISTS_DEFAULT, as Delta before 4 wrote it: what Delta shows for older files is in their mirrors."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    first = table.write_file([(1, "x", "v"), (2, "x", "w")])
    table.commit([table.add(first)])
    defaults = {
        ("number", "long"): "5",
        ("cost", "decimal(9,2)"): "CAST(1.5 AS DECIMAL(9,2))",
        ("day", "date"): "DATE '2020-02-29'",
        ("at", "timestamp"): "TIMESTAMP '2020-02-29 23:00:00+01:00'",
        ("word", "string"): r"'it\'s'",
        ("nothing", "double"): "NULL",  # Spark itself reads no binary defaults.
        ("flag", "boolean"): "true",
    }
    metadata = table.metadata((*COLUMNS, *defaults))
    schema = json.loads(metadata["schemaString"])
    for column, text in zip(schema["fields"][len(COLUMNS) :], defaults.values(), strict=True):
        column["metadata"] = {"CURRENT_DEFAULT": text, "EXISTS_DEFAULT": text}
    metadata["schemaString"] = json.dumps(schema)
    listed = table.protocol()
    listed["writerFeatures"] = [*listed["writerFeatures"], "allowColumnDefaults"]
    options = {"table_options": {"mirrors": "rewrite"}}
    with closing(Bench(tmp_path / "followed", table.location, **options)) as followed:
        followed.sync()
        table.commit([{"protocol": listed}, {"metaData": metadata}])
        with closing(Bench(tmp_path / "fresh", table.location, **options)) as fresh:
            for bench in (followed, fresh):
                bench.sync()
            table.commit([*table.delete({first: [1]}), table.add(table.write_file([(3, "y", "u")]))])
            for bench in (followed, fresh):
                bench.sync()
                rows = read_delta(spark, table.location, bench.iceberg())
                assert [row[3:5] for row in rows] == [(5, Decimal("1.50"))] * 2
                assert_readers_agree(bench.iceberg(), spark, rows)
                assert {each.kind for each in bench.store.list_live_mirrors(1)} == {"rewrite"}


def mirrors_of(table: Followed) -> dict[str, str]:
    store = table.bench.store
    record = store.open_table(table.bench.name, table.bench.source, table.bench.target)
    return {mirror.data_file: mirror.path for mirror in store.list_live_mirrors(record.id)}


def test_mirrors_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Its tasks plan and make them; its reader of Iceberg gives row by row what Delta's gives of the data files."""
    table = Mirrored(tmp_path / "delta", partitioned=True)
    table.create()
    files = [table.write_file([(10 * number + n, "xy"[number % 2], f"v{n}") for n in range(4)]) for number in range(6)]
    table.commit([table.add(path, deleted=[number % 4]) for number, path in enumerate(files)])
    options = {"mirrors": "copy", "format_version": 3}
    with closing(Bench(tmp_path / "dvsync", table.location, engine="spark", table_options=options)) as bench:
        bench.sync()
        assert sorted(read_spark(bench.iceberg(), spark)) == table.live_rows()
        assert len(bench.store.list_live_mirrors(1)) == 4
        assert faults_at(bench, Level.ROWS) == {}
        # Two rows change places in a mirror of the same size: only their values tell.
        copied = next(each.path for each in bench.store.list_live_mirrors(1) if each.kind == "copy")
        mirror = Path(copied.removeprefix("file://"))
        whole = mirror.read_bytes()
        rows = pq.ParquetFile(mirror).read()
        pq.write_table(rows.take([0, 1, 3, 2]), mirror)
        assert len(whole) == mirror.stat().st_size
        assert faults_at(bench, Level.METADATA) == faults_at(bench, Level.BITMAPS) == {}
        assert faults_at(bench, Level.ROWS) == {Fault.VALUES: 2}
        # Lost rows, and another size, are in its footer.
        pq.write_table(rows.slice(0, 3), mirror)
        assert faults_at(bench, Level.METADATA) == {Fault.FILE_DAMAGED: 1}
        mirror.write_bytes(whole)
        table.commit(table.delete({files[0]: [2], files[1]: [3]}))
        bench.sync()
        assert sorted(read_spark(bench.iceberg(), spark)) == table.live_rows()


@pytest.mark.long
def test_more_mirrors_than_one_process_makes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the engine `auto`, Spark plans and makes them, at a first sync and in a later one."""
    count, on_spark = runner.LOCAL_DATA_FILES_MAX + 1, set[str]()

    def watched(session: SparkSession, parts: Sequence[Any], function: Any) -> Any:
        on_spark.add(getattr(function, "func", function).__name__)
        return map_on_spark(session, parts, function)

    monkeypatch.setattr(runner, "map_on_spark", watched)
    table = Mirrored(tmp_path / "delta")
    table.create()
    first = table.write_file([(number, "x", "v") for number in range(4)])

    def add_many(name: str) -> None:
        paths = [f"{name}-{number}.parquet" for number in range(count)]
        for path in paths:
            os.link(table.folder / first, table.folder / path)
            table.rows[path] = table.rows[first]
        table.commit([table.add(path, deleted=[1] if path == paths[7] else []) for path in paths])

    add_many("first")
    with closing(Bench(tmp_path / "dvsync", table.location, engine="auto", table_options={"mirrors": "footer"})) as it:
        it.sync()
        assert len(it.store.list_live_mirrors(1)) == count
        assert on_spark == {"make_on_spark"}, "the state plans them"
        add_many("second")
        it.sync()
        assert len(it.store.list_live_mirrors(1)) == 2 * count
        assert on_spark == {"plan_on_spark", "make_on_spark"}
        assert Counter(read_spark(it.iceberg(), spark)) == Counter(table.live_rows())
