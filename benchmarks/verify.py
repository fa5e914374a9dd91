"""What `dvsync verify` takes by level: time, and peak memory of this process, of the JVM and of the Python workers.

A Delta table of `--rows` rows in `--files` files, of which `--deleted` percent are deleted at random, is followed once.
Each level is then verified as its own run, in one Spark session; the time of a level includes those before it.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

from benchmarks.memory import Memory
from benchmarks.report import conditions, parser, print_report
from daemon.config.settings import SparkSettings
from daemon.spark.jars import with_iceberg_jar
from daemon.spark.session import SparkPipeline
from daemon.verify.findings import Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.handmade import Bench

COLUMNS = "id", "CAST(hash(id) % 1000 AS INT) AS n", "id * 1.5D AS amount", "concat('name ', id % 10000) AS name"


@dataclass(frozen=True)
class Result:
    level: str
    seconds: float
    own_mb: float
    jvm_mb: float
    workers_mb: float


def make_table(pipeline: SparkPipeline, place: Path, rows: int, files: int, deleted: int) -> None:
    with pipeline.session() as spark:
        frame = spark.range(0, rows, 1, files).selectExpr(*COLUMNS)
        frame.write.format("delta").option("delta.enableDeletionVectors", "true").save(str(place))
        spark.sql(f"DELETE FROM delta.`{place}` WHERE pmod(hash(id, 7), 100) < {deleted}")


def measure(bench: Bench, level: Level) -> Result:
    memory = Memory()
    with memory.watched():
        start_s = time.perf_counter()
        proof = Verifier(bench.context).verify(Scope(level), Event())
        seconds = time.perf_counter() - start_s
    assert proof and proof.is_right, proof
    peaks = (memory.own_peak, memory.jvm_peak, memory.workers_peak)
    return Result(level.value, seconds, *(peak / 1e6 for peak in peaks))


def table_lines(results: list[Result]) -> list[str]:
    lines = [f"{'level':10}{'seconds':>9}{'own MB':>8}{'JVM MB':>8}{'workers MB':>12}"]
    lines += [f"{r.level:10}{r.seconds:9.1f}{r.own_mb:8.0f}{r.jvm_mb:8.0f}{r.workers_mb:12.0f}" for r in results]
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=100_000_000)
    options.add_argument("--files", type=int, default=100)
    options.add_argument("--deleted", type=int, default=30, help="percent (%(default)s)")
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    settings = with_iceberg_jar(SparkSettings(master="local[2]"))
    pipeline = SparkPipeline(settings)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name, pipeline.session():
        place = Path(name) / "lake" / "t"
        make_table(pipeline, place, arguments.rows, arguments.files, arguments.deleted)
        bench = Bench(Path(name) / "dvsync", f"file://{place}", spark_settings=settings)
        bench.sync()
        results = [measure(bench, level) for level in Level]
        bench.close()
    pipeline.close()
    print_report(arguments, before, {"results": [asdict(result) for result in results]}, table_lines(results))


if __name__ == "__main__":
    main()
