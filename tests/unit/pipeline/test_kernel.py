"""The kernel against a model of sets, and with bad input in the middle."""

from __future__ import annotations

import pickle
import struct
import zlib
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields
from pyroaring import BitMap, BitMap64

from daemon.errors import CorruptInput, ObjectMissing, ObjectStoreAway, Unsupported
from daemon.iceberg.position_deletes import PositionDeleteFile
from daemon.iceberg.puffin import PuffinFile
from daemon.pipeline import kernel
from daemon.pipeline.kernel import translate
from daemon.store.storage import FileIOStorage
from daemon.translate.delete_files import DeleteFileResult, DeleteFileTask, DvChange
from state import DeletionVectorDescriptor
from tests.kit.examples import examples


@dataclass
class Lake:
    """A folder with one growing `.bin` of DVs, and the tasks that name them."""

    root: Path
    tasks: list[DeleteFileTask] = field(default_factory=list)

    def store(self, positions: set[int]) -> DeletionVectorDescriptor:
        path = self.root / "dv.bin"
        content = path.read_bytes() if path.exists() else b"\1"
        blob = (1681511377).to_bytes(4, "little") + BitMap64(positions).serialize()
        path.write_bytes(content + struct.pack(">i", len(blob)) + blob + struct.pack(">I", zlib.crc32(blob)))
        return DeletionVectorDescriptor("p", f"file://{path}", len(blob), len(positions), len(content))

    def add(
        self, output: str, data_file: str, before: set[int] | None, after: set[int], record_count: int = 2**40
    ) -> None:
        """A change for the newest task, if that has this output, or for another task."""
        path = self.output_path(output)
        stored = None if before is None else self.store(before)
        changes = (DvChange(data_file, record_count, stored, self.store(after)),)
        if self.tasks and self.tasks[-1].output_path == path:
            changes = self.tasks.pop().changes + changes
        self.tasks.append(DeleteFileTask(path, 0, changes))

    def alter(self, **fields: Any) -> None:
        """Change the descriptor that was added last."""
        task = self.tasks.pop()
        *others, last = task.changes
        last = replace(last, after=with_fields(last.after, **fields))
        self.tasks.append(replace(task, changes=(*others, last)))

    def output_path(self, output: str) -> str:
        return f"file://{self.root}/out/{output}{'' if output.endswith('.puffin') else '.parquet'}"

    def translate(self) -> list[DeleteFileResult]:
        results = list(translate(self.tasks, table_location=f"file://{self.root}", storage=FileIOStorage()))
        for task, result in zip(self.tasks, results, strict=True):
            assert result.file is None or result.file.path == task.output_path
        return results

    def written(self) -> list[str]:
        return sorted(path.name for path in (self.root / "out").glob("*"))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def read(path: str) -> list[tuple[str, int]]:
    table = pq.read_table(path.removeprefix("file://"))
    return list(zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True))


sets = st.sets(st.sampled_from([0, 1, 2, 3, 2**16 - 1, 2**16, 2**16 + 1, 2**32 - 1, 2**32, 2**33]))
changes = st.dictionaries(
    st.tuples(st.sampled_from("xyz"), st.sampled_from(["a", "b", "c#1?", "d%20é"])),
    st.tuples(st.none() | sets, sets, st.booleans()),
    max_size=8,
)


@given(changes, st.integers(1, 3))
@example({("x", "a"): ({1, 2}, {2}, False)}, 1)
@example({("x", "a"): (None, set(range(2**16 + 1)), False), ("x", "b"): ({1}, {1}, False)}, 1)
@settings(max_examples=examples(100))
def test_equals_its_model(
    tmp_path_factory: pytest.TempPathFactory,
    model: dict[tuple[str, str], tuple[set[int] | None, set[int], bool]],
    at_once_max: int,
) -> None:
    """New positions are written; the whole DV where rows are back; nothing for the rest; however much is held."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    expected: dict[str, list[tuple[str, set[int], bool]]] = {}
    for (output, data_file), (other, after, grown) in sorted(model.items()):
        before = other and ({position for position in after if position % 2} if grown else other)
        lake.add(output, data_file, before, after)
        restored = bool((before or set()) - after)
        new = after if restored else after - (before or set())
        expected.setdefault(lake.output_path(output), []).append((data_file, new, restored))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "READ_CHANGES_MAX", at_once_max)
        patch.setattr(kernel, "RESULTS_MAX", at_once_max)
        found = lake.translate()
    assert [task.output_path for task in lake.tasks] == list(expected)
    for (path, of_path), result in zip(expected.items(), found, strict=True):
        assert list(result.restored) == [data_file for data_file, _, restored in of_path if restored]
        positions = [(data_file, position) for data_file, new, _ in of_path for position in sorted(new)]
        if not positions:
            assert result.file is None
            continue
        file = result.file
        assert file is not None
        assert read(path) == positions
        assert file.data_files == tuple((data_file, len(new)) for data_file, new, _ in of_path if new)
        assert file.positions == len(positions)
        assert file.size_bytes == Path(path.removeprefix("file://")).stat().st_size
        assert (file.lower_pos, file.upper_pos) == (min(p for _, p in positions), max(p for _, p in positions))
        assert file.split_offsets == (4,)
    assert lake.written() == sorted(Path(result.file.path).name for result in found if result.file)


def only_file(lake: Lake) -> PositionDeleteFile:
    (result,) = lake.translate()
    assert result.file is not None
    return result.file


def test_grown_dv_writes_what_is_new(lake: Lake) -> None:
    """{0, 1} grown to {0, 1, 5} writes 5 alone."""
    lake.add("x", "a", {0, 1}, {0, 1, 5}, record_count=6)
    (found,) = lake.translate()
    assert found.restored == ()
    assert found.file and read(found.file.path) == [("a", 5)]


def test_shrunk_dv_is_restored_whole(lake: Lake) -> None:
    """{0, 1} after RESTORE to {1, 2}: row 0 is back, and all of {1, 2} is written for the newly registered file."""
    lake.add("x", "a", {0, 1}, {1, 2})
    (found,) = lake.translate()
    assert found.restored == ("a",)
    assert found.file and read(found.file.path) == [("a", 1), ("a", 2)]


def test_restored_to_nothing_has_no_file(lake: Lake) -> None:
    """A DV that shrinks to an empty one writes no file, and its data file is restored all the same."""
    lake.add("x", "a", {0, 1}, set())
    assert lake.translate() == [DeleteFileResult(None, ("a",))]
    assert lake.written() == []


def test_nothing_new_writes_no_file(lake: Lake) -> None:
    """The same DV before and after contributes nothing; a task without new positions has a result without a file."""
    lake.add("x", "a", {1}, {1})
    lake.add("y", "b", None, {4})
    x, y = lake.translate()
    assert x == DeleteFileResult(None, ())
    assert y.file and y.file.positions == 1
    assert lake.written() == ["y.parquet"]


def test_no_tasks_no_results(lake: Lake) -> None:
    """Without input there is no output."""
    assert lake.translate() == []


def test_again_gives_the_same_bytes(lake: Lake) -> None:
    """A second run, as Spark tries a task again, leaves the same bytes and says the same."""
    lake.add("x", "a", None, {1, 2**32})
    first = only_file(lake)
    content = Path(first.path.removeprefix("file://")).read_bytes()
    assert only_file(lake) == first
    assert Path(first.path.removeprefix("file://")).read_bytes() == content


def test_large_dvs_are_read_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVs past the bound of what is held together are read one data file at a time, with the same result."""
    for data_file in "abc":
        lake.add("x", data_file, {1}, {1, 2})
    held = []
    read_vectors = kernel.read_vectors
    monkeypatch.setattr(kernel, "READ_BYTES_MAX", 100)
    monkeypatch.setattr(kernel, "read_vectors", lambda *args: held.append(len(args[2])) or read_vectors(*args))
    found = only_file(lake)
    assert held == [2, 2, 2]
    assert read(found.path) == [("a", 2), ("b", 2), ("c", 2)]


def test_function_and_errors_pickle(lake: Lake) -> None:
    """The kernel goes to Spark's workers, and its errors come back, with nothing lost."""
    lake.add("x", "a", None, {1})
    function = pickle.loads(pickle.dumps(partial(translate, table_location="file:///t", storage=FileIOStorage())))
    (found,) = pickle.loads(pickle.dumps(list(function(lake.tasks))))
    assert found.file.data_files == (("a", 1),)
    lake.alter(cardinality=9)
    with pytest.raises(CorruptInput) as caught:
        lake.translate()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.hint) == (str(caught.value), caught.value.hint)
    assert again.path == f"file://{lake.root}/dv.bin"


@pytest.mark.parametrize(
    ("record_count", "message"),
    [
        (2, "3 deleted positions, the data file only 2 rows"),
        (9, "10 rows up to its last deleted position, the data file only 9"),
    ],
)
def test_more_deleted_than_there_is_is_corrupt(lake: Lake, record_count: int, message: str) -> None:
    """More positions than rows, or a position past the last row, is refused with the places of both and both values."""
    lake.add("x", "a", {0}, {0, 1, 9}, record_count)
    with pytest.raises(CorruptInput, match=f"the deletion vector of a has {message}") as caught:
        lake.translate()
    assert caught.value.path == f"file://{lake.root}/dv.bin" and caught.value.offset
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
    monkeypatch.setattr(kernel, "READ_CHANGES_MAX", 1)
    for output, data_file in [("x", "a"), ("y", "a"), ("y", "b")]:
        lake.add(output, data_file, None, {1, 2})
    lake.alter(**change)
    with pytest.raises(error):
        lake.translate()
    assert lake.written() == ["x.parquet"]


def test_contents_that_do_not_decode_remove_the_file_in_work(lake: Lake) -> None:
    """A container that only shows its fault when it is decoded is told with file and offset, and nothing is left."""
    lake.add("x", "a", None, {1})
    lake.add("x", "b", None, {5, 6})
    descriptor = lake.tasks[0].changes[1].after
    offset = descriptor.offset
    assert offset is not None
    content = bytearray((lake.root / "dv.bin").read_bytes())
    end = offset + 4 + descriptor.size_in_bytes
    content[end - 4 : end] = struct.pack("<HH", 6, 5)
    content[end : end + 4] = struct.pack(">I", zlib.crc32(content[offset + 4 : end]))
    (lake.root / "dv.bin").write_bytes(content)
    with pytest.raises(CorruptInput, match="strictly increasing") as caught:
        lake.translate()
    assert (caught.value.path, caught.value.offset) == (f"file://{lake.root}/dv.bin", offset)
    assert lake.written() == []


def test_abandoned_run_removes_the_file_in_work(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the caller stops asking, the file in work goes, and those whose results were given stay."""
    monkeypatch.setattr(kernel, "READ_CHANGES_MAX", 1)
    monkeypatch.setattr(kernel, "RESULTS_MAX", 1)
    lake.add("x", "a", None, {1})
    lake.add("y", "a", None, {1})
    run = translate(lake.tasks, table_location="file:///t", storage=FileIOStorage())
    first = next(iter(run)).file
    assert first and first.path == lake.output_path("x")
    assert lake.written() == ["x.parquet", "y.parquet"]
    run.close()  # type: ignore[attr-defined]
    assert lake.written() == ["x.parquet"]


def test_store_that_refuses_the_file_is_away(lake: Lake) -> None:
    """A delete file that cannot be written is ObjectStoreAway with its path."""
    lake.add("x", "a", None, {1})
    (lake.root / "out").write_bytes(b"")
    with pytest.raises(ObjectStoreAway) as caught:
        lake.translate()
    assert caught.value.path == lake.output_path("x")


NATIVE = (1681511376).to_bytes(4, "little") + struct.pack("<II", 1, 20) + BitMap([3, 9]).serialize()


def test_puffin_files_get_the_bytes_of_delta(lake: Lake) -> None:
    """Every vector whole, whatever was known before; nothing of an empty one; only the native form is written anew."""
    lake.add("p.puffin", "a", {1}, {1, 2**16, 2**33})
    lake.add("p.puffin", "b", {1, 2}, {2})
    lake.add("p.puffin", "c", None, set())
    lake.add("q.puffin", "d", None, set(range(100_000)))
    lake.add("r.puffin", "e", {5}, set())
    native = lake.root / "native.bin"
    native.write_bytes(b"\1" + struct.pack(">i", len(NATIVE)) + NATIVE + struct.pack(">I", zlib.crc32(NATIVE)))
    descriptor = DeletionVectorDescriptor("p", f"file://{native}", len(NATIVE), 2, 1)
    lake.tasks.append(DeleteFileTask(lake.output_path("s.puffin"), 0, (DvChange("f", 10, None, descriptor),)))
    of_p, of_q, of_r, of_s = lake.translate()
    assert (of_p.restored, of_r.restored, of_r.file) == (("b",), ("e",), None)
    stored = (lake.root / "dv.bin").read_bytes()
    for result in (of_p, of_q):
        assert isinstance(result.file, PuffinFile)
        data = Path(result.file.path.removeprefix("file://")).read_bytes()
        changes = {change.data_file: change for task in lake.tasks for change in task.changes}
        for blob in result.file.blobs:
            after = changes[blob.data_file].after
            assert (
                data[blob.offset : blob.offset + blob.size_bytes] == stored[after.offset :][: after.size_in_bytes + 8]
            )
            assert blob.cardinality == after.cardinality
    assert of_p.file and [path for path, _ in of_p.file.data_files] == ["a", "b"]
    assert isinstance(of_s.file, PuffinFile)
    (blob,) = of_s.file.blobs
    copied = Path(of_s.file.path.removeprefix("file://")).read_bytes()[blob.offset :][: blob.size_bytes]
    assert copied[4:8] == (1681511377).to_bytes(4, "little") and set(BitMap64.deserialize(copied[8:-4])) == {3, 9}


def test_a_vector_beyond_the_rows_of_its_file_is_not_copied(lake: Lake) -> None:
    lake.add("p.puffin", "a", None, {0, 9}, record_count=9)
    with pytest.raises(CorruptInput, match="10 rows up to its last deleted position, the data file only 9 rows"):
        lake.translate()
    assert lake.written() == []
