"""`python -m benchmarks`: every benchmark, one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = (
    "commit_latency",
    "object_store",
    "kernel_throughput",
    "kernel_memory",
    "vectors",
    "mirrors",
    "format_versions",
    "table_size",
    "first_sync",
    "many_first_syncs",
    "commands",
    "idle_daemon",
    "source_catalog",
    "compaction",
    "scan",
    "bitmaps",
    "delete",
    "verify",
    "soak",
    "load",
    "shares",
)


def main() -> int:
    failed = False
    for program in PROGRAMS:
        print(f"\n== {program}", flush=True)
        ended = subprocess.run([sys.executable, str(Path(__file__).with_name(f"{program}.py"))], check=False)
        failed = failed or ended.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
