"""Position-delete files as other engines read them, and what the writer says of them."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO

from daemon.errors import ObjectStoreAway
from daemon.iceberg import position_deletes
from daemon.iceberg.position_deletes import PositionDeleteFile, PositionDeleteWriter
from tests.kit.examples import examples

Rows = list[tuple[str, int]]


def write(path: Path, model: dict[str, list[list[int]]]) -> PositionDeleteFile:
    """Write a file from chunks of positions for each data file."""
    with PositionDeleteWriter(PyArrowFileIO(), f"file://{path}") as writer:
        for data_file, chunks in model.items():
            for chunk in chunks:
                writer.write(data_file, array("q", chunk))
        return writer.finish()


def read_with_pyarrow(path: Path) -> Rows:
    table = pq.read_table(path)
    return list(zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True))


def read_with_polars(path: Path) -> Rows:
    return polars.read_parquet(path).rows()


def read_with_duckdb(path: Path) -> Rows:
    return duckdb.sql(f"SELECT file_path, pos FROM read_parquet('{path}')").fetchall()


MODEL = {
    "s3://lake/t/a b%20c.parquet": [[0, 1, 2**16], [2**32, 2**40]],
    "s3://lake/t/p=1/é.parquet": [[7]],
    "s3://lake/t/p=1/\U0001f600.parquet": [list(range(0, 9000, 3))],
}
MODEL_ROWS = [(path, pos) for path, chunks in MODEL.items() for chunk in chunks for pos in chunk]


@pytest.mark.parametrize("read", [read_with_pyarrow, read_with_polars, read_with_duckdb])
@pytest.mark.parametrize("row_group_rows", [1 << 20, 1000])
def test_other_engines_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any, row_group_rows: int) -> None:
    """pyarrow, Polars and DuckDB give back every path and position, in the order that was written."""
    monkeypatch.setattr(position_deletes, "ROW_GROUP_ROWS_MAX", row_group_rows)
    write(tmp_path / "d.parquet", MODEL)
    assert read(tmp_path / "d.parquet") == MODEL_ROWS


@given(
    st.dictionaries(
        st.text("ab/é\U0001f600", min_size=1, max_size=5), st.sets(st.integers(0, 2**40), min_size=1), max_size=6
    ),
    st.data(),
)
@settings(max_examples=examples(40))
def test_equals_its_model(
    tmp_path_factory: pytest.TempPathFactory, model: dict[str, set[int]], data: st.DataObject
) -> None:
    """Rows, counts and bounds are the model's, however chunks and row groups cut it."""
    path = tmp_path_factory.mktemp("deletes") / "d.parquet"
    model.setdefault("a", {0})
    chunks = {}
    for data_file in sorted(model):
        ordered = sorted(model[data_file])
        cut = data.draw(st.integers(0, len(ordered)))
        chunks[data_file] = [ordered[:cut], ordered[cut:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(position_deletes, "ROW_GROUP_ROWS_MAX", data.draw(st.integers(1, 20)))
        patch.setattr(position_deletes, "ROW_GROUP_CHUNKS_MAX", data.draw(st.integers(1, 3)))
        file = write(path, chunks)
    assert read_with_polars(path) == [
        (data_file, pos) for data_file in sorted(model) for pos in sorted(model[data_file])
    ]
    assert file.data_files == tuple((data_file, len(model[data_file])) for data_file in sorted(model))
    assert file.positions == sum(map(len, model.values()))
    assert (file.data_files[0][0], file.data_files[-1][0]) == (min(model), max(model))
    assert (file.lower_pos, file.upper_pos) == (min(map(min, model.values())), max(map(max, model.values())))
    assert file.size_bytes == path.stat().st_size


def test_form_of_the_file(tmp_path: Path) -> None:
    """Field ids, required fields, the footer key, and encodings are those that Iceberg's readers expect."""
    write(tmp_path / "d.parquet", MODEL)
    footer = pq.read_metadata(tmp_path / "d.parquet")
    assert str(footer.schema).splitlines()[1:] == [
        "required group field_id=-1 schema {",
        "  required binary field_id=2147483546 file_path (String);",
        "  required int64 field_id=2147483545 pos;",
        "}",
    ]
    assert footer.metadata == {b"delete-type": b"position"}
    file_path, pos = footer.row_group(0).column(0), footer.row_group(0).column(1)
    assert (file_path.compression, pos.compression) == ("ZSTD", "ZSTD")
    assert "RLE_DICTIONARY" in file_path.encodings
    assert "DELTA_BINARY_PACKED" in pos.encodings
    assert (file_path.statistics.min, file_path.statistics.max) == (min(MODEL), max(MODEL))
    assert (pos.statistics.min, pos.statistics.max) == (0, 2**40)


@pytest.mark.parametrize(
    ("rows", "files", "compression"), [(4096, 1, "UNCOMPRESSED"), (4097, 1, "ZSTD"), (2, 2, "ZSTD")]
)
def test_a_small_file_of_one_data_file_is_not_compressed(
    tmp_path: Path, rows: int, files: int, compression: str
) -> None:
    model = {f"file:///lake/{number}": [list(range(0, 3 * rows, 3))] for number in range(files)}
    write(tmp_path / "d.parquet", model)
    group = pq.read_metadata(tmp_path / "d.parquet").row_group(0)
    assert {group.column(number).compression for number in range(2)} == {compression}


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group ends at its bound of rows, also inside a chunk; split offsets are where row groups begin."""
    monkeypatch.setattr(position_deletes, "ROW_GROUP_ROWS_MAX", 100)
    file = write(tmp_path / "d.parquet", {"a": [list(range(30)), list(range(30, 250))], "b": [[0]]})
    footer = pq.read_metadata(tmp_path / "d.parquet")
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    assert [group.num_rows for group in groups] == [100, 100, 51]
    assert file.split_offsets == tuple(group.column(0).dictionary_page_offset for group in groups)
    assert file.split_offsets[0] == 4


def test_paths_of_a_row_group_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many data files with few positions each do not outgrow the dictionary: the row group ends before."""
    monkeypatch.setattr(position_deletes, "ROW_GROUP_CHUNKS_MAX", 2)
    write(tmp_path / "d.parquet", {name: [[0]] for name in "abcde"})
    footer = pq.read_metadata(tmp_path / "d.parquet")
    assert [footer.row_group(index).num_rows for index in range(footer.num_row_groups)] == [2, 2, 1]


@pytest.mark.parametrize(
    "chunks",
    [
        [("a", [5]), ("a", [5])],
        [("a", [5]), ("a", [4, 6])],
        [("b", [5]), ("a", [6])],
        [("a", [3, 2])],
        [("a", [3, 3])],
        [("a", [-1])],
        [("a", [1, 9, 4]), ("b", [5])],
        [("a", [9]), ("b", [5]), ("b", [5])],
    ],
)
def test_order_is_enforced(tmp_path: Path, chunks: list[tuple[str, list[int]]]) -> None:
    """Rows out of order are our own bug: ValueError, and no file is left."""
    with (
        pytest.raises(ValueError, match=r"do not follow|do not ascend"),
        PositionDeleteWriter(PyArrowFileIO(), f"file://{tmp_path}/d.parquet") as writer,
    ):
        for data_file, positions in chunks:
            writer.write(data_file, array("q", positions))
        writer.finish()
    assert not list(tmp_path.iterdir())


def test_empty_chunk_is_nothing(tmp_path: Path) -> None:
    """An empty chunk adds neither rows nor a data file; a file with nothing at all cannot be finished."""
    assert write(tmp_path / "d.parquet", {"a": [[], [1]], "b": [[]]}).data_files == (("a", 1),)
    with pytest.raises(ValueError, match="has no position"):
        write(tmp_path / "e.parquet", {"a": [[]]})
    assert [path.name for path in tmp_path.iterdir()] == ["d.parquet"]


def test_unfinished_file_is_removed(tmp_path: Path) -> None:
    """Leaving the context before `finish`, by an error or not, leaves no file; afterwards the file stays."""
    with pytest.raises(KeyError), PositionDeleteWriter(PyArrowFileIO(), f"file://{tmp_path}/d.parquet") as writer:
        writer.write("a", array("q", [1]))
        assert (tmp_path / "d.parquet").exists()
        raise KeyError
    assert not list(tmp_path.iterdir())
    write(tmp_path / "d.parquet", {"a": [[1]]})
    assert (tmp_path / "d.parquet").exists()


def test_existing_file_is_replaced(tmp_path: Path) -> None:
    """A second try writes the same bytes over the first."""
    (tmp_path / "d.parquet").write_bytes(b"half a file")
    write(tmp_path / "d.parquet", MODEL)
    first = (tmp_path / "d.parquet").read_bytes()
    write(tmp_path / "d.parquet", MODEL)
    assert (tmp_path / "d.parquet").read_bytes() == first


@pytest.mark.parametrize("late_end", ["finish", "abort"])
def test_a_late_attempt_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_end: str) -> None:
    """While another attempt writes the file that is in use already, and however that ends, the file stays as it is."""
    monkeypatch.setattr(position_deletes, "ROW_GROUP_ROWS_MAX", 1)
    path = tmp_path / "d.parquet"
    late = PositionDeleteWriter(PyArrowFileIO(), f"file://{path}", at_once=True)
    late.write("a", array("q", [1]))
    write(path, {"a": [[1, 2]]})
    in_use = path.read_bytes()
    with path.open("rb") as reader:
        late.write("a", array("q", [2]))
        assert path.read_bytes() == in_use
        getattr(late, late_end)()
        assert reader.read() == in_use
        # Nobody who has opened the file reads a part of the other one.
        assert late_end == "abort" or os.fstat(reader.fileno()).st_ino != path.stat().st_ino
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(path.name, in_use)]


def test_refusing_store_is_away(tmp_path: Path) -> None:
    """A store that does not take the file is ObjectStoreAway with the file's path."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ObjectStoreAway, match="was not written") as caught:
        write(tmp_path / "file" / "d.parquet", MODEL)
    assert caught.value.path == f"file://{tmp_path}/file/d.parquet"
