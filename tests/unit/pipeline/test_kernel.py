"""The kernel against a model of sets, with batches cut anywhere, and with bad input in the middle."""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from daemon.errors import CorruptInput, ObjectMissing, ObjectStoreAway, Unsupported
from daemon.pipeline import kernel
from daemon.pipeline.kernel import DELETE_FILES, DESCRIPTORS, translate


@dataclass
class Lake:
    """A folder with one growing `.bin` of DVs, and the rows of DESCRIPTORS that name them."""

    root: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def store(self, positions: set[int]) -> dict[str, Any]:
        path = self.root / "dv.bin"
        content = path.read_bytes() if path.exists() else b"\1"
        blob = (1681511377).to_bytes(4, "little") + BitMap64(positions).serialize()
        path.write_bytes(content + struct.pack(">i", len(blob)) + blob + struct.pack(">I", zlib.crc32(blob)))
        return {
            "storage_type": "p",
            "path_or_inline_dv": f"file://{path}",
            "offset": len(content),
            "size_in_bytes": len(blob),
            "cardinality": len(positions),
        }

    def add(
        self, output: str, data_file: str, before: set[int] | None, after: set[int], record_count: int | None = None
    ) -> None:
        self.rows.append(
            {
                "output_path": self.output_path(output),
                "data_file": data_file,
                "record_count": record_count,
                "before": None if before is None else self.store(before),
                "after": self.store(after),
            }
        )

    def output_path(self, output: str) -> str:
        return f"file://{self.root}/out/{output}.parquet"

    def batches(self, cuts: tuple[int, ...] = ()) -> Iterator[pa.RecordBatch]:
        edges = [0, *sorted(cuts), len(self.rows)]
        for low, high in pairwise(edges):
            yield pa.RecordBatch.from_pylist(self.rows[low:high], schema=DESCRIPTORS)

    def translate(self, cuts: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        batches = list(translate(self.batches(cuts), table_location=f"file://{self.root}", storage_properties={}))
        assert all(batch.schema == DELETE_FILES for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]

    def written(self) -> list[str]:
        return sorted(path.name for path in (self.root / "out").glob("*"))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def read(path: str) -> list[tuple[str, int]]:
    table = pq.read_table(path.removeprefix("file://"))
    return list(zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True))


sets = st.sets(st.sampled_from([0, 1, 2, 3, 2**16 - 1, 2**16, 2**16 + 1, 2**32 - 1, 2**32, 2**33]))
works = st.dictionaries(
    st.tuples(st.sampled_from("xyz"), st.sampled_from(["a", "b", "c#1?", "d%20é"])),
    st.tuples(st.none() | sets, sets, st.booleans()),
    max_size=8,
)


@given(works, st.lists(st.integers(0, 8), max_size=3), st.integers(1, 3))
@example({("x", "a"): ({1, 2}, {2}, False)}, [], 1)
@example({("x", "a"): (None, set(range(2**16 + 1)), False), ("x", "b"): ({1}, {1}, False)}, [1], 1)
@settings(max_examples=100, deadline=None)
def test_equals_its_model(
    tmp_path_factory: pytest.TempPathFactory,
    model: dict[tuple[str, str], tuple[set[int] | None, set[int], bool]],
    cuts: list[int],
    rows_max: int,
) -> None:
    """New positions are written; the whole DV where rows are back; nothing for the rest; for any cut of the input."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    expected: dict[str, list[tuple[str, set[int], bool]]] = {}
    for (output, data_file), (other, after, grown) in sorted(model.items()):
        before = other and ({position for position in after if position % 2} if grown else other)
        lake.add(output, data_file, before, after, record_count=2**40)
        restored = bool((before or set()) - after)
        new = after if restored else after - (before or set())
        expected.setdefault(lake.output_path(output), []).append((data_file, new, restored))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "READ_ROWS_MAX", rows_max)
        patch.setattr(kernel, "OUTPUT_ROWS_MAX", rows_max)
        found = lake.translate(tuple(min(cut, len(lake.rows)) for cut in cuts))
    assert [row["path"] for row in found] == list(expected)
    for row in found:
        told = [(work["data_file"], work["positions"], work["restored"]) for work in row["rows"]]
        assert told == [(path, len(new), back) for path, new, back in expected[row["path"]] if new or back]
        positions = [(path, position) for path, new, _ in expected[row["path"]] for position in sorted(new)]
        assert row["positions"] == len(positions)
        if not positions:
            absent = {name for name, value in row.items() if value is None}
            assert absent == set(DELETE_FILES.names) - {"path", "positions", "rows"}
            continue
        assert read(row["path"]) == positions
        assert row["size_bytes"] == Path(row["path"].removeprefix("file://")).stat().st_size
        assert (row["lower_path"], row["upper_path"]) == (positions[0][0], positions[-1][0])
        assert (row["lower_pos"], row["upper_pos"]) == (min(p for _, p in positions), max(p for _, p in positions))
        assert row["split_offsets"] == [4]
    assert lake.written() == sorted(Path(row["path"]).name for row in found if row["positions"])


def test_grown_dv_writes_what_is_new(lake: Lake) -> None:
    """{0, 1} grown to {0, 1, 5} writes 5 alone."""
    lake.add("x", "a", {0, 1}, {0, 1, 5}, record_count=6)
    (found,) = lake.translate()
    assert found["rows"] == [{"data_file": "a", "positions": 1, "restored": False}]
    assert read(found["path"]) == [("a", 5)]


def test_shrunk_dv_is_restored_whole(lake: Lake) -> None:
    """{0, 1} after RESTORE to {1, 2}: row 0 is back, and all of {1, 2} is written for the newly registered file."""
    lake.add("x", "a", {0, 1}, {1, 2})
    (found,) = lake.translate()
    assert found["rows"] == [{"data_file": "a", "positions": 2, "restored": True}]
    assert read(found["path"]) == [("a", 1), ("a", 2)]


def test_restored_to_nothing_is_told_without_a_file(lake: Lake) -> None:
    """A DV that shrinks to an empty one writes no file, and its data file is still told of as restored."""
    lake.add("x", "a", {0, 1}, set())
    (found,) = lake.translate()
    assert (found["size_bytes"], found["positions"]) == (None, 0)
    assert found["rows"] == [{"data_file": "a", "positions": 0, "restored": True}]
    assert lake.written() == []


def test_nothing_new_writes_no_file(lake: Lake) -> None:
    """The same DV before and after contributes nothing; an output without positions is told of without a file."""
    lake.add("x", "a", {1}, {1})
    lake.add("y", "b", None, {4})
    x, y = lake.translate()
    assert (x["positions"], x["rows"], x["size_bytes"]) == (0, [], None)
    assert y["positions"] == 1
    assert lake.written() == ["y.parquet"]


def test_no_rows_no_batches(lake: Lake) -> None:
    """Without input there is no output, with or without an empty batch."""
    assert lake.translate() == []
    assert list(translate([], table_location="file:///t", storage_properties={})) == []


def test_again_gives_the_same_bytes(lake: Lake) -> None:
    """A second run, as Spark tries a task again, leaves the same bytes and says the same."""
    lake.add("x", "a", None, {1, 2**32})
    first = lake.translate()
    content = Path(first[0]["path"].removeprefix("file://")).read_bytes()
    assert lake.translate() == first
    assert Path(first[0]["path"].removeprefix("file://")).read_bytes() == content


def test_large_dvs_are_read_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVs past the bound of what is held together are read one data file at a time, with the same result."""
    for data_file in "abc":
        lake.add("x", data_file, {1}, {1, 2})
    held = []
    read_position_sets = kernel.read_position_sets
    monkeypatch.setattr(kernel, "READ_BYTES_MAX", 100)
    monkeypatch.setattr(
        kernel, "read_position_sets", lambda *args: held.append(len(args[2])) or read_position_sets(*args)
    )
    (found,) = lake.translate()
    assert held == [2, 2, 2]
    assert read(found["path"]) == [("a", 2), ("b", 2), ("c", 2)]


def test_function_and_errors_pickle(lake: Lake) -> None:
    """The kernel goes to Spark's workers, and its errors come back, with nothing lost."""
    lake.add("x", "a", None, {1})
    function = pickle.loads(pickle.dumps(partial(translate, table_location="file:///t", storage_properties={})))
    assert [row["positions"] for batch in function(lake.batches()) for row in batch.to_pylist()] == [1]
    lake.rows[0]["after"]["cardinality"] = 9
    with pytest.raises(CorruptInput) as caught:
        lake.translate()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.hint) == (str(caught.value), caught.value.hint)
    assert again.path == f"file://{lake.root}/dv.bin"


@pytest.mark.parametrize(
    ("record_count", "message"),
    [(2, "3 deleted positions, the data file 2 rows"), (9, "10 rows up to its last deleted position, the data file 9")],
)
def test_more_deleted_than_there_is_is_corrupt(lake: Lake, record_count: int, message: str) -> None:
    """More positions than rows, or a position past the last row, is refused with the data file and both values."""
    lake.add("x", "a", {0}, {0, 1, 9}, record_count)
    with pytest.raises(CorruptInput, match=message) as caught:
        lake.translate()
    assert caught.value.path == "a"
    assert lake.written() == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"size_in_bytes": 3}, CorruptInput),
        ({"cardinality": 5}, CorruptInput),
        ({"offset": 2}, CorruptInput),
        ({"storage_type": "r"}, Unsupported),
        ({"path_or_inline_dv": "gone.bin"}, ObjectMissing),
    ],
)
def test_fault_midway_removes_the_file_in_work(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], error: type[Exception]
) -> None:
    """A fault at a later row raises its kind, removes the file in work, and leaves the finished ones."""
    monkeypatch.setattr(kernel, "READ_ROWS_MAX", 1)
    for output, data_file in [("x", "a"), ("y", "a"), ("y", "b")]:
        lake.add(output, data_file, None, {1, 2})
    lake.rows[2]["after"] |= change
    with pytest.raises(error):
        lake.translate()
    assert lake.written() == ["x.parquet"]


def test_contents_that_do_not_decode_remove_the_file_in_work(lake: Lake) -> None:
    """A container that only shows its fault when it is decoded is told with file and offset, and nothing is left."""
    lake.add("x", "a", None, {1})
    lake.add("x", "b", None, {5, 6})
    offset = lake.rows[1]["after"]["offset"]
    content = bytearray((lake.root / "dv.bin").read_bytes())
    end = offset + 4 + lake.rows[1]["after"]["size_in_bytes"]
    content[end - 4 : end] = struct.pack("<HH", 6, 5)
    content[end : end + 4] = struct.pack(">I", zlib.crc32(content[offset + 4 : end]))
    (lake.root / "dv.bin").write_bytes(content)
    with pytest.raises(CorruptInput, match="strictly increasing") as caught:
        lake.translate()
    assert (caught.value.path, caught.value.offset) == (f"file://{lake.root}/dv.bin", offset)
    assert lake.written() == []


def test_abandoned_run_removes_the_file_in_work(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the caller stops asking, the file in work goes, and those told of stay."""
    monkeypatch.setattr(kernel, "READ_ROWS_MAX", 1)
    monkeypatch.setattr(kernel, "OUTPUT_ROWS_MAX", 1)
    lake.add("x", "a", None, {1})
    lake.add("y", "a", None, {1})
    run = translate(lake.batches(), table_location="file:///t", storage_properties={})
    assert next(iter(run)).to_pylist()[0]["path"] == lake.output_path("x")
    assert lake.written() == ["x.parquet", "y.parquet"]
    run.close()  # type: ignore[attr-defined]
    assert lake.written() == ["x.parquet"]


def test_unsorted_rows_are_our_own_bug(lake: Lake) -> None:
    """Rows that come back to an earlier output path are never written over it."""
    for output in "xyx":
        lake.add(output, "a", None, {1})
    with pytest.raises(AssertionError, match="sorted by output path"):
        lake.translate()


def test_store_that_refuses_the_file_is_away(lake: Lake) -> None:
    """A delete file that cannot be written is ObjectStoreAway with its path."""
    lake.add("x", "a", None, {1})
    (lake.root / "out").write_bytes(b"")
    with pytest.raises(ObjectStoreAway) as caught:
        lake.translate()
    assert caught.value.path == lake.output_path("x")
