"""Tables as other programs write them: delta-rs by its own package, old protocols, logs made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType

from tests.integration.test_delta_log import DV, from_footers, names, without_checksums
from tests.kit.follow import Followed
from tests.kit.handmade import HandmadeTable
from tests.kit.service import Service
from tests.kit.writer import checkpoint as write_checkpoint

# Part of what is recorded.
DELTA_RS = f"delta-rs {metadata.version('deltalake')}"
CHECKPOINT = r"\d{20}\.checkpoint\..*parquet"


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": [None if number % 5 == 0 else f"näme {number}" for number in ids],
            "score": pa.array([number / 4 for number in ids], pa.float64()),
            "part": [("a b/c=d%é", "x")[number % 2] for number in ids],
        }
    )


# --- what delta-rs does: recorded like Spark's, as its names are by chance. The first argument is unused ---


def append(_: None, folder: Path, delta_rs: str, start: int, end: int, columns: list[str] | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_deltalake(folder, rows(start, end), mode="append", partition_by=columns)


def append_odd_values(_: None, folder: Path, delta_rs: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = pa.table({"id": [1, 2, 3], "größe x": ["", None, "x"], "n": pa.array([None, 1, 2], pa.int64())})
    write_deltalake(folder, found, mode="append", partition_by=["größe x", "n"])


def overwrite(_: None, folder: Path, delta_rs: str) -> None:
    write_deltalake(folder, rows(200, 210), mode="overwrite", schema_mode="overwrite")


def checkpoint(_: None, folder: Path, delta_rs: str) -> None:
    DeltaTable(folder).create_checkpoint()


def compact(_: None, folder: Path, delta_rs: str) -> None:
    DeltaTable(folder).optimize.compact()


def delete(_: None, folder: Path, delta_rs: str, predicate: str) -> None:
    DeltaTable(folder).delete(predicate)


def update(_: None, folder: Path, delta_rs: str, column: str, value: str, predicate: str) -> None:
    DeltaTable(folder).update(updates={column: value}, predicate=predicate)


def merge(_: None, folder: Path, delta_rs: str) -> None:
    merger = DeltaTable(folder).merge(rows(70, 90), "s.id = t.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def merge_by_part(_: None, folder: Path, delta_rs: str) -> None:
    more = pa.table({"id": range(20, 30), "part": ["Zürich", "日本"] * 5})
    merger = DeltaTable(folder).merge(more, "s.id = t.id", source_alias="s", target_alias="t")
    merger.when_matched_delete().when_not_matched_insert_all().execute()


def add_column(_: None, folder: Path, delta_rs: str) -> None:
    DeltaTable(folder).alter.add_columns(Field("extra", PrimitiveType("integer")))


def restore(_: None, folder: Path, delta_rs: str, version: int) -> None:
    DeltaTable(folder).restore(version)


class ByDeltaRs(Followed):
    """A table that delta-rs changes."""

    def do(self, change: Callable[..., None], *arguments: Any) -> None:
        self.writer.do(change, self.source, DELTA_RS, *arguments)

    def change(self, change: Callable[..., None], *arguments: Any, **expected: Any) -> None:
        """One version, and what must hold after it."""
        before = self.version
        self.do(change, *arguments)
        assert self.version == before + 1, "delta-rs made one version"
        assert not names(self, r"\.?\d{20}\.crc"), "delta-rs writes no checksum files, or this shows nothing"
        self.step(**expected)


@pytest.mark.parametrize(
    "partitioned", [pytest.param(False, id="whole", marks=pytest.mark.long), pytest.param(True, id="partitioned")]
)
def test_delta_rs(service: Service, tmp_path: Path, partitioned: bool) -> None:
    """Every operation of delta-rs is followed, from a first sync over its checkpoint to deletions that Spark adds."""
    table = ByDeltaRs(service, tmp_path)
    table.do(append, 0, 40, ["part"] if partitioned else None)
    table.do(append, 40, 60)
    table.do(checkpoint)
    assert names(table, CHECKPOINT)
    table.step(operation="append")

    table.change(append, 60, 80, operation="append")
    table.change(compact, operation="replace")
    table.change(delete, "id % 7 = 0", operation="overwrite")
    table.change(update, "name", "'new'", "id % 10 = 3", operation="overwrite")
    table.change(merge)
    table.change(add_column, snapshots=0)
    table.change(restore, 2)
    table.change(overwrite, operation="overwrite")

    table.step(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({DV})", snapshots=0)
    table.step("DELETE FROM {t} WHERE id = 203", operation="delete")


def test_delta_rs_after_spark(service: Service, tmp_path: Path) -> None:
    """delta-rs spells paths beyond ASCII otherwise than Spark: its removes have no effect on Spark's files in Delta."""
    table = ByDeltaRs(service, tmp_path, with_vectors=True)
    table.step(
        "CREATE TABLE {t} USING delta PARTITIONED BY (part) TBLPROPERTIES ('delta.enableDeletionVectors' = 'false') AS"
        " SELECT id, element_at(array('Zürich', 'São Paulo', '日本', 'plain'), CAST(id % 4 AS INT) + 1) AS part"
        " FROM range(0, 24, 1, 1)",
        operation="append",
    )
    table.do(delete, "id % 3 = 0")
    table.step()
    table.do(compact)
    table.step()
    table.do(update, "id", "id + 100", "id % 5 = 0")
    table.step()
    table.do(merge_by_part)
    table.step()
    assert len(table.truth(table.bench.iceberg()).rows) > 30, (
        "rows of Spark's files are there twice, or this shows nothing"
    )
    table.step("DELETE FROM {t} WHERE id = 4", operation="overwrite")
    table.bench.sync(full=True)
    table.sync_and_check("a comparison")


def test_empty_and_null_partition_values(service: Service, tmp_path: Path) -> None:
    """Spark writes no empty ones; those of delta-rs it reads as empty strings, and those of numbers as null."""
    table = ByDeltaRs(service, tmp_path)
    table.do(append_odd_values)
    table.step(operation="append")
    assert "" in {add["partitionValues"]["größe x"] for add in table.live_adds().values()}
    table.change(append_odd_values, operation="append")


def test_a_replaced_log_whose_synced_commit_is_gone(service: Service, tmp_path: Path) -> None:
    """As from a backup with a checkpoint and what came after it: the same table, but with another history."""
    table, other = ByDeltaRs(service, tmp_path), tmp_path / "other"
    for number in range(3):
        table.do(append, 10 * number, 10 * number + 10)
    copytree(table.source, other)
    table.do(append, 30, 40)
    table.step(operation="append", spark=True)
    with table.held():
        table.writer.do(append, other, DELTA_RS, 50, 60)
        table.writer.do(checkpoint, other, DELTA_RS)
        table.writer.do(append, other, DELTA_RS, 60, 70)
        for version in range(4):
            (other / "_delta_log" / f"{version:020d}.json").unlink()
        rmtree(table.source)
        other.rename(table.source)
    served = table.bench
    service.wait(lambda: served.status()["synced_version"] == 4, "the other log")
    shown = served.iceberg().scan().to_arrow()["id"].to_pylist()
    assert sorted(shown) == [*range(30), *range(50, 70)]


def test_delta_rs_after_its_log_was_cut(service: Service, tmp_path: Path) -> None:
    """A log that delta-rs cleaned up behind its own checkpoint is the source of a first sync and of a comparison."""
    table = ByDeltaRs(service, tmp_path)
    for number in range(5):
        table.do(append, 10 * number, 10 * number + 10)
    table.live_adds()
    cut_by_delta_rs(table)
    table.step(operation="append")
    with table.held():
        for number in range(5, 8):
            table.do(append, 10 * number, 10 * number + 10)
        table.live_adds()
        cut_by_delta_rs(table)
    assert table.sync_and_check("the cut log").snapshots == 1
    table.change(append, 80, 90, operation="append")


def cut_by_delta_rs(table: ByDeltaRs) -> None:
    table.do(checkpoint)
    for version in range(table.version):
        (table.log_folder / f"{version:020d}.json").unlink(missing_ok=True)


class WithoutStatistics(Followed):
    def live_adds(self) -> dict[str, dict[str, Any]]:
        return from_footers(super().live_adds())


@pytest.mark.parametrize("checkpoint", [False, True], ids=["commits", "checkpoint"])
def test_the_oldest_protocol_by_hand(service: Service, tmp_path: Path, checkpoint: bool) -> None:
    """Reader version 1 without commitInfo, statistics and checksums is followed, until Spark switches to vectors."""
    table = WithoutStatistics(service, tmp_path)
    handmade = HandmadeTable(table.source)
    paths = old_table(handmade)
    if checkpoint:
        service.writer.do(write_checkpoint, table.source)
        without_checksums(table.source)
    table.step(operation="append")
    write_plainly(handmade, [handmade.remove(paths[0])])
    table.step(operation="delete")
    more = handmade.write_file([(number, "b", "more") for number in range(20, 30)])
    write_plainly(handmade, [plain_add(handmade, more)])
    table.step(operation="append")
    table.step(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({DV})", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")


def old_table(handmade: HandmadeTable) -> list[str]:
    """Two versions as a writer of 2019 made them: protocol 1 and 1, and nothing that is optional."""
    (handmade.folder / "_delta_log").mkdir(parents=True)
    metadata = {**handmade.metadata(), "configuration": {}}
    write_plainly(handmade, [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 1}}, {"metaData": metadata}])
    paths = [handmade.write_file([(start + number, "a", "old") for number in range(10)]) for start in (0, 10)]
    write_plainly(handmade, [plain_add(handmade, path) for path in paths])
    return paths


def plain_add(handmade: HandmadeTable, path: str) -> dict[str, Any]:
    action = handmade.add(path)["add"]
    action.pop("stats")
    return {"add": action}


def write_plainly(handmade: HandmadeTable, actions: list[dict[str, Any]]) -> None:
    handmade.version += 1
    staged = handmade.folder / "_delta_log" / ".staged.tmp"
    staged.write_text("\n".join(json.dumps(action) for action in actions))
    staged.rename(handmade.commit_path(handmade.version))


def test_an_old_protocol_of_spark(service: Service, tmp_path: Path) -> None:
    """Reader version 2 and writer version 5, as older Delta made column-mapped tables, without feature lists."""
    table = Followed(service, tmp_path)
    table.sql(
        "CREATE TABLE {t} (id BIGINT, name STRING) USING delta TBLPROPERTIES ('delta.minReaderVersion' = '2',"
        " 'delta.minWriterVersion' = '5', 'delta.columnMapping.mode' = 'name',"
        " 'delta.enableDeletionVectors' = 'false')"
    )
    assert "readerFeatures" not in (table.log_folder / f"{0:020d}.json").read_text()
    table.step(operation="append")
    table.step("INSERT INTO {t} SELECT id, concat('n', id) FROM range(0, 20, 1, 2)", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="overwrite")
    table.step("ALTER TABLE {t} RENAME COLUMN name TO title", snapshots=0)
    table.step(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({DV})", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")
