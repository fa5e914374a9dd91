"""Latency of a commit on an object store whose every request takes DELAY_MS longer than moto's own time.

Beside it in the same run `bare`: only the requests that must follow one another, by the same client, and without any
other work. They are the commit, the deletion vectors, the delete files, the manifest, the manifest list, the metadata
file; where there are many of a kind, as many at the same time as dvsync sends. Each commit deletes one more row of each
touched file. The catalog and the state database are on the local disk.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from pyiceberg.io.pyarrow import PyArrowFileIO

from benchmarks.commit_latency import DATA_FILES, ROWS, delete_one_row_each
from benchmarks.report import conditions, parser, percentile, print_report
from daemon.store.object_store import find_object
from daemon.store.storage import map_files
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.servers import accepts, free_port, wait_until

DELAY_MS = 30
RATIO_MAX = 1.5
LATENCY_MAX_MS = 500
BUCKET = "bench"
TOUCHED = (1, 20, 200)
SMALL = bytes(4096)


@dataclass(frozen=True)
class Result:
    """Medians in milliseconds; `ratio` is the median of each commit's own ratio to `bare`."""

    touched_files: int
    commits: int
    p50_ms: float
    bare_ms: float
    ratio: float


def serve_moto(port: int) -> None:
    ThreadedMotoServer("127.0.0.1", port, verbose=False).start()
    time.sleep(1e6)


def serve_delayed(port: int, upstream: int) -> None:
    """Pass on everything, and each byte from the client DELAY_MS late."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def send() -> None:
            while True:
                at_s, data = await due.get()
                await asyncio.sleep(max(0.0, at_s - time.monotonic()))
                writer.write(data)
                if not data:
                    break
                await writer.drain()
            writer.close()

        sending = asyncio.create_task(send())
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                due.put_nowait((time.monotonic() + delay_s, data))
        due.put_nowait((0.0, b""))
        with suppress(ConnectionError):
            await sending

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        store_reader, store_writer = await asyncio.open_connection("127.0.0.1", upstream)
        await asyncio.gather(pump(reader, store_writer, DELAY_MS / 1000), pump(store_reader, writer, 0.0))

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def stores() -> Iterator[tuple[int, int]]:
    """The ports of moto and of the way to it that is slow, each served by a process of its own."""
    direct, delayed = free_port(), free_port()
    served = [
        multiprocessing.Process(target=serve_moto, args=(direct,), daemon=True),
        multiprocessing.Process(target=serve_delayed, args=(delayed, direct), daemon=True),
    ]
    for process, port in zip(served, (direct, delayed), strict=True):
        process.start()
        wait_until(partial(accepts, port), "the store starts")
    try:
        yield direct, delayed
    finally:
        for process in served:
            process.terminate()
            process.join()


def properties(port: int) -> dict[str, str]:
    return {
        "s3.endpoint": f"http://127.0.0.1:{port}",
        "s3.region": "us-east-1",
        "s3.access-key-id": "bench",
        "s3.secret-access-key": "bench",
    }


def send(table: HandmadeTable, options: dict[str, str], name: str) -> None:
    """Copy the table's new files to the store."""
    for path in table.take_new_files():
        put(options, f"{name}/{path.relative_to(table.folder)}", path.read_bytes())


def get(options: dict[str, str], key: str) -> None:
    found = find_object(options, f"s3://{BUCKET}/{key}", lambda: PyArrowFileIO(options))
    assert found
    found.read()


def put(options: dict[str, str], key: str, data: bytes = SMALL) -> None:
    found = find_object(options, f"s3://{BUCKET}/{key}", lambda: PyArrowFileIO(options))
    assert found
    with found.open_writer() as file:
        file.write(data)


def bare_ms(options: dict[str, str], touched_files: int) -> float:
    """The requests of one commit that must follow one another."""
    start_s = time.perf_counter()
    remote = "s3://{}".format
    get(options, "bare/0")  # the commit
    map_files(partial(get, options), ["bare/0"] * 2, remote)  # the deletion vectors of this commit and the one before
    map_files(partial(put, options), [f"bare/{number}" for number in range(touched_files)], remote)  # the delete files
    for _ in range(3):  # manifest, manifest list, metadata
        put(options, "bare/0")
    return (time.perf_counter() - start_s) * 1000


def measure(touched_files: int, ports: tuple[int, int], folder: Path, *, commits: int, warm_up: int) -> Result:
    direct, delayed = ports
    name, options = f"t{touched_files}", properties(delayed)
    with TemporaryDirectory(dir=folder) as work:
        table = HandmadeTable(Path(work) / "lake")
        table.create()
        paths = [
            table.write_file([(row, "a", f"value {row}") for row in range(ROWS)])
            for _ in range(max(DATA_FILES, touched_files))
        ]
        table.commit([table.add(path) for path in paths])
        send(table, properties(direct), name)
        bench = Bench(
            Path(work) / "dvsync",
            f"s3://{BUCKET}/{name}",
            catalog={"warehouse": f"s3://{BUCKET}/w{touched_files}"},
            properties=options,
        )
        bench.follower.sync()
        put(properties(direct), "bare/0")
        samples: list[tuple[float, float]] = []
        for number in range(warm_up + commits):
            delete_one_row_each(table, paths[:touched_files], number)
            send(table, properties(direct), name)
            start_s = time.perf_counter()
            assert bench.follower.has_news()
            assert bench.follower.sync().positions_added == touched_files
            samples.append(((time.perf_counter() - start_s) * 1000, bare_ms(options, touched_files)))
        assert bench.iceberg().scan().to_arrow().num_rows == len(table.live_rows())
        bench.close()
    return _result(touched_files, samples[warm_up:])


def _result(touched_files: int, samples: Sequence[tuple[float, float]]) -> Result:
    return Result(
        touched_files,
        commits=len(samples),
        p50_ms=percentile([total for total, _ in samples], 50),
        bare_ms=percentile([bare for _, bare in samples], 50),
        ratio=percentile([total / bare for total, bare in samples], 50),
    )


def table_lines(results: list[Result]) -> list[str]:
    lines = [f"{'files':>6}{'commits':>9}{'p50 ms':>9}{'bare ms':>9}{'ratio':>7}"]
    for r in results:
        lines.append(f"{r.touched_files:6}{r.commits:9}{r.p50_ms:9.0f}{r.bare_ms:9.0f}{r.ratio:7.2f}")
    return [*lines, f"target: ratio at most {RATIO_MAX}; below {LATENCY_MAX_MS} ms for one file"]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--commits", type=int, default=20, help="commits of each size (%(default)s)")
    options.add_argument("--warm-up", type=int, default=3)
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    with stores() as ports:
        with urlopen(Request(f"http://127.0.0.1:{ports[0]}/{BUCKET}", method="PUT")):
            pass
        results = [
            measure(each, ports, arguments.folder, commits=arguments.commits, warm_up=arguments.warm_up)
            for each in TOUCHED
        ]
    report = {"results": [asdict(result) for result in results], "delay_ms": DELAY_MS}
    print_report(arguments, before, report, table_lines(results))


if __name__ == "__main__":
    main()
