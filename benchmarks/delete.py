"""A deletion by dvsync against Delta's own DELETE with deletion vectors: the same predicate, in turns.

The table has `--files` data files. Each round deletes one row of one file, and one row of each file. dvsync works in
its own process, and again in Delta's session of Spark. A time is that of the whole deletion, commit included.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import conditions, parser, print_report
from daemon.config.settings import SparkSettings
from daemon.delta_writer.deletion import delete_rows
from daemon.spark.session import SparkPipeline
from tests.kit.handmade import HandmadeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000
TARGET_RATIO, POINT_TARGET_MS = 1.0, 500.0


@dataclass(frozen=True)
class Result:
    files: int
    writer: str
    ms: float
    target_ms: float | None


def make_table(folder: Path, files: int) -> None:
    table = HandmadeTable(folder)
    table.create()
    adds = []
    for number in range(files):
        adds.append(table.add(table.write_file([(ROWS * number + row, "p", f"v{row}") for row in range(ROWS)])))
    table.commit(adds)


def measure(spark: SparkSession | None, made: Path, files: int, repeats: int) -> list[Result]:
    """Each writer has a copy of its own, and deletes the same rows."""
    copies = {name: made.with_name(name) for name in ("dvsync", "dvsync on Spark", "Delta on Spark")}
    writers: dict[str, Callable[[str], object]] = {"dvsync": lambda where: delete_rows(str(copies["dvsync"]), where)}
    if spark:
        place, table = str(copies["dvsync on Spark"]), f"delta.`{copies['Delta on Spark']}`"
        writers["dvsync on Spark"] = lambda where: delete_rows(place, where, spark=spark, engine="spark")
        writers["Delta on Spark"] = lambda where: spark.sql(f"DELETE FROM {table} WHERE {where}")
    for name in writers:
        shutil.copytree(made, copies[name])
    results = []
    for touched in (1, files):
        times: dict[str, list[float]] = {name: [] for name in writers}
        # The first round is not counted: Spark compiles the query.
        for number in range(repeats + 1):
            row = number + (10 if touched == 1 else 100)
            where = f"id = {row}" if touched == 1 else f"value = 'v{row}'"
            for name, write in writers.items():
                start = time.perf_counter()
                write(where)
                times[name].append((time.perf_counter() - start) * 1000)
        medians = {name: statistics.median(each[1:]) for name, each in times.items()}
        own = POINT_TARGET_MS if touched == 1 else None
        targets = {"dvsync": own, "dvsync on Spark": medians.get("Delta on Spark", 0) * TARGET_RATIO}
        results += [Result(touched, name, each, targets.get(name)) for name, each in medians.items()]
    return results


def table_lines(results: list[Result]) -> list[str]:
    lines = [f"{'files touched':>13}  {'writer':16}{'ms':>8}{'target':>8}"]
    for each in results:
        is_above = each.target_ms is not None and each.ms > each.target_ms
        target = "" if each.target_ms is None else f"{each.target_ms:.0f}"
        lines.append(f"{each.files:13}  {each.writer:16}{each.ms:8.0f}{target:>8}{'  above' if is_above else ''}")
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--files", type=int, default=1_000)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--without-spark", action="store_true", help="only dvsync's own process")
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        made = Path(name) / "made"
        make_table(made, arguments.files)
        if arguments.without_spark:
            results = measure(None, made, arguments.files, arguments.repeats)
        else:
            pipeline = SparkPipeline(SparkSettings(master="local[2]"))
            with pipeline.session() as spark:
                results = measure(spark, made, arguments.files, arguments.repeats)
            pipeline.close()
    print_report(arguments, before, {"results": [asdict(each) for each in results]}, table_lines(results))


if __name__ == "__main__":
    main()
