"""What tables of a Unity Catalog cost while nothing happens: `dvsync run` with many catalog-managed tables.

The catalog is the tests' server, in a process of its own that is not counted. One source pattern finds `--tables`
tables, each with a data file and a staged commit, polled every 10 s. When the first syncs have ended and the newest
commits are a minute old, the daemon's process is watched for `--seconds`: CPU in shares of one core, memory as its
resident set, and the requests that the catalog got. Maintenance and verification are off: they have costs of their own.

Then one pass of a listing of `--listed` tables, in pages of 50, by the function that the daemon calls every 30 s.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import time
from collections import Counter
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.report import conditions, parser, print_report
from daemon.clock import SystemClock
from daemon.config.load import load_settings
from daemon.service.discovery import discover
from daemon.sync.news import UNFINISHED_COMMIT_MAX_S
from tests.kit.daemons import Daemon, until
from tests.kit.handmade import new_uuid
from tests.kit.handmade_managed import Managed
from tests.kit.unity import Answer, Request, UnityTable, unity_server

TARGET_CPU_PERCENT = 10
TARGET_LISTING_S = 30
FIRST_SYNCS_MAX_S = 3_600.0
PAGE = 50
BAD = ("warning", "error")
CONFIG = """
sources: {{prod: {{type: unity, uri: "{uri}", token: catalog-token}}}}
state: {{url: "sqlite:///state.db"}}
catalogs: {{local: {{type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}}}
health: {{port: 0}}
log: {{format: json}}
maintenance: {{steps: []}}
verify: {{level: "off"}}
tables: [{{source: "prod:main.{schema}.*", target: "lake.{{table}}"}}]
"""


def serve(folder: Path, counts: dict[str, int], pipe: Connection) -> None:
    """Serve so many tables in each schema, and tell the address; then, when asked, the requests since the last time."""
    first = Managed(folder / "first")
    first.create()
    first.stage(3)
    with unity_server() as server:
        pages: dict[str, list[bytes]] = {}
        for schema, count in counts.items():
            infos = []
            for number in range(count):
                name, place = f"t{number:06d}", folder / schema / f"t{number:06d}"
                told = replace(first.told, table_id=str(new_uuid()), location=f"file://{place}")
                if schema == "sales":
                    shutil.copytree(first.folder, place)
                    server.tables["main", schema, name] = told
                infos.append(info(schema, name, told))
            parts = [infos[start : start + PAGE] for start in range(0, count, PAGE)]
            pages[schema] = [
                json.dumps({"tables": part, "next_page_token": str(at) if at < len(parts) else None}).encode()
                for at, part in enumerate(parts, 1)
            ]

        def answer(request: Request) -> Answer | None:
            if not request.path.endswith("/tables"):
                return None
            return Answer(200, pages[request.query["schema_name"]][int(request.query.get("page_token", 0))])

        server.answer = answer
        pipe.send(server.url)
        while pipe.recv():
            asked, server.requests = server.requests, []
            pipe.send(Counter("listing" if "/tables?" in each else "poll" for each in asked))


def info(schema: str, name: str, told: UnityTable) -> dict[str, object]:
    """As Unity's server lists a table, with columns and properties."""
    columns = [{"name": f"column{n}", "type_text": "bigint", "type_json": "{}", "position": n} for n in range(10)]
    return {
        **{"name": name, "catalog_name": "main", "schema_name": schema, "table_id": told.table_id},
        **{"table_type": told.table_type, "data_source_format": "DELTA", "storage_location": told.location},
        **{"columns": columns, "properties": {"delta.feature.catalogManaged": "supported"}, "owner": "someone"},
    }


def watch(folder: Path, url: str, pipe: Connection, *, tables: int, seconds: float) -> dict[str, object]:
    (folder / "config.yaml").write_text(CONFIG.format(uri=url, schema="sales"))
    daemon = Daemon(folder / "config.yaml", module="daemon")
    started_s = time.monotonic()
    daemon.launch()
    try:
        daemon.started()
        until(
            lambda: [status["synced_version"] for status in daemon.tables().values()] == [1] * tables,
            "the first syncs",
            wait_s=FIRST_SYNCS_MAX_S,
        )
        first_syncs_s = time.monotonic() - started_s
        time.sleep(UNFINISHED_COMMIT_MAX_S)
        process = psutil.Process(daemon.process.pid)
        pipe.send(True)
        pipe.recv()
        used_s, start_s = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        watched_s = time.monotonic() - start_s
        cpu_percent = (sum(process.cpu_times()[:2]) - used_s) / watched_s * 100
        pipe.send(True)
        return {
            "first_syncs_s": round(first_syncs_s, 1),
            "cpu_percent": round(cpu_percent, 2),
            "memory_mib": process.memory_info().rss >> 20,
            "threads": process.num_threads(),
            "requests_a_second": {kind: round(count / watched_s, 1) for kind, count in pipe.recv().items()},
            "failures": Counter(
                line.get("reason", line["event"]) for line in daemon.lines if line["level"] in ("warning", "error")
            ),
        }
    finally:
        daemon.kill()


def listing(folder: Path, url: str) -> dict[str, object]:
    (folder / "listed.yaml").write_text(CONFIG.format(uri=url, schema="listed"))
    settings, process = load_settings(folder / "listed.yaml"), psutil.Process()
    before = process.memory_info().rss
    start_s, used_s = time.monotonic(), sum(process.cpu_times()[:2])
    found = discover(settings, SystemClock())
    return {
        "found": len(found.tables),
        "seconds": round(time.monotonic() - start_s, 1),
        "cpu_s": round(sum(process.cpu_times()[:2]) - used_s, 1),
        "memory_mib": process.memory_info().rss - before >> 20,
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--tables", type=int, default=3000)
    options.add_argument("--seconds", type=float, default=60.0, help="how long it is watched (%(default)s)")
    options.add_argument("--listed", type=int, default=100_000)
    chosen = options.parse_args()
    before = conditions(chosen.folder)
    with TemporaryDirectory(dir=chosen.folder) as temporary:
        folder = Path(temporary)
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        counts = {"sales": chosen.tables, "listed": chosen.listed}
        server = context.Process(target=serve, args=(folder, counts, theirs), daemon=True)
        server.start()
        url = pipe.recv()
        idle = watch(folder, url, pipe, tables=chosen.tables, seconds=chosen.seconds)
        listed = listing(folder, url)
        pipe.send(False)
        server.join()
    report = {
        "tables": chosen.tables,
        "idle": idle,
        "listed": listed,
        "target_cpu_percent": TARGET_CPU_PERCENT,
        "target_listing_s": TARGET_LISTING_S,
    }
    print_report(chosen, before, report, [f"{key}: {json.dumps(value)}" for key, value in report.items()])
    return 1 if idle["failures"] or listed["found"] != chosen.listed else 0


if __name__ == "__main__":
    sys.exit(main())
