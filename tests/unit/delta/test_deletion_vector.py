"""Deletion vectors against `set[int]`, against pyroaring's serializer, and with each checked byte broken."""

from __future__ import annotations

import base64
import struct
import zlib
from array import array
from collections.abc import Collection, Iterable
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from daemon.delta import bitmap_format, deletion_vector
from daemon.delta import position_set as position_sets
from daemon.delta.bitmap_format import DVPlace
from daemon.delta.deletion_vector import Vector, find_place, frame_bytes, read_position_sets, read_vectors
from daemon.delta.position_set import PositionSet, check_positions, decode_positions, is_restored, new_positions
from daemon.errors import CorruptInput, ObjectMissing, Unsupported
from daemon.store.locations import Span
from daemon.store.recent import Recent
from daemon.store.storage import FileIOStorage
from state import DeletionVectorDescriptor
from tests.kit.examples import examples

PORTABLE = (1681511377).to_bytes(4, "little")
NATIVE = (1681511376).to_bytes(4, "little")
PLACE = DVPlace("dv.bin", 1)
POSITION_MAX = (1 << 42) - 1

EDGES = [
    0,
    1,
    2**16 - 1,
    2**16,
    2**16 + 1,
    2**31,
    2**32 - 1,
    2**32,
    2**32 + 1,
    2**33,
    POSITION_MAX - 2**16,
    POSITION_MAX,
]


def read_dv_bytes(storage: FileIOStorage, table_location: str, descriptor: DeletionVectorDescriptor) -> memoryview:
    """The bytes of magic and bitmap, their frame checked."""
    return read_vectors(storage, table_location, [descriptor])[0].frame[4:-4]


def portable_bytes(positions: Iterable[int], *, runs: bool = False) -> bytes:
    bitmap = BitMap64(positions)
    if runs:
        bitmap.run_optimize()
    return PORTABLE + bitmap.serialize()


def native_bytes(positions: Iterable[int], *, runs: bool = False) -> bytes:
    buckets: list[BitMap] = []
    for position in sorted(positions):
        while len(buckets) <= position >> 32:
            buckets.append(BitMap())
        buckets[position >> 32].add(position & 0xFFFFFFFF)
    if runs:
        for bucket in buckets:
            bucket.run_optimize()
    serialized = [bucket.serialize() for bucket in buckets]
    return NATIVE + struct.pack("<I", len(buckets)) + b"".join(struct.pack("<I", len(b)) + b for b in serialized)


def decoded(data: bytes, cardinality: int) -> PositionSet:
    return decode_positions(memoryview(data), cardinality=cardinality, place=PLACE)


def position_set(positions: Collection[int], *, runs: bool = False) -> PositionSet:
    return decoded(portable_bytes(positions, runs=runs), len(positions))


def listed(after: PositionSet, before: PositionSet | None = None) -> list[int]:
    return [position for chunk in new_positions(after, before) for position in chunk]


def z85(data: bytes) -> str:
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    padded = data + bytes(-len(data) % 4)
    values = [value for (word,) in struct.iter_unpack(">I", padded) for value in _base85(word)]
    return "".join(alphabet[value] for value in values)


def _base85(word: int) -> list[int]:
    return [word // 85**power % 85 for power in (4, 3, 2, 1, 0)]


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def dv_at(path: str, offset: int | None, data: bytes, cardinality: int) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor("p", path, len(data), cardinality, offset)


@st.composite
def positions(draw: st.DrawFn, upper_max: int = 2**31 - 1) -> set[int]:
    """Sets with array, bitset and run containers, near the edges of containers and of 32 bits."""
    found = set(draw(st.lists(st.sampled_from(EDGES), max_size=4)))
    found |= set(draw(st.lists(st.integers(0, 200_000), max_size=8)))
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.sampled_from([0, 1, 2**16 - 3, 2**32 - 2**15, 2**32])) + draw(st.integers(0, 50))
        found |= set(range(start, start + draw(st.sampled_from([1, 3, 4096, 4097, 12_000])), draw(st.integers(1, 3))))
    return {position for position in found if position >> 32 <= upper_max}


@given(positions(), st.booleans())
@example({0}, False)
@example(set(), False)
@example({2**16, 2**32, POSITION_MAX}, True)
@example(set(range(2**16 + 1)), True)
@example(set(range(0, 2 * 4096, 2)), False)
@example(set(range(0, 2 * 4097, 2)), False)
@settings(max_examples=examples(100))
def test_portable_round_trip(model: set[int], runs: bool) -> None:
    """What pyroaring serializes comes back as the same positions, ascending, decoded at once or in chunks."""
    for small_bytes_max in (0, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(position_sets, "SMALL_BYTES_MAX", small_bytes_max)
            found = position_set(model, runs=runs)
        assert listed(found) == sorted(model)
        assert len(found) == len(model)


@given(positions(upper_max=2), st.booleans())
@example({2**33}, False)
@settings(max_examples=examples(30))
def test_native_round_trip(model: set[int], runs: bool) -> None:
    """The other magic means Delta's own array of 32-bit bitmaps, with empty ones for the gaps."""
    assert listed(decoded(native_bytes(model, runs=runs), len(model))) == sorted(model)


@given(positions(), positions(), st.booleans(), st.booleans(), st.booleans())
@example({0, 2**16, 2**32}, {2**16}, False, False, False)
@example({1, 2}, {1, 2, 2**32}, False, False, False)
@example({1, 2}, {2**32}, False, False, False)
@settings(max_examples=examples(150))
def test_difference_is_that_of_sets(
    after: set[int], other: set[int], runs: bool, other_runs: bool, grown: bool
) -> None:
    """New positions are `after - before`; rows are restored exactly when `before - after` is not empty."""
    before = {position for position in after if position % 3} if grown else other
    for small_bytes_max in (0, 100, 1 << 16):  # no set is small, some are, all are
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(position_sets, "SMALL_BYTES_MAX", small_bytes_max)
            patch.setattr(bitmap_format, "CHUNK_CONTAINERS_MAX", 2)
            after_set, before_set = position_set(after, runs=runs), position_set(before, runs=other_runs)
            assert listed(after_set, before_set) == sorted(after - before)
            assert is_restored(before_set, after_set) == bool(before - after)
    vectors = [Vector(frame_bytes(portable_bytes(each)), len(each), PLACE) for each in (before, after)]
    for checked_bytes_max in (0, 1 << 23):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(position_sets, "CHECKED_BYTES_MAX", checked_bytes_max)
            assert vectors[1].lacks_positions_of(vectors[0]) == bool(before - after)


def test_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chunk is empty, has more positions than the bound (or one container), or spans two upper halves."""
    monkeypatch.setattr(position_sets, "SMALL_BYTES_MAX", 0)
    monkeypatch.setattr(bitmap_format, "CHUNK_POSITIONS_MAX", 70_000)
    monkeypatch.setattr(bitmap_format, "CHUNK_CONTAINERS_MAX", 3)
    model = set(range(150_000)) | {2**20 * k for k in range(20)} | {2**32, 2**32 + 5}
    chunks = [chunk.tolist() for chunk in new_positions(position_set(model))]
    assert [position for chunk in chunks for position in chunk] == sorted(model)
    assert all(0 < len(chunk) <= 70_000 for chunk in chunks)
    assert all(len({position >> 16 for position in chunk}) <= 3 for chunk in chunks)
    assert all(len({position >> 32 for position in chunk}) == 1 for chunk in chunks)


@given(positions(upper_max=1), st.booleans(), st.booleans(), st.data())
@settings(max_examples=examples(200))
def test_garbage_is_refused(model: set[int], runs: bool, native: bool, data: st.DataObject) -> None:
    """Flipped and cut bytes give CorruptInput, or a set that is sound and has the announced cardinality."""
    broken = bytearray((native_bytes if native else portable_bytes)(model, runs=runs))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(broken) - 1, 80)) | st.integers(0, len(broken) - 1))
        broken[at] = data.draw(st.integers(0, 255))
    kept = data.draw(st.integers(0, len(broken)) | st.just(len(broken)))
    try:
        found = listed(decoded(bytes(broken[:kept]), len(model)))
    except CorruptInput:
        return
    assert len(found) == len(model)
    assert all(low < high for low, high in pairwise(found))


@given(st.sampled_from([PORTABLE, NATIVE]), st.binary(max_size=64))
@settings(max_examples=examples(150))
def test_random_bytes_are_refused(magic: bytes, tail: bytes) -> None:
    """Bytes that only begin like a DV give CorruptInput, whatever sizes they claim."""
    with pytest.raises(CorruptInput):
        listed(decoded(magic + tail, 77))


@given(
    positions(upper_max=2),
    st.booleans(),
    st.booleans(),
    st.none() | st.tuples(st.integers(0, 80), st.integers(0, 255)),
    st.sampled_from([0, 0, 1]),
)
@example({5, 2**32 - 1}, False, False, None, 0)
@example({5, 2**32 - 1}, False, False, None, 1)
@settings(max_examples=examples(300))
def test_a_check_agrees_with_decoding(
    model: set[int], runs: bool, native: bool, fault: tuple[int, int] | None, missing: int
) -> None:
    """The check of a vector that is copied finds the last position, or the fault, that decoding finds."""
    encoded = bytearray((native_bytes if native else portable_bytes)(model, runs=runs))
    if fault:
        encoded[fault[0] % len(encoded)] = fault[1]
    cardinality = len(model) + missing
    try:
        expected: int | str = max(listed(decoded(bytes(encoded), cardinality)), default=-1)
    except CorruptInput as error:
        expected = str(error)
    try:
        found: int | str = check_positions(memoryview(encoded), cardinality=cardinality, place=PLACE)
    except CorruptInput as error:
        found = str(error)
    assert found == expected


@pytest.mark.parametrize("bits", [16, 32], ids=["one bitmap", "two bitmaps"])
@pytest.mark.parametrize("rows", [3, 5000], ids=["array", "bitset"])
@pytest.mark.parametrize("filler", [0, 20], ids=["small", "large"])
def test_a_check_decodes_every_container(bits: int, rows: int, filler: int) -> None:
    """A container that is not the last is damaged, and every header is right."""
    first = range(0, 2 * rows, 2)
    others = [position + (number << 16) for number in range(1, filler) for position in range(0, 1 << 16, 2)]
    model = {*first, *others, 1 << bits + 5}
    encoded = bytearray(portable_bytes(model))
    assert check_positions(memoryview(encoded), cardinality=len(model), place=PLACE) == 1 << bits + 5
    body = array("H", first).tobytes() if rows == 3 else bytes([0x55]) * 1000
    at = encoded.index(body)
    encoded[at : at + 2] = encoded[at + 4 : at + 6] if rows == 3 else b"\xff\xff"
    with pytest.raises(CorruptInput, match="containers 0 to "):
        check_positions(memoryview(encoded), cardinality=len(model), place=PLACE)


def test_an_empty_bitmap_with_a_large_key_is_refused() -> None:
    """Java's readers would make an array of all bitmaps up to it, and run out of memory."""
    for key in (1024, 2**31 - 1):
        two = struct.pack("<QI", 2, 0) + BitMap({1}).serialize() + struct.pack("<I", key) + BitMap().serialize()
        for check in (decode_positions, check_positions):
            with pytest.raises(CorruptInput, match=f"upper bits are {key} after 0, at most 1023"):
                check(memoryview(PORTABLE + two), cardinality=1, place=PLACE)


def test_a_cookie_for_run_containers_without_any_is_refused() -> None:
    """pyroaring reads it, Java's readers do not."""
    body = struct.pack("<IBHHHH", 12347, 0, 0, 1, 3, 7)
    for check in (decode_positions, check_positions):
        with pytest.raises(CorruptInput, match="says that it has run containers, and it has none"):
            check(memoryview(PORTABLE + struct.pack("<QI", 1, 0) + body), cardinality=2, place=PLACE)


def test_the_order_of_runs_is_checked_in_large_vectors() -> None:
    """Those that are not decoded at once, too."""
    runs = [(4 * number, 1) for number in range(5_000)]
    for swapped in (runs, [runs[1], runs[0], *runs[2:]]):
        body = struct.pack("<H", len(runs)) + b"".join(struct.pack("<HH", *run) for run in swapped)
        keys = b"".join(struct.pack("<HH", key, 2 * len(runs) - 1) for key in range(4))
        size = 4 + 1 + len(keys) + 16
        offsets = struct.pack("<4I", *(size + number * len(body) for number in range(4)))
        bitmap = struct.pack("<HHB", 12347, 3, 15) + keys + offsets + 4 * body
        data = memoryview(PORTABLE + struct.pack("<QI", 1, 0) + bitmap)
        assert len(data) > 1 << 16
        if swapped is runs:
            assert check_positions(data, cardinality=8 * len(runs), place=PLACE) == 3 * 2**16 + 4 * 4_999 + 1
        else:
            with pytest.raises(CorruptInput, match="run start less than last end"):
                check_positions(data, cardinality=8 * len(runs), place=PLACE)


def test_counts_that_promise_too_much_are_refused() -> None:
    """A count of 2**64 - 1 bitmaps, or of 2**32 - 1 containers, is refused; a smaller one ends where the bytes end."""
    for magic, count in ((PORTABLE, 8), (NATIVE, 4)):
        with pytest.raises(CorruptInput, match=r"has [0-9]+ bitmaps, at most 1024 are read"):
            decoded(magic + b"\xff" * count, 1)
        with pytest.raises(CorruptInput, match="ends inside a header"):
            decoded(magic + (1024).to_bytes(count, "little"), 1)
    with pytest.raises(CorruptInput, match="4294967295 containers, at most 65536"):
        decoded(PORTABLE + struct.pack("<QIII", 1, 0, 12346, 2**32 - 1), 1)


# The bytes of {1, 2} and one of 2**16, in one portable bitmap:
#  0 magic  4 number of bitmaps  12 upper bits  16 cookie  20 number of containers
# 24 key 0, cardinality 1 (less 1)  28 key 1, cardinality 0  32 offsets  40 values 1, 2  44 value 0
SMALL = portable_bytes({1, 2, 2**16})


@pytest.mark.parametrize(
    ("at", "to", "message"),
    [
        (0, b"\xd2", r"magic is 1681511378, 1681511377 and 1681511376 are known"),
        (4, b"\x02", r"ends inside a header, after 46 bytes"),
        (4, b"\x00", r"bitmap needs 12 bytes, the DV has 46"),
        (15, b"\x80", r"upper bits are 2147483648 after -1, at most 1023"),
        (16, b"\x00", r"cookie is 12288, 12346 and 12347 are known"),
        (20, b"\x01", r"offset header does not point at its containers"),
        (24, b"\x01", r"keys of a bitmap's containers do not ascend"),
        (26, b"\x02", r"containers end at byte 48, the DV has 46"),
        (30, b"\x01", r"containers end at byte 48, the DV has 46"),
        (32, b"\x19", r"offset header does not point at its containers"),
        (40, b"\x02", r"containers 0 to 1 do not decode: .*strictly increasing"),
    ],
)
def test_each_header_byte_is_checked(at: int, to: bytes, message: str) -> None:
    """A byte changed in a header names what does not hold, with both values, in which file and where."""
    broken = SMALL[:at] + to + SMALL[at + len(to) :]
    with pytest.raises(CorruptInput, match=message) as caught:
        listed(decoded(broken, 3))
    assert (caught.value.path, caught.value.offset) == ("dv.bin", 1)
    assert caught.value.hint


def test_upper_bits_ascend() -> None:
    """Two bitmaps with the same upper bits are refused."""
    bitmap = struct.pack("<I", 5) + BitMap([1]).serialize()
    with pytest.raises(CorruptInput, match="upper bits are 5 after 5"):
        decoded(PORTABLE + struct.pack("<Q", 2) + bitmap + bitmap, 2)


def test_trailing_bytes_are_refused() -> None:
    """A byte after the bitmap is refused, though pyroaring would pass over it."""
    with pytest.raises(CorruptInput, match="the bitmap needs 46 bytes, the DV has 47"):
        decoded(SMALL + b"\0", 3)


def test_cut_bytes_are_refused() -> None:
    """Every shorter prefix of a DV is refused."""
    for kept in range(len(SMALL)):
        with pytest.raises(CorruptInput):
            decoded(SMALL[:kept], 3)


def test_native_size_field_is_checked() -> None:
    """The size before a bitmap of the native form is its bytes, no more and no fewer."""
    good = native_bytes({1, 2})
    broken = good[:8] + bytes([good[8] + 1]) + good[9:] + b"\0"
    with pytest.raises(CorruptInput, match="bitmap 0 needs 20 bytes, its header says 21"):
        decoded(broken, 2)


def test_cardinality_of_the_log_is_checked() -> None:
    """The log's cardinality and the sum of the containers' must agree."""
    with pytest.raises(CorruptInput, match="holds 3 positions, the log says 4"):
        decoded(SMALL, 4)


@pytest.mark.parametrize("shape", ["run", "bitset"])
def test_cardinality_of_containers_is_checked(shape: str) -> None:
    """A container whose contents are not as many as its header says is refused when it is decoded."""
    model = set(range(6000)) if shape == "run" else set(range(0, 12_000, 2))
    good = portable_bytes(model, runs=shape == "run")
    at = good.index(struct.pack("<H", 5999))
    found = decoded(good[:at] + struct.pack("<H", 5998) + good[at + 2 :], 5999)
    with pytest.raises(CorruptInput, match=r"hold 6000 positions, their header says 5999|cardinality is incorrect"):
        listed(found)


def test_delta_empty_dv() -> None:
    """No bytes with cardinality 0 are Delta's empty DV; no bytes with any other cardinality are corrupt."""
    assert listed(decoded(b"", 0)) == []
    with pytest.raises(CorruptInput, match="ends inside a header, after 0 bytes"):
        decoded(b"", 1)


# Written by delta-spark 4.4.0: DELETE of ids 3, 4, 7, 11, 18, 29, 65535, 65536, 66000 to 70000, 149999, 150000, 150007
# from ids 0 to 299999 in two files; the first DV of the file.
SPARK_FILE = bytes.fromhex(
    "010000003bd1d339640100000000000000000000003b30020002000006000100a10f020000000300040007000b0012001d00ffff"
    "020000000000d001a00fef49b173e71c"
)


def test_dv_written_by_spark(tmp_path: Path) -> None:
    """The bytes that Delta on Spark wrote, with array and run containers, give the deleted rows."""
    uuid = "91ab38cd-f5ec-4792-93bb-45c7be8a3f26"
    (tmp_path / f"deletion_vector_{uuid}.bin").write_bytes(SPARK_FILE)
    descriptor = DeletionVectorDescriptor("u", "K/HE^{3thiLE<o7Zktc4", 59, 4010, 1)
    (found,) = read_position_sets(FileIOStorage(), f"file://{tmp_path}", [descriptor])
    assert listed(found) == [3, 4, 7, 11, 18, 29, 65535, 65536, *range(66000, 70001), 149999]


def test_inline_example_of_the_protocol_is_refused() -> None:
    """PROTOCOL.md's inline example is the native form in big-endian, which Delta's own reader refuses as well."""
    text = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    descriptor = DeletionVectorDescriptor("i", text, 40, 6)
    with pytest.raises(CorruptInput, match="magic is -791463580") as caught:
        read_position_sets(FileIOStorage(), "file:///t", [descriptor])
    assert caught.value.path == "i" + text
    words = read_dv_bytes(FileIOStorage(), "file:///t", descriptor)
    as_delta_reads_it = struct.pack("<3I", *struct.unpack_from(">3I", words)) + bytes(words[12:])
    assert listed(decoded(as_delta_reads_it, 6)) == [3, 4, 7, 11, 18, 29]


@given(positions(upper_max=1).filter(lambda model: len(model) < 200), st.booleans())
@settings(max_examples=examples(30))
def test_inline_round_trip(model: set[int], native: bool) -> None:
    """Inline DVs of any length decode, though Delta pads their bytes to a multiple of 4."""
    data = (native_bytes if native else portable_bytes)(model)
    descriptor = DeletionVectorDescriptor("i", z85(data), len(data), len(model))
    (found,) = read_position_sets(FileIOStorage(), "file:///t", [descriptor])
    assert listed(found) == sorted(model)


def test_z85_is_that_of_the_rfc() -> None:
    """The example of ZeroMQ RFC 32."""
    data = read_dv_bytes(FileIOStorage(), "file:///t", DeletionVectorDescriptor("i", "HelloWorld", 8, 0))
    assert bytes(data) == bytes.fromhex("864fd26fb559f75b")


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        ("HelloWorl", 8, r"'HelloWorl' \(9 characters\) is not Z85"),
        ("Hello~orld", 8, r"is not Z85"),
        ('Hello"orld', 8, r"is not Z85"),
        ("Hello\u00e4orld", 8, r"is not Z85"),
        ("#####World", 8, r"is not Z85"),
        ("HelloWorld", 4, r"has 8 bytes with padding, the log says 4 without"),
        ("HelloWorld", 9, r"has 8 bytes with padding, the log says 9 without"),
        ("HelloWorld", -1, r"offset 1 and size -1"),
    ],
)
def test_inline_text_is_checked(text: str, size: int, message: str) -> None:
    """Characters, length and padding of inline DVs are checked."""
    with pytest.raises(CorruptInput, match=message):
        read_dv_bytes(FileIOStorage(), "file:///t", DeletionVectorDescriptor("i", text, size, 1))


def test_b85_and_z85_alphabets_map_one_to_one() -> None:
    """Every value 0 to 84 in every place of a group decodes as base85 does."""
    data = b"".join(struct.pack(">I", value * 85**power) for value in range(50) for power in range(5))
    assert base64.b85decode(base64.b85encode(data)) == data
    assert bytes(read_dv_bytes(FileIOStorage(), "", DeletionVectorDescriptor("i", z85(data), len(data), 0))) == data


@pytest.mark.parametrize(
    ("storage_type", "text", "path"),
    [
        ("u", "ab^-aqEH.-t@S}K{vb[*k^", "s3://mytable/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"),
        ("u", "^-aqEH.-t@S}K{vb[*k^", "s3://mytable/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"),
        ("p", "s3://other/a%20b%2525/dv.bin", "s3://other/a b%25/dv.bin"),
        ("p", "file:/other/dv%231.bin", "file:///other/dv#1.bin"),
    ],
)
def test_places(storage_type: str, text: str, path: str) -> None:
    """Relative DVs are named by their UUID below the table, absolute ones by a URL that is decoded once."""
    descriptor = DeletionVectorDescriptor(storage_type, text, 40, 6, 4)
    assert find_place("s3://mytable", descriptor) == DVPlace(path, 4)


@pytest.mark.parametrize("text", ["", "abc", "^-aqEH.-t@S}K{vb[*k", "^-aqEH.-t@S}K{vb[*k~"])
def test_bad_uuid_is_refused(text: str) -> None:
    """A relative DV whose last 20 characters are no UUID is refused with them."""
    with pytest.raises(CorruptInput):
        find_place("s3://mytable", DeletionVectorDescriptor("u", text, 40, 6, 4))


@pytest.mark.parametrize("storage_type", ["r", "U", ""])
def test_unknown_storage_type_is_unsupported(storage_type: str) -> None:
    """`r`, which Delta's main branch has and the protocol has not, and anything else is named and refused."""
    with pytest.raises(Unsupported, match=f"storage type '{storage_type}'"):
        find_place("s3://mytable", DeletionVectorDescriptor(storage_type, "x.bin", 40, 6, 4))


@pytest.mark.parametrize("storage_type", ["u", "p", "i"])
def test_a_size_beyond_all_data_files_is_refused(storage_type: str) -> None:
    """Nothing is read, and no memory asked for, for a DV of more bytes than any data file could need."""
    descriptor = DeletionVectorDescriptor(storage_type, "ab^-aqEH.-t@S}K{vb[*k^", (1 << 31) - 1, 6, 4)
    with pytest.raises(Unsupported, match="has 2147483647 bytes, at most 536870912 are read") as caught:
        read_dv_bytes(CountingStorage(), "file:///t", descriptor)
    assert caught.value.path


def test_bytes_beyond_the_end_are_not_made_room_for(tmp_path: Path) -> None:
    """A read of more than a file has, and of more than the memory, gives what there is."""
    path = tmp_path / "short"
    path.write_bytes(b"short")
    assert FileIOStorage().read(f"file://{path}", Span(1, 1 << 62)) == b"hort"
    assert FileIOStorage().read(f"file://{path}", Span(9, 1 << 62)) == b""


class CountingStorage(FileIOStorage):
    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Span | None] = []

    def read(self, path: str, span: Span | None = None) -> bytes:
        self.spans.append(span)
        return super().read(path, span)


def test_one_read_a_dv(tmp_path: Path) -> None:
    """A DV costs one ranged read of its frame; the version byte comes along with the first DV of a file."""
    other = portable_bytes({2**16})
    path = tmp_path / "dv.bin"
    path.write_bytes(b"\1" + framed(SMALL) + framed(other))
    storage = CountingStorage()
    second = 1 + len(framed(SMALL))
    assert read_dv_bytes(storage, "file:///t", dv_at(f"file://{path}", 1, SMALL, 3)) == SMALL
    assert read_dv_bytes(storage, "file:///t", dv_at(f"file://{path}", second, other, 1)) == other
    assert storage.spans == [Span(0, 1 + len(framed(SMALL))), Span(second, len(framed(other)))]


def test_a_known_dv_is_not_read_again(tmp_path: Path) -> None:
    """It is known by its place: another one in the same file may have the same size."""
    path, models = tmp_path / "dv.bin", [{1}, {2}]
    blobs = [portable_bytes(model) for model in models]
    path.write_bytes(b"\1" + b"".join(map(framed, blobs)))
    places = (1, 1 + len(framed(blobs[0])))
    descriptors = [dv_at(f"file://{path}", offset, blob, 1) for offset, blob in zip(places, blobs, strict=True)]
    storage, recent = CountingStorage(), Recent[bytes](1 << 10, len)
    for _ in range(2):
        found = [read_vectors(storage, "file:///t", [descriptor], recent)[0] for descriptor in descriptors]
        assert [listed(vector.positions()) for vector in found] == [sorted(model) for model in models]
    assert len(storage.spans) == 2


@given(st.lists(st.sets(st.integers(0, 300_000), max_size=5), min_size=1, max_size=12), st.data())
@settings(max_examples=examples(25))
def test_many_dvs_in_one_file(
    tmp_path_factory: pytest.TempPathFactory, models: list[set[int]], data: st.DataObject
) -> None:
    """Neighbours in a file come with one read, in the order asked for, repeats and gaps included."""
    path = tmp_path_factory.mktemp("dv") / "many.bin"
    content = b"\1"
    stored = []
    for model in models:
        content += bytes(data.draw(st.sampled_from([0, 0, 7])))
        blob = portable_bytes(model)
        stored.append((model, dv_at(f"file://{path}", len(content), blob, len(model))))
        content += framed(blob)
    path.write_bytes(content)
    asked = data.draw(st.lists(st.sampled_from(stored), min_size=1, max_size=20))
    storage = CountingStorage()
    found = read_position_sets(storage, "file:///t", [descriptor for _, descriptor in asked])
    assert [listed(positions) for positions in found] == [sorted(model) for model, _ in asked]
    assert len(storage.spans) == 1


@pytest.mark.parametrize(("bound", "value"), [("MERGED_GAP_BYTES_MAX", 99), ("MERGED_READ_BYTES_MAX", 170)])
def test_merged_reads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int) -> None:
    """DVs that lie far apart, or together are large, are read one by one; so are those of two files."""
    monkeypatch.setattr(deletion_vector, bound, value)
    path = tmp_path / "dv.bin"
    path.write_bytes(b"\1" + framed(SMALL) + bytes(100) + framed(SMALL))
    (tmp_path / "other.bin").write_bytes(b"\1" + framed(SMALL))
    storage = CountingStorage()
    descriptors = [dv_at(f"file://{path}", offset, SMALL, 3) for offset in (1, 155)]
    descriptors.append(dv_at(f"file://{tmp_path}/other.bin", 1, SMALL, 3))
    assert [listed(found) for found in read_position_sets(storage, "file:///t", descriptors)] == [[1, 2, 2**16]] * 3
    assert storage.spans == [Span(0, 55), Span(155, 54), Span(0, 55)]


def test_absent_offset_is_read_at_1(tmp_path: Path) -> None:
    """Without an offset the DV is the file's first: at 1, as delta-kernel-rs reads, not at 0, as the protocol says."""
    (tmp_path / "dv.bin").write_bytes(b"\1" + framed(SMALL))
    found = read_dv_bytes(FileIOStorage(), f"file://{tmp_path}", dv_at("dv.bin", None, SMALL, 3))
    assert bytes(found) == SMALL


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\2" + framed(SMALL), r"does not begin with the version byte 1"),
        (b"", r"does not begin with the version byte 1"),
        (b"\1" + b"\0\0\0\x2f" + framed(SMALL)[4:], r"size in its file is not the 46 of the log"),
        (b"\1" + framed(SMALL)[:-1], r"the file ends 53 bytes after the offset, the DV needs 54"),
        (b"\1", r"the file ends 0 bytes after the offset, the DV needs 54"),
        (b"\1" + framed(SMALL)[:-1] + b"\0", r"the DV's bytes do not match the CRC-32 in its file"),
        (b"\1" + framed(SMALL)[:44] + b"\7" + framed(SMALL)[45:], r"do not match the CRC-32"),
    ],
)
def test_each_field_of_the_frame_is_checked(tmp_path: Path, content: bytes, message: str) -> None:
    """Version, size, end of file and CRC each name the file and the offset, and what the log says."""
    path = tmp_path / "dv.bin"
    path.write_bytes(content)
    with pytest.raises(CorruptInput, match=message) as caught:
        read_dv_bytes(FileIOStorage(), "file:///t", dv_at(f"file://{path}", 1, SMALL, 3))
    assert caught.value.path == f"file://{path}"
    assert caught.value.offset == (0 if "version" in message else 1)
    assert caught.value.hint


@given(
    content=st.lists(st.integers(128, 255), min_size=30, max_size=60),
    offset=st.integers(0, 20),
    size=st.sampled_from([0, 1, 9, 46]),
)
@settings(max_examples=examples(100))
def test_a_file_that_is_no_dv_keeps_its_secrets(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, offset: int, size: int
) -> None:
    """Whoever writes a Delta log and names another file in it learns nothing of its bytes from the error."""
    said = []
    path = tmp_path_factory.mktemp("secret") / "file"
    for change in (0, 0x2A):
        path.write_bytes(b"\1" + bytes(each ^ change for each in content))
        with pytest.raises(CorruptInput) as caught:
            read_dv_bytes(
                FileIOStorage(), "file:///t", DeletionVectorDescriptor("p", f"file://{path}", size, 1, offset)
            )
        said.append((str(caught.value), caught.value.hint))
    assert said[0] == said[1]


def test_offset_past_the_end_is_corrupt(tmp_path: Path) -> None:
    """An offset that the file does not reach is a cut file, not an error of the store."""
    (tmp_path / "dv.bin").write_bytes(b"\1" + framed(SMALL))
    with pytest.raises(CorruptInput, match="ends 0 bytes after the offset"):
        read_dv_bytes(FileIOStorage(), f"file://{tmp_path}", dv_at("dv.bin", 5000, SMALL, 3))


def test_missing_file_is_missing(tmp_path: Path) -> None:
    """A DV file that is not there is ObjectMissing, with its path."""
    uuid = UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
    descriptor = DeletionVectorDescriptor("u", "^-aqEH.-t@S}K{vb[*k^", len(SMALL), 3, 1)
    with pytest.raises(ObjectMissing) as caught:
        read_dv_bytes(FileIOStorage(), f"file://{tmp_path}", descriptor)
    assert caught.value.path == f"file://{tmp_path}/deletion_vector_{uuid}.bin"
