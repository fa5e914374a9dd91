"""Mirrors against the plain way to the same bytes or rows, in the same run. Targets: 1.2 of `cp`, 1.3 of pyarrow.

A mirror of kind `footer` is a copy of all pages and a new footer: against `cp` of the same files on the same disk. One
of kind `rewrite` is read and written row group by row group, read again, and compared: against pyarrow's bare read and
write with the same options. All end by forcing the files to the disk. Times are the best of `--repeats`, taken in
turns. Peak memory of a rewrite above the idle process, of a file with one row group, and of one with eight: a process
for each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import conditions, parser, print_report
from daemon.delta.actions import Metadata
from daemon.mirror.copying import MirrorCopy
from daemon.mirror.footer import mend_footer
from daemon.mirror.making import make_mirrors
from daemon.mirror.parquet import as_arrow, encode_footer, load_footer
from daemon.mirror.rewriting import RewritePlan, RewriteTask
from daemon.store.durable import force_to_disk
from daemon.store.storage import FileIOStorage
from daemon.translate.schema import TableSchema, translate_schema

TARGET_FOOTER, TARGET_REWRITE = 1.2, 1.3
FILES = 8
ROW_GROUP_ROWS = 500_000
STORAGE = FileIOStorage()


def table() -> TableSchema:
    """With column mapping, whose files have no ids for elements; the double `d` was an int once."""
    of_list = {"type": "array", "elementType": "long", "containsNull": True}
    kinds = {"n": "long", "d": "double", "t": "timestamp", "text": "string", "l": of_list}
    fields = []
    for number, (name, kind) in enumerate(kinds.items(), start=1):
        mapping: dict[str, Any] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}
        if name == "l":
            mapping["delta.columnMapping.nested.ids"] = {"l.element": 11}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": mapping})
    schema = json.dumps({"type": "struct", "fields": fields})
    return translate_schema(Metadata("t", schema, [], {"delta.columnMapping.mode": "name"}))


def write_file(path: Path, row_groups: int) -> Path:
    kinds = {"n": pa.int64(), "d": pa.int32(), "t": pa.timestamp("us", "UTC"), "text": pa.string()}
    fields = [
        pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})
        for number, (name, kind) in enumerate({**kinds, "l": pa.list_(pa.int64())}.items(), start=1)
    ]
    with pq.ParquetWriter(path, pa.schema(fields)) as writer:
        for group in range(row_groups):
            rows = range(group * ROW_GROUP_ROWS, (group + 1) * ROW_GROUP_ROWS)
            # Multiplied by a prime, neighbours have little in common.
            mixed = [row * 2_654_435_761 % (1 << 31) for row in rows]
            columns: Mapping[str, Any] = {
                "n": mixed,
                "d": mixed[::-1],
                "t": pa.array(mixed, pa.int64()).cast(kinds["t"]),
                "text": [f"order {row % 50_000}" for row in mixed],
                "l": pa.ListArray.from_arrays(pa.array(range(len(rows) + 1), pa.int32()), pa.array(mixed, pa.int64())),
            }
            arrays = [pa.array(values, field.type) for values, field in zip(columns.values(), fields, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), row_group_size=ROW_GROUP_ROWS)
    return path


def best_s(runs: Mapping[str, Callable[[], None]], out: Path, repeats: int) -> dict[str, float]:
    """The best time of each, in turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            started_s = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started_s)
    return best


def by_cp(files: list[Path], out: Path) -> None:
    subprocess.run(["cp", *map(str, files), str(out)], check=True)
    force_to_disk([f"{out}/{file.name}" for file in files])


def by_footers(files: list[Path], out: Path, schema: TableSchema) -> None:
    tasks = []
    for file in files:
        footer = load_footer(STORAGE, str(file))
        tail = encode_footer(mend_footer(footer.metadata, schema))
        tasks.append(MirrorCopy(str(file), footer.start, tail, f"{out}/{file.name}"))
    list(make_mirrors(STORAGE, {}, tasks))


def by_pyarrow(file: Path, out: Path, options: dict[str, Any]) -> None:
    source = pq.ParquetFile(file)
    with pq.ParquetWriter(out / file.name, source.schema_arrow, **options) as writer:
        for group in range(source.num_row_groups):
            writer.write_table(source.read_row_group(group), row_group_size=ROW_GROUP_ROWS)
    force_to_disk([f"{out}/{file.name}"])


def by_rewrite(file: Path, out: Path, schema: TableSchema) -> None:
    list(make_mirrors(STORAGE, {}, [RewriteTask(str(file), f"{out}/{file.name}", schema, {}, {})]))


def memory_mb(field: str) -> float:
    """A line of /proc/self/status, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1000


def peak_mb(file: Path, out: Path) -> float:
    """Of a rewrite in a process of its own, above its idle memory."""
    command = [sys.executable, "-m", "benchmarks.mirrors", "--peak-of", str(file), "--folder", str(out)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.peak_of:
        by_rewrite(arguments.peak_of.with_name("tiny.parquet"), arguments.folder, table())
        idle_mb = memory_mb("VmRSS")
        by_rewrite(arguments.peak_of, arguments.folder, table())
        print(memory_mb("VmHWM") - idle_mb)
        return
    before = conditions(arguments.folder)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder, out, schema = Path(name), Path(name) / "out", table()
        files = [write_file(folder / f"{number}.parquet", 2) for number in range(FILES)]
        large = write_file(folder / "large.parquet", 8)
        one = write_file(folder / "one.parquet", 1)
        pq.write_table(pq.ParquetFile(one).read_row_group(0).slice(0, 10), folder / "tiny.parquet")
        total_mb = sum(file.stat().st_size for file in files) / 1e6
        copied = best_s(
            {"cp": partial(by_cp, files, out), "footers": partial(by_footers, files, out, schema)},
            out,
            arguments.repeats,
        )
        footer = as_arrow(mend_footer(load_footer(STORAGE, str(large)).metadata, schema))
        plan = RewritePlan.of(footer, RewriteTask(str(large), "", schema, {}, {}))
        runs = {
            "pyarrow": partial(by_pyarrow, large, out, plan.options(footer)),
            "rewrite": partial(by_rewrite, large, out, schema),
        }
        rewritten = best_s(runs, out, arguments.repeats)
        peaks = [peak_mb(file, out) for file in (one, large)]
        mb = large.stat().st_size / 1e6
    report = {
        "footer": {"mb": total_mb, **copied, "ratio": copied["footers"] / copied["cp"], "target": TARGET_FOOTER},
        "rewrite": {
            "mb": mb,
            **rewritten,
            "ratio": rewritten["rewrite"] / rewritten["pyarrow"],
            "target": TARGET_REWRITE,
        },
        "peak_mb": {"row_group": peaks[0], "row_groups_8": peaks[1]},
    }
    lines = [
        f"footer: {FILES} files, {total_mb:.0f} MB: {copied['footers']:.3f} s, cp {copied['cp']:.3f} s, ratio "
        f"{report['footer']['ratio']:.2f}; target {TARGET_FOOTER}",
        f"rewrite: {mb:.0f} MB, 8 row groups: {rewritten['rewrite']:.2f} s, pyarrow {rewritten['pyarrow']:.2f} s, "
        f"ratio {report['rewrite']['ratio']:.2f}; target {TARGET_REWRITE}",
        f"peak above idle: {peaks[0]:.0f} MB for one row group, {peaks[1]:.0f} MB for eight",
    ]
    print_report(arguments, before, report, lines)


if __name__ == "__main__":
    main()
