"""A store that takes connections and answers nothing: what is said of the tables in it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from tests.kit.daemons import daemon, until, write_config
from tests.kit.handmade import HandmadeTable
from tests.kit.servers import ObjectStore


@contextmanager
def gate(port: int) -> Iterator[tuple[str, Event]]:
    """An address that leads to the server at `port` while the event is set."""
    is_open = Event()
    is_open.set()

    def pass_on(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError), closing(sink):
            while data := source.recv(1 << 16):
                is_open.wait()
                sink.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
                for ends in ((near, far), (far, near)):
                    Thread(target=pass_on, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", is_open
        is_open.set()


def test_nobody_knows_whether_a_table_of_a_silent_store_is_in_step(tmp_path: Path, store: ObjectStore) -> None:
    """Its lag is unknown, with the time of the last answer, until the store answers again."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    client, bucket = store.client("s3"), "silent"
    client.create_bucket(Bucket=bucket)

    def send() -> None:
        for path in table.take_new_files():
            client.upload_file(str(path), bucket, f"t/{path.relative_to(table.folder)}")

    send()
    with gate(store.port) as (address, is_open):
        write_config(
            tmp_path / "config.yaml",
            storage={**store.properties, "s3.endpoint": address},
            tables=[{"source": f"s3://{bucket}/t", "target": "lake.t", "name": "t"}],
        )
        with daemon(tmp_path / "config.yaml") as running:
            running.synced_to("t", 0)
            is_open.clear()
            table.commit([{"commitInfo": {}}])
            send()
            silent = until(lambda: (seen := running.tables()["t"])["lag_versions"] is None and seen)
            assert (silent["state"], silent["lag_seconds"], silent["error"]) == ("behind", None, None)
            assert silent["checked_at"] > silent["last_synced_at"]
            is_open.set()
            running.synced_to("t", 1)
