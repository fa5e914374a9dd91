"""What Spark's tasks do when positions become deletion vectors, against Python's sets and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from daemon.delta.deletion_vector import FIRST_DV_OFFSET, FRAME_BYTES, DvFile, find_place, read_position_sets
from daemon.delta.position_set import as_bitmap, encode_positions
from daemon.spark.bitmaps import BITMAPS, DataFileRows, NewVector, _WriteTask, decode_bitmap, join_words
from daemon.store.storage import FileIOStorage
from tests.kit.examples import examples

WORDS = pa.schema([("file", pa.string()), ("word", pa.int64()), ("bits", pa.int64())])
# Near each other, around the bounds of words and of 32 bits, and anywhere.
POSITIONS = st.one_of(
    st.integers(0, 300),
    *(st.integers(2**power - 2, 2**power + 65) for power in (16, 31, 32)),
    st.integers(0, 2**40),
    st.integers(2**42 - 2, 2**42 - 1),
)
SETS = st.one_of(st.sets(POSITIONS, min_size=1, max_size=30), st.builds(set, st.builds(range, st.integers(1, 5000))))
# Where the rows are cut into batches, as parts of the whole; some batches are empty.
CUTS = st.lists(st.floats(0, 1), max_size=10)


def cut(rows: Sequence[dict[str, Any]], schema: pa.Schema, cuts: Sequence[float]) -> list[pa.RecordBatch]:
    ends = sorted(round(each * len(rows)) for each in cuts)
    bounds = pairwise([0, *ends, len(rows)])
    return [pa.RecordBatch.from_pylist(list(rows[start:end]), schema) for start, end in bounds]


@settings(max_examples=examples(150))
@given(st.dictionaries(st.sampled_from(["a", "b", "b%20", "é"]), SETS), CUTS)
def test_words_become_bitmaps(expected: dict[str, set[int]], cuts: list[float]) -> None:
    """A row for each file, in order; the words of a file may come in any number of batches."""
    rows = []
    for file, positions in expected.items():
        words: dict[int, int] = {}
        for position in positions:
            words[position // 64] = words.get(position // 64, 0) | 1 << position % 64
        # Spark's long has the highest bit as its sign.
        rows += [
            {"file": file, "word": word, "bits": bits - (bits >> 63 << 64)} for word, bits in sorted(words.items())
        ]
    found = [row for batch in join_words(cut(rows, WORDS, cuts)) for row in batch.to_pylist()]
    assert [row["file"] for row in found] == list(expected)
    assert [row["cardinality"] for row in found] == [len(positions) for positions in expected.values()]
    assert [set(decode_bitmap(**row)) for row in found] == list(expected.values())


class Deletion(NamedTuple):
    """A data file: its rows, those that were deleted before, and those that are deleted now."""

    record_count: int
    older: set[int]
    newer: set[int]

    @property
    def deleted(self) -> set[int]:
        return self.older | self.newer

    @property
    def is_whole(self) -> bool:
        return len(self.deleted) == self.record_count


@st.composite
def deletions(draw: st.DrawFn) -> Deletion:
    older, newer = draw(SETS | st.just(set())), draw(SETS)
    rows_left = draw(st.integers(0, 2))
    return Deletion(max(older | newer) + 1 + rows_left, older, newer)


@settings(max_examples=examples(80))
@given(st.lists(deletions(), max_size=12), st.integers(1, 4), st.integers(-10, 10), CUTS)
def test_vectors_share_files_up_to_a_size(made: list[Deletion], fitting: int, spare: int, cuts: list[float]) -> None:
    """Each descriptor leads to all deleted rows of its file, and no `.bin` file could have taken another vector."""
    # The first ones just fit into a file, or just do not.
    sizes = [len(encode_positions(BitMap64(each.deleted))) for each in made if not each.is_whole]
    file_bytes_max = FIRST_DV_OFFSET + sum(size + FRAME_BYTES for size in sizes[:fitting]) + spare
    with TemporaryDirectory() as folder:
        location = f"file://{folder}"
        files, before = with_older(location, made), set(Path(folder).iterdir())
        rows = [
            {"file": file, "bitmap": encode_positions(BitMap64(each.newer)), "cardinality": len(each.newer)}
            for file, each in zip(files, made, strict=True)
        ]
        found = list(_WriteTask(files, location, {}, file_bytes_max)(cut(rows, BITMAPS, cuts)))
        assert [(each.file, each.cardinality) for each in found] == [
            (file, len(each.deleted)) for file, each in zip(files, made, strict=True)
        ]
        assert [each.descriptor is None for each in found] == [each.is_whole for each in made]
        descriptors = [each.descriptor for each in found if each.descriptor]
        sets = read_position_sets(FileIOStorage(), location, descriptors)
        assert [set(as_bitmap(each)) for each in sets] == [each.deleted for each in made if not each.is_whole]
        check_packing(location, found, set(Path(folder).iterdir()) - before, file_bytes_max)


def with_older(location: str, made: Sequence[Deletion]) -> dict[str, DataFileRows]:
    """Write the older deletion vectors into one file, and name the data files."""
    output = DvFile(location)
    files = {}
    for number, each in enumerate(made):
        older = output.add(encode_positions(BitMap64(each.older)), len(each.older)) if each.older else None
        files[f"part-{number}"] = DataFileRows(each.record_count, older)
    Path(output.path.removeprefix("file://")).write_bytes(output.data)
    return files


def check_packing(location: str, found: Sequence[NewVector], written: set[Path], file_bytes_max: int) -> None:
    frames: dict[Path, list[int]] = {}
    for descriptor in (each.descriptor for each in found if each.descriptor):
        path = Path(find_place(location, descriptor).path.removeprefix("file://"))
        frames.setdefault(path, []).append(descriptor.size_in_bytes + FRAME_BYTES)
    assert written == frames.keys()
    sizes = [FIRST_DV_OFFSET + sum(each) for each in frames.values()]
    assert [path.stat().st_size for path in frames] == sizes
    assert all(size <= file_bytes_max or len(each) == 1 for size, each in zip(sizes, frames.values(), strict=True))
    # The dictionary is in the order in which the files were written.
    firsts = [each[0] for each in frames.values()]
    assert all(size + following > file_bytes_max for size, following in zip(sizes, firsts[1:], strict=False))
