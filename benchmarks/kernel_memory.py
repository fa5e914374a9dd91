"""Peak memory of the kernel above the idle process, for DVs of 100 million positions; target 500 MB.

Each case runs in a process of its own, which translates one small DV first: that is idle. The peak is VmHWM of
/proc/self/status, so this needs Linux.
"""

from __future__ import annotations

import argparse
import json
import pickle
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pyroaring import BitMap64

from daemon.pipeline.kernel import translate
from daemon.store.storage import FileIOStorage
from daemon.translate.delete_files import DeleteFileTask, DvChange
from state import DeletionVectorDescriptor

MAGIC = (1681511377).to_bytes(4, "little")
POSITIONS = 100_000_000
TARGET_MB = 500


@dataclass(frozen=True)
class Result:
    case: str
    dv_mb: float
    written: int
    seconds: float
    idle_mb: float
    above_idle_mb: float


def every(step: int, first: int = 0) -> BitMap64:
    return BitMap64(range(first, first + POSITIONS * step, step))


CASES: dict[str, Callable[[], tuple[BitMap64 | None, BitMap64]]] = {
    "dense range": lambda: (None, every(1)),
    "every 2nd": lambda: (None, every(2)),
    "every 16th (arrays of 4096)": lambda: (None, every(16)),
    "every 16th, few are new": lambda: (every(16) - BitMap64(range(0, POSITIONS * 16, 16_000)), every(16)),
    "every 16th, half are new": lambda: (every(32), every(16)),
    "every 16th, all are others": lambda: (every(16), every(16, first=7)),
}


def store(folder: Path, name: str, bitmap: BitMap64) -> DeletionVectorDescriptor:
    bitmap.run_optimize()
    blob = MAGIC + bitmap.serialize()
    (folder / name).write_bytes(b"\1" + struct.pack(">i", len(blob)) + blob + struct.pack(">I", zlib.crc32(blob)))
    return DeletionVectorDescriptor("p", f"file://{folder}/{name}", len(blob), len(bitmap), 1)


def task(folder: Path, case: str, before: BitMap64 | None, after: BitMap64) -> DeleteFileTask:
    data_file = "s3://lake/warehouse/sales/orders/part-00000-0f9c4a7e-0000-4000-8000-c000.snappy.parquet"
    stored = None if before is None else store(folder, f"{case}-before.bin", before)
    change = DvChange(data_file, 1 << 40, stored, store(folder, f"{case}-after.bin", after))
    return DeleteFileTask(f"file://{folder}/{case}.parquet", 0, (change,))


def prepare(case: str, folder: Path) -> None:
    tasks = (task(folder, "small", None, BitMap64([1, 2])), task(folder, "large", *CASES[case]()))
    (folder / "tasks.pickle").write_bytes(pickle.dumps(tasks))


def memory_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(field)


def run(case: str, folder: Path) -> None:
    def translated(task: DeleteFileTask) -> int:
        (result,) = translate([task], table_location=f"file://{folder}", storage=FileIOStorage())
        return result.file.positions if result.file else 0

    small, large = pickle.loads((folder / "tasks.pickle").read_bytes())
    translated(small)
    idle_mb = memory_mb("VmRSS")
    start = time.perf_counter()
    written = translated(large)
    seconds = time.perf_counter() - start
    dvs = [dv.size_in_bytes for dv in (large.changes[0].before, large.changes[0].after) if dv]
    result = Result(case, sum(dvs) / 1e6, written, seconds, idle_mb, memory_mb("VmHWM") - idle_mb)
    print(json.dumps(asdict(result)))


def measure(case: str) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        for step in ("prepare", "run"):
            command = [sys.executable, __file__, "--child", step, case, folder]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return Result(**json.loads(output))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--child", nargs=3, metavar=("STEP", "CASE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        step, case, folder = arguments.child
        {"prepare": prepare, "run": run}[step](case, Path(folder))
        return
    results = [measure(case) for case in CASES]
    if arguments.json:
        print(json.dumps({"cases": [asdict(result) for result in results], "target_mb": TARGET_MB}, indent=2))
        return
    print(f"{'case':30}{'DV MB':>8}{'written':>13}{'seconds':>9}{'idle MB':>9}{'above idle MB':>15}")
    for r in results:
        print(f"{r.case:30}{r.dv_mb:8.1f}{r.written:13,}{r.seconds:9.1f}{r.idle_mb:9.0f}{r.above_idle_mb:15.0f}")
    print(f"target: below {TARGET_MB} MB above idle")


if __name__ == "__main__":
    main()
