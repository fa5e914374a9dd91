"""The kernel against the bare loop pyroaring -> Arrow -> Parquet, on the same bitmaps, in the same run.

The bare loop has the bitmaps in memory and checks nothing; the kernel reads them from a `.bin` file, checks every
field, and checks the footer of each file. Both end by forcing their files to the disk, all at once. The loop runs
twice: `plain` with pyarrow's defaults (snappy, dictionaries, paths spelled out row by row), and `equal` with the
kernel's own encodings. pyroaring's array goes to Arrow without a copy, as it would by way of numpy. Times are the best
of `--repeats`, taken in turns. Every run writes new files, as the daemon does: to replace a file takes the file system
longer than to write it.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from daemon.pipeline.kernel import translate
from daemon.store.durable import force_to_disk
from daemon.store.storage import FileIOStorage
from daemon.translate.delete_files import DeleteFileTask, DvChange
from state import DeletionVectorDescriptor

MAGIC = (1681511377).to_bytes(4, "little")
TARGET = 0.8


@dataclass(frozen=True)
class Shape:
    """DVs of one kind, and how many of them share a delete file."""

    name: str
    bitmaps: list[bytes]
    positions: int
    dvs_per_file: int


@dataclass(frozen=True)
class Result:
    shape: str
    dvs: int
    files: int
    positions: int
    kernel_ms: float
    plain_ms: float
    equal_ms: float


def shapes() -> Iterator[Shape]:
    rng = random.Random(7)

    def shape(name: str, bitmaps: list[BitMap64], dvs_per_file: int = 1) -> Shape:
        for bitmap in bitmaps:
            bitmap.run_optimize()
        return Shape(name, [bitmap.serialize() for bitmap in bitmaps], sum(map(len, bitmaps)), dvs_per_file)

    tiny = [BitMap64(rng.sample(range(1_000_000), 10)) for _ in range(1000)]
    small = [BitMap64(rng.sample(range(1_000_000), 1000)) for _ in range(300)]
    yield shape("10 rows, file each", tiny)
    yield shape("10 rows, one file", tiny, len(tiny))
    yield shape("1000 rows, file each", small)
    yield shape("1000 rows, one file", small, len(small))
    yield shape("runs of 1 M", [BitMap64(range(5000, 1_005_000)) for _ in range(4)])
    yield shape("every 2nd of 2 M", [BitMap64(range(0, 2_000_000, 2)) for _ in range(4)])
    yield shape("every 16th of 16 M", [BitMap64(range(0, 16_000_000, 16)) for _ in range(4)])
    yield shape("random 30 % of 3 M", [BitMap64(rng.sample(range(3_000_000), 900_000)) for _ in range(2)])
    yield shape("random 1 % of 100 M", [BitMap64(rng.sample(range(100_000_000), 1_000_000)) for _ in range(2)])
    yield shape("huge: 20 M of 40 M", [BitMap64(range(0, 40_000_000, 2))])


def data_file(index: int) -> str:
    return (
        f"s3://lake/warehouse/sales/orders/day=2026-01-01/part-{index:05d}-0f9c4a7e-0000-4000-8000-c000.snappy.parquet"
    )


def stored_tasks(shape: Shape, folder: Path, *, dvs_per_file: int, suffix: str) -> list[DeleteFileTask]:
    """Store the shape's DVs in one `.bin` file, and name the delete files for them."""
    content = bytearray(b"\1")
    changes = []
    for index, bitmap in enumerate(shape.bitmaps):
        blob = MAGIC + bitmap
        cardinality = len(BitMap64.deserialize(bitmap))
        after = DeletionVectorDescriptor("p", f"file://{folder}/dv.bin", len(blob), cardinality, len(content))
        content += struct.pack(">i", len(blob)) + blob + struct.pack(">I", zlib.crc32(blob))
        changes.append(DvChange(data_file(index), 1 << 40, None, after))
    (folder / "dv.bin").write_bytes(content)
    return [
        DeleteFileTask(f"file://{folder}/kernel-{start:06d}{suffix}", 0, tuple(changes[start : start + dvs_per_file]))
        for start in range(0, len(changes), dvs_per_file)
    ]


def kernel_runner(
    shape: Shape, folder: Path, *, dvs_per_file: int | None = None, suffix: str = ".parquet"
) -> Callable[[], None]:
    tasks = stored_tasks(shape, folder, dvs_per_file=dvs_per_file or shape.dvs_per_file, suffix=suffix)

    def run() -> None:
        written = translate(tasks, table_location=f"file://{folder}", storage=FileIOStorage())
        assert sum(result.file.positions for result in written if result.file) == shape.positions

    return run


def bare_runner(shape: Shape, folder: Path, *, equal: bool) -> Callable[[], None]:
    def run() -> None:
        written = []
        for first in range(0, len(shape.bitmaps), shape.dvs_per_file):
            pos, counts = [], []
            for bitmap in shape.bitmaps[first : first + shape.dvs_per_file]:
                positions = BitMap64.deserialize(bitmap).to_array()
                pos.append(pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)]))
                counts.append(len(positions))
            if equal:
                codes = pa.concat_arrays([pa.repeat(pa.scalar(code, pa.int32()), n) for code, n in enumerate(counts)])
                paths = pa.DictionaryArray.from_arrays(
                    codes, pa.array([data_file(first + i) for i in range(len(counts))])
                )
                options = {
                    "compression": "zstd",
                    "use_dictionary": ["file_path"],
                    "column_encoding": {"pos": "DELTA_BINARY_PACKED"},
                    "store_schema": False,
                }
            else:
                paths = pa.concat_arrays([pa.repeat(data_file(first + i), n) for i, n in enumerate(counts)])
                options = {}
            table = pa.table({"file_path": paths, "pos": pa.concat_arrays(pos)})
            written.append(f"{folder}/bare-{first:06d}.parquet")
            pq.write_table(table, written[-1], **options)
        force_to_disk(written)

    return run


def measure(shape: Shape, repeats: int) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runners = {
            "kernel": kernel_runner(shape, folder),
            "plain": bare_runner(shape, folder, equal=False),
            "equal": bare_runner(shape, folder, equal=True),
        }
        best = dict.fromkeys(runners, float("inf"))
        for _ in range(repeats):
            for kind, run in runners.items():
                for file in folder.glob("*.parquet"):
                    file.unlink()
                start = time.perf_counter()
                run()
                best[kind] = min(best[kind], (time.perf_counter() - start) * 1000)
    dvs = len(shape.bitmaps)
    files = -(-dvs // shape.dvs_per_file)
    return Result(shape.name, dvs, files, shape.positions, best["kernel"], best["plain"], best["equal"])


def measure_latency(repeats: int) -> float:
    """Milliseconds for one small DV, DV file present to delete file complete, once all is imported."""
    shape = Shape("one", [BitMap64([3, 70_000]).serialize()], 2, 1)
    with tempfile.TemporaryDirectory() as name:
        run = kernel_runner(shape, Path(name))
        run()
        times = []
        for _ in range(20 * repeats):
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1000)
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    results = [measure(shape, arguments.repeats) for shape in shapes()]
    kernel_ms = sum(result.kernel_ms for result in results)
    plain = sum(result.plain_ms for result in results) / kernel_ms
    equal = sum(result.equal_ms for result in results) / kernel_ms
    latency_ms = measure_latency(arguments.repeats)
    if arguments.json:
        overall = {"of_plain": plain, "of_equal": equal, "target": TARGET, "one_small_dv_ms": latency_ms}
        print(json.dumps({"shapes": [asdict(result) for result in results], "overall": overall}, indent=2))
        return
    times = f"{'kernel ms':>11}{'plain ms':>10}{'equal ms':>10}{'x plain':>9}{'x equal':>9}"
    print(f"{'shape':22}{'DVs':>6}{'files':>6}{'rows':>12}{times}")
    for r in results:
        times = f"{r.kernel_ms:11.1f}{r.plain_ms:10.1f}{r.equal_ms:10.1f}"
        ratios = f"{r.plain_ms / r.kernel_ms:9.2f}{r.equal_ms / r.kernel_ms:9.2f}"
        print(f"{r.shape:22}{r.dvs:6}{r.files:6}{r.positions:12,}{times}{ratios}")
    print(f"overall throughput: {plain:.2f} of plain, {equal:.2f} of equal; target {TARGET}")
    print(f"one small DV: {latency_ms:.2f} ms (median)")


if __name__ == "__main__":
    main()
