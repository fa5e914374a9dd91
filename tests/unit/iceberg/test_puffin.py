"""Puffin files with deletion vectors: what PyIceberg and a reader by the specification find in them."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile as TheirPuffinFile
from pyroaring import BitMap64

from daemon.delta.deletion_vector import frame_bytes
from daemon.errors import CorruptInput, ObjectStoreAway
from daemon.iceberg.puffin import FOOTER_READ_BYTES, Blob, PuffinFile, PuffinWriter, read_blobs
from daemon.store.storage import FileIOStorage
from tests.kit.examples import examples

MAGIC = bytes.fromhex("d1d33964")


def frame(positions: set[int]) -> memoryview:
    return frame_bytes(MAGIC + BitMap64(positions).serialize())


def write(folder: Path, vectors: dict[str, set[int]]) -> PuffinFile:
    with PuffinWriter(PyArrowFileIO(), f"file://{folder}/d.puffin") as writer:
        for data_file, positions in vectors.items():
            writer.write(data_file, frame(positions), len(positions))
        return writer.finish()


@given(
    st.dictionaries(
        st.text("aé/#%?", min_size=1),
        st.sets(st.sampled_from([0, 1, 5, 2**16 - 1, 2**16, 2**31]) | st.integers(0, 99), min_size=1),
        max_size=5,
    )
)
@settings(max_examples=examples(40))
def test_others_read_what_was_written(tmp_path_factory: pytest.TempPathFactory, vectors: dict[str, set[int]]) -> None:
    folder = tmp_path_factory.mktemp("puffin")
    written = write(folder, vectors)
    data = (folder / "d.puffin").read_bytes()
    assert (written.size_bytes, written.positions) == (len(data), sum(map(len, vectors.values())))
    theirs = TheirPuffinFile(data)
    assert {
        each.referenced_data_file: set(each.to_vector().to_pylist())
        for each in deletion_vectors_from_puffin_file(theirs)
    } == vectors
    # By the specification alone: what a manifest entry names is the length, magic, bitmap and checksum.
    for blob, footer in zip(written.blobs, theirs.footer.blobs, strict=True):
        assert (blob.offset, blob.size_bytes) == (footer.offset, footer.length)
        assert (footer.type, footer.fields, footer.compression_codec) == ("deletion-vector-v1", [2147483645], None)
        assert (footer.snapshot_id, footer.sequence_number) == (-1, -1)
        content = data[blob.offset : blob.offset + blob.size_bytes]
        (length,), (crc,) = struct.unpack(">i", content[:4]), struct.unpack(">I", content[-4:])
        assert (length, content[4:8], crc) == (len(content) - 8, MAGIC, zlib.crc32(content[4:-4]))
        assert set(BitMap64.deserialize(content[8:-4])) == vectors[blob.data_file]
    assert read_blobs(FileIOStorage(), written.path, written.size_bytes) == list(written.blobs)


def test_a_large_footer_is_read_whole(tmp_path: Path) -> None:
    vectors = {f"file:///lake/{'x' * 100}-{number}.parquet": {number} for number in range(1000)}
    written = write(tmp_path, vectors)
    assert written.size_bytes > 2 * FOOTER_READ_BYTES
    assert read_blobs(FileIOStorage(), written.path, written.size_bytes) == list(written.blobs)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="cut"),
        pytest.param(lambda data: data[:20], id="cut early"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:-4] + b"PFA2", id="magic"),
        pytest.param(lambda data: data[:-8] + b"\1\0\0\0PFA1", id="compressed footer"),
        pytest.param(
            lambda data: data[:-12] + struct.pack("<i", 1 << 30) + data[-8:], id="a footer longer than the file"
        ),
        pytest.param(lambda data: data[:-12] + struct.pack("<i", -1) + data[-8:], id="a footer of negative length"),
        pytest.param(lambda data: data.replace(b'"cardinality":"2"', b'"cardinality":"x"'), id="cardinality"),
        pytest.param(
            lambda data: data.replace(b'"referenced-data-file"', b'"referenced-data-foul"'), id="no data file"
        ),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage) -> None:
    written = write(tmp_path, {"a": {1, 2}, "b": {3}})
    path = tmp_path / "d.puffin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptInput) as raised:
        read_blobs(FileIOStorage(), written.path, path.stat().st_size)
    assert raised.value.path == written.path and "dvsync resync" in raised.value.hint


def test_other_blobs_are_no_deletion_vectors(tmp_path: Path) -> None:
    """A file of another writer may hold statistics too."""
    written = write(tmp_path, {"a": {1, 2}})
    path = tmp_path / "d.puffin"
    data = path.read_bytes()
    size = struct.unpack("<i", data[-12:-8])[0]
    footer = json.loads(data[-12 - size : -12])
    footer["blobs"].append({**footer["blobs"][0], "type": "apache-datasketches-theta-v1", "properties": {}})
    payload = json.dumps(footer).encode()
    path.write_bytes(data[: -12 - size] + payload + struct.pack("<i", len(payload)) + data[-8:])
    assert read_blobs(FileIOStorage(), written.path, path.stat().st_size) == [Blob("a", 4, len(frame({1, 2})), 2)]


def test_an_unfinished_file_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), PuffinWriter(PyArrowFileIO(), f"file://{tmp_path}/d.puffin") as writer:
        writer.write("a", frame({1}), 1)
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_the_stores_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ObjectStoreAway, match="a Puffin file was not written"):
        PuffinWriter(PyArrowFileIO(), f"file://{tmp_path}/file/d.puffin")
