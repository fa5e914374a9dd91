"""Deletion vectors copied into Puffin files against a plain copy of the same bytes, in the same run.

The plain copy reads each vector's range from the `.bin` file and writes it, one file for up to 1,000 vectors as the
kernel does; it checks nothing. Both end by forcing their files to the disk. The kernel checks size, magic and CRC-32,
decodes every container of each vector, and writes the Puffin footer. Times are the best of `--repeats`, taken in turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.kernel_throughput import Shape, kernel_runner, shapes, stored_tasks
from daemon.iceberg.puffin import SUFFIX
from daemon.store.durable import force_to_disk
from daemon.translate.planner import VECTORS_MAX

TARGET = 0.5
FRAME_BYTES = 8


@dataclass(frozen=True)
class Result:
    """Sizes in bytes, speeds in MB (10^6 bytes) a second."""

    shape: str
    dvs: int
    size_bytes: int
    kernel_mb_s: float
    plain_mb_s: float


def plain_runner(shape: Shape, folder: Path) -> Callable[[], None]:
    tasks = stored_tasks(shape, folder, dvs_per_file=VECTORS_MAX, suffix=SUFFIX)
    ranges = [[(each.after.offset or 0, each.after.size_in_bytes) for each in task.changes] for task in tasks]

    def run() -> None:
        written = []
        for number, of_file in enumerate(ranges):
            written.append(f"file://{folder}/plain-{number}{SUFFIX}")
            with (folder / "dv.bin").open("rb") as source, Path(written[-1].removeprefix("file://")).open("wb") as copy:
                for offset, size_bytes in of_file:
                    source.seek(offset)
                    copy.write(source.read(size_bytes + FRAME_BYTES))
        force_to_disk(written)

    return run


def measure(shape: Shape, repeats: int) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runners = {
            "kernel": kernel_runner(shape, folder, dvs_per_file=VECTORS_MAX, suffix=SUFFIX),
            "plain": plain_runner(shape, folder),
        }
        best_s = dict.fromkeys(runners, float("inf"))
        for _ in range(repeats):
            for kind, run in runners.items():
                for file in folder.glob(f"*{SUFFIX}"):
                    file.unlink()
                started_s = time.perf_counter()
                run()
                best_s[kind] = min(best_s[kind], time.perf_counter() - started_s)
        size_bytes = (folder / "dv.bin").stat().st_size
    speeds = {kind: size_bytes / 1e6 / seconds for kind, seconds in best_s.items()}
    return Result(shape.name.split(",")[0], len(shape.bitmaps), size_bytes, speeds["kernel"], speeds["plain"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    results = [measure(shape, arguments.repeats) for shape in shapes() if "one file" not in shape.name]
    if arguments.json:
        print(json.dumps({"results": [asdict(result) for result in results], "target": TARGET}, indent=2))
        return
    print(f"{'shape':22}{'DVs':>6}{'bytes':>12}{'kernel MB/s':>13}{'plain MB/s':>12}{'ratio':>7}")
    for r in results:
        ratio = r.kernel_mb_s / r.plain_mb_s
        print(f"{r.shape:22}{r.dvs:6}{r.size_bytes:12,}{r.kernel_mb_s:13.0f}{r.plain_mb_s:12.0f}{ratio:7.2f}")
    total = sum(r.size_bytes for r in results)
    kernel = total / sum(r.size_bytes / r.kernel_mb_s for r in results)
    plain = total / sum(r.size_bytes / r.plain_mb_s for r in results)
    print(f"all bytes: {kernel:.0f} of {plain:.0f} MB/s, {kernel / plain:.2f}; target {TARGET} of the plain copy")


if __name__ == "__main__":
    main()
