"""The look at a data file, on real files: what is told of them, and what is refused."""

from __future__ import annotations

import io
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.delta.actions import AddFile, Metadata
from daemon.errors import CorruptInput, SyncError, Unsupported
from daemon.pipeline.inspection import Inspection, Inspector
from daemon.store.storage import REQUESTS_AT_ONCE, FileIOStorage
from daemon.translate.file_schema import FileTraits
from daemon.translate.schema import translate_schema

TIMES = {"type": "array", "elementType": "timestamp", "containsNull": True}


class Lake:
    """Files of one table in `folder`."""

    def __init__(self, folder: Path, *columns: tuple[str, Any], partition: tuple[str, ...] = ()) -> None:
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
        schema = json.dumps({"type": "struct", "fields": fields})
        self.folder = folder
        self.inspector = Inspector(FileIOStorage(), translate_schema(Metadata("t", schema, list(partition), {})))

    def inspect(
        self, columns: dict[str, Any], values: dict[str, str | None] | None = None, **written: Any
    ) -> Inspection:
        path = self.folder / "f.parquet"
        pq.write_table(pa.table(columns), path, **written)
        return self.inspector.inspect(
            [AddFile(f"file://{path}", True, partition_values=values or {}, size=path.stat().st_size)]
        )


def test_many_files_are_looked_at(tmp_path: Path) -> None:
    """Each by itself, whatever their number; columns that only some have are told once."""
    lake = Lake(tmp_path, ("id", "long"))
    adds = []
    for number in range(2 * REQUESTS_AT_ONCE):
        path = tmp_path / f"{number}.parquet"
        more = {"extra": pa.array([1] * number, pa.int32())} if number % 2 else {}
        pq.write_table(pa.table({"id": pa.array(range(number), pa.int64()), **more}), path)
        adds.append(
            AddFile(f"file://{path}", True, partition_values={}, size=path.stat().st_size, stats='{"numRecords": 7}')
        )
    seen = lake.inspector.inspect(adds)
    assert [seen.metrics[add.path].record_count for add in adds] == list(range(2 * REQUESTS_AT_ONCE))
    assert seen.traits == FileTraits(frozenset({("extra",)}))
    assert lake.inspector.inspect([]) == Inspection({}, FileTraits())


def with_a_name_of_bytes() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"zzzz": [1]}), file, store_schema=False)
    return file.getvalue().replace(b"zzzz", b"\x80\x80\x80\x80")


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"x" * 100, b"PAR1" + b"\x99" * 100 + b"\x32\0\0\0PAR1", with_a_name_of_bytes()]
)
def test_files_without_a_footer_are_corrupt(tmp_path: Path, data: bytes) -> None:
    """Whatever way the bytes are no Parquet, the table is parked with the file's name, not tried again for ever."""
    path = tmp_path / "f.parquet"
    path.write_bytes(data)
    with pytest.raises(CorruptInput, match="no Parquet footer that can be read") as caught:
        Lake(tmp_path, ("id", "long")).inspector.inspect(
            [AddFile(f"file://{path}", True, partition_values={}, size=len(data))]
        )
    assert caught.value.path == f"file://{path}"


@pytest.mark.parametrize(
    ("value", "stored", "passes"),
    [
        (None, [None, None], True),
        (None, ["", ""], False),
        (None, [None, "x"], False),
        ("x", ["x", "x"], True),
        ("x", ["x", "y"], False),
        ("x", [None, "x"], False),
        ("x", [None, None], False),
        ("x", [], True),
        ("long" * 20, ["long" * 20], True),
        ("long" * 20, ["long" * 20, "long" * 19 + "lonh"], False),
        ("long" * 20, ["other" * 20], False),
    ],
)
@pytest.mark.parametrize("statistics", [True, False])
def test_partition_columns_in_the_file(
    tmp_path: Path, value: str | None, stored: list[Any], *, passes: bool, statistics: bool
) -> None:
    """By the statistics of the file's own column where they prove what it holds, else by the column itself."""
    lake = Lake(tmp_path, ("id", "long"), ("p", "string"), partition=("p",))
    columns = {"id": pa.array(range(len(stored)), pa.int64()), "p": pa.array(stored, pa.string())}
    written = {"write_statistics": statistics, "row_group_size": 1}
    if passes:
        assert lake.inspect(columns, {"p": value}, **written).metrics
    else:
        with pytest.raises(Unsupported, match=f"partition column p is {repr(value) if value else 'null'} in the"):
            lake.inspect(columns, {"p": value}, **written)


@pytest.mark.parametrize(
    ("kind", "value", "same", "other"),
    [
        ("boolean", "true", pa.array([True]), pa.array([False])),
        ("integer", "7", pa.array([7], pa.int32()), pa.array([8], pa.int32())),
        ("long", "7", pa.array([7]), pa.array([8])),
        ("float", "0.1", pa.array([0.1], pa.float32()), pa.array([0.2], pa.float32())),
        ("float", "NaN", pa.array([float("nan")], pa.float32()), pa.array([0.2], pa.float32())),
        ("double", "0.0", pa.array([0.0, -0.0]), pa.array([0.0, float("nan")])),
        ("double", "NaN", pa.array([float("nan")]), pa.array([1.0])),
        ("decimal(5,2)", "1.50", pa.array([Decimal("1.50")]).cast(pa.decimal128(5, 2)), None),
        ("date", "2020-01-02", pa.array([date(2020, 1, 2)]), pa.array([2932897], pa.int32()).cast(pa.date32())),
        ("timestamp_ntz", "2020-01-02 03:04:05.5", pa.array([datetime(2020, 1, 2, 3, 4, 5, 500_000)]), None),
        (
            "timestamp",
            "2020-01-02T03:04:05Z",
            pa.array([datetime(2020, 1, 2, 3, 4, 5)], pa.timestamp("us", "UTC")),
            pa.array([1 << 60], pa.timestamp("us", "UTC")),
        ),
    ],
)
@pytest.mark.parametrize("statistics", [True, False])
def test_partition_columns_of_each_type(
    tmp_path: Path, kind: str, value: str, same: pa.Array, *, other: pa.Array | None, statistics: bool
) -> None:
    """The value is known again in the file, whatever way it is stored, and another one is not."""
    lake = Lake(tmp_path, ("id", "long"), ("p", kind), partition=("p",))
    ids = pa.array(range(len(same)), pa.int64())
    assert lake.inspect({"id": ids, "p": same}, {"p": value}, write_statistics=statistics).metrics
    for stored in (other, pa.nulls(len(same), same.type)):
        if stored is not None:
            with pytest.raises(Unsupported, match=r"partition column p is .* in the Delta log"):
                lake.inspect({"id": ids[: len(stored)], "p": stored}, {"p": value}, write_statistics=statistics)


def test_partition_columns_that_statistics_prove_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark writes is told by the footer alone."""
    lake = Lake(tmp_path, ("id", "long"), ("p", "string"), partition=("p",))
    monkeypatch.setattr(Inspector, "_read_column", None)
    columns = {"id": pa.array([1, 2], pa.int64()), "p": pa.array(["x", "x"])}
    assert lake.inspect(columns, {"p": "x"}, row_group_size=1).metrics


@pytest.mark.parametrize(
    ("value", "passes"), [("0.5", True), ("NaN", True), (None, True), ("0.1", False), ("1e300", False)]
)
def test_double_partitions_without_the_column(tmp_path: Path, value: str | None, passes: bool) -> None:
    """PyIceberg 0.12 reads doubles of manifests as floats; where the file has the column, it reads the file."""
    lake = Lake(tmp_path, ("id", "long"), ("p", "double"), partition=("p",))
    ids = {"id": pa.array([1], pa.int64())}
    if passes:
        assert lake.inspect(ids, {"p": value}).metrics
    else:
        with pytest.raises(Unsupported, match=r"partition column p, .* is .* and no float, which PyIceberg and Polars"):
            lake.inspect(ids, {"p": value})
        assert lake.inspect({**ids, "p": pa.array([float(value or 0)])}, {"p": value}).metrics


def test_far_partition_values_in_int96(tmp_path: Path) -> None:
    """The log has them right, the file's reader does not."""
    lake = Lake(tmp_path, ("id", "long"), ("p", "timestamp"), partition=("p",))
    columns = {"id": pa.array([1], pa.int64()), "p": pa.array([None], pa.timestamp("ns"))}
    for value, stored in (("2020-01-01 00:00:00", datetime(2020, 1, 1)), (None, None)):
        columns["p"] = pa.array([stored], pa.timestamp("ns"))
        assert lake.inspect(columns, {"p": value}, use_deprecated_int96_timestamps=True).metrics
    with pytest.raises(Unsupported, match="column p of the file has INT96 timestamps"):
        lake.inspect(columns, {"p": "9999-12-31 00:00:00"}, use_deprecated_int96_timestamps=True)


@pytest.mark.parametrize("year", [2020, 1600, 2300])
def test_int96_without_statistics_is_read(tmp_path: Path, year: int) -> None:
    """What is in lists has no statistics: the column is read, in microseconds, and only then trusted."""
    lake = Lake(tmp_path, ("id", "long"), ("l", TIMES))
    moments = pa.array([[datetime(year, 1, 1), None], None, []], pa.list_(pa.timestamp("us")))
    columns = {"id": pa.array([1, 2, 3], pa.int64()), "l": moments}
    if year == 2020:
        assert lake.inspect(columns, use_deprecated_int96_timestamps=True).metrics
    else:
        with pytest.raises(Unsupported, match="column l of the file has INT96 timestamps") as caught:
            lake.inspect(columns, use_deprecated_int96_timestamps=True)
        assert isinstance(caught.value, SyncError) and caught.value.path
