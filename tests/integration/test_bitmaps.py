"""Positions of any DataFrame become deletion vectors that Delta itself reads."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession

from daemon.clock import SystemClock
from daemon.delta.bitmap_format import MAGIC_PORTABLE_BYTES
from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.log import DeltaLog
from daemon.delta.position_set import as_bitmap, encode_positions
from daemon.errors import CorruptInput
from daemon.spark.answers import collect
from daemon.spark.bitmaps import DataFileRows, NewVector, aggregate_positions, write_deletion_vectors
from daemon.store.storage import FileIOStorage
from state import DeletionVectorDescriptor
from tests.kit.handmade import HandmadeTable


def positions_frame(spark: SparkSession, rows: list[tuple[str | None, int | None]]) -> DataFrame:
    return spark.createDataFrame(rows, "path string, row long").repartition(2)


def decoded(bitmap: bytes) -> set[int]:
    return set(BitMap64.deserialize(bitmap.removeprefix(MAGIC_PORTABLE_BYTES)))


def aggregated(frame: DataFrame) -> dict[str, set[int]]:
    found = collect(aggregate_positions(frame, file="path", position="row")).to_pylist()
    sets = {row["file"]: decoded(row["bitmap"]) for row in found}
    assert [row["cardinality"] for row in found] == [len(positions) for positions in sets.values()]
    assert len(sets) == len(found), "one row for each file"
    return sets


def test_any_order_and_duplicates(spark: SparkSession) -> None:
    random = Random(1)
    places = [0, 63, 64, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
    rows = [
        (path, position) for path in ("a", "b", "c d%20") for position in (*places, *random.sample(range(5000), 500))
    ]
    expected: dict[str, set[int]] = {}
    for path, position in rows:
        expected.setdefault(path, set()).add(position)
    twice = rows * 2
    random.shuffle(twice)
    assert aggregated(positions_frame(spark, list(twice))) == expected
    assert aggregated(positions_frame(spark, [])) == {}


@pytest.mark.parametrize("row", [("a", None), (None, 1), ("a", -1)])
def test_rows_without_a_place(spark: SparkSession, row: tuple[str | None, int | None]) -> None:
    with pytest.raises(CorruptInput, match=r"has a null|is below zero"):
        aggregated(positions_frame(spark, [("a", 1), row]))


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    """Five files of 100 rows; the first has deleted rows already."""
    made = HandmadeTable(tmp_path / "t")
    made.create()
    paths = [made.write_file([(100 * number + row, "p", "v") for row in range(100)]) for number in range(5)]
    made.commit([made.add(path) for path in paths])
    made.commit(made.delete({paths[0]: [0, 1, 50]}), operation="DELETE")
    return made


# What `dvsync delete` writes so, Delta reads in test_delete.py.
@pytest.mark.long
def test_a_delete_that_delta_reads(spark: SparkSession, table: HandmadeTable) -> None:
    """Delta reads what is left: older deletions stay, a wholly deleted file goes, vectors share files up to a size."""
    paths = list(table.rows)
    frame = spark.read.format("delta").load(table.location)
    rows = frame.selectExpr("id", "_metadata.file_path AS path", "_metadata.row_index AS row")
    condition = "id % 3 = 0 OR id BETWEEN 200 AND 299"
    bitmaps = aggregate_positions(rows.where(condition), file="path", position="row").repartition(1)
    state = {f"file:{table.folder}/{path}": path for path in paths}
    older = descriptor_of(table, paths[0])
    files = {file: DataFileRows(100, older if path == paths[0] else None) for file, path in state.items()}
    before = set(table.folder.glob("*.bin"))
    # The files' vectors have 33 positions or more. Two of 33 with their frames would have one byte too many.
    bytes_max = 2 * len(encode_positions(BitMap64(range(0, 99, 3)))) + 16
    answers = write_deletion_vectors(bitmaps, files, location=table.location, properties={}, file_bytes_max=bytes_max)
    vectors = {state[each.file]: each for each in answers}
    assert vectors.keys() == set(paths)
    gone = {path for path, each in vectors.items() if each.descriptor is None}
    assert gone == {paths[2]}
    actions = []
    for path, vector in vectors.items():
        actions.append(table.remove(path))
        if vector.descriptor:
            deleted = as_bitmap(read_position_sets(FileIOStorage(), table.location, [vector.descriptor])[0])
            actions.append(table.add(path, deleted=deleted, descriptor=as_action(vector)))
    table.commit(actions, operation="DELETE")
    left = sorted(row.id for row in spark.read.format("delta").load(table.location).select("id").collect())
    assert left == [number for number in range(500) if number % 3 and not 200 <= number < 300 and number not in (1, 50)]
    files_written = {path.name: path.stat().st_size for path in set(table.folder.glob("*.bin")) - before}
    assert len(files_written) > 1
    assert max(files_written.values()) <= bytes_max


def descriptor_of(table: HandmadeTable, path: str) -> DeletionVectorDescriptor:
    commit = DeltaLog(FileIOStorage(), table.location, SystemClock()).read_commit(table.version)
    (found,) = (add.deletion_vector for add in commit.adds if add.path.endswith(path) and add.deletion_vector)
    assert found is not None
    return found


def as_action(vector: NewVector) -> dict[str, object]:
    descriptor = vector.descriptor
    assert descriptor is not None
    return {
        "storageType": descriptor.storage_type,
        "pathOrInlineDv": descriptor.path_or_inline_dv,
        "offset": descriptor.offset,
        "sizeInBytes": descriptor.size_in_bytes,
        "cardinality": descriptor.cardinality,
    }


@pytest.mark.parametrize(
    ("files", "message"), [({}, "was not given"), ({"a": DataFileRows(5)}, "position 7 is beyond the 5 rows")]
)
def test_positions_that_cannot_be(
    spark: SparkSession, tmp_path: Path, files: dict[str, DataFileRows], message: str
) -> None:
    bitmaps = aggregate_positions(positions_frame(spark, [("a", 7)]), file="path", position="row")
    with pytest.raises(CorruptInput, match=message):
        write_deletion_vectors(bitmaps, files, location=f"file://{tmp_path}", properties={})
    assert not list(tmp_path.iterdir())
