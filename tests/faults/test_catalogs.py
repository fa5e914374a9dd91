"""Catalogs that do not answer, beside one that does."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from tests.kit.daemons import command, daemon, until, write_config
from tests.kit.handmade import HandmadeTable, sql_catalog

SILENT = 12  # more tables than the daemon syncs at once


def answer_in_part(server: socket.socket, connections: list[socket.socket]) -> None:
    """Begin an answer on each connection, and never end it."""
    with suppress(OSError):  # The test is over.
        while True:
            connections.append(server.accept()[0])
            connections[-1].sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
            )


KEYS = {"glue.region": "r", "glue.access-key-id": "a", "glue.secret-access-key": "s"}


@pytest.mark.parametrize(
    ("kind", "says"),
    [("rest", "a part"), *(pytest.param(kind, "nothing", marks=pytest.mark.long) for kind in ("rest", "hive", "glue"))],
)
def test_a_catalog_that_never_answers_holds_up_only_its_own_tables(tmp_path: Path, kind: str, says: str) -> None:
    """It takes connections. Its tables get an error; those of the other catalog are followed."""
    table = HandmadeTable(tmp_path / "lake" / "t")
    table.create()
    table.commit([table.add(table.write_file([(number, "a", "x") for number in range(9)]))])
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        if says == "a part":
            Thread(target=answer_in_part, args=(silent, connections), daemon=True).start()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        its = {
            "rest": {"uri": f"http://{address}/"},
            "hive": {"uri": f"thrift://{address}"},
            "glue": {"glue.endpoint": f"http://{address}", **KEYS},
        }
        write_config(
            tmp_path / "config.yaml",
            defaults={"poll_interval": "100ms", "engine": "local"},
            catalogs={"silent": {"type": kind, **its[kind]}, "local": sql_catalog(tmp_path)},
            tables=[
                *(
                    {"name": f"a{number}", "source": "lake/t", "target": f"a.t{number}", "catalog": "silent"}
                    for number in range(SILENT)
                ),
                {"name": "well", "source": "lake/t", "target": "b.t", "catalog": "local"},
            ],
        )
        with daemon(tmp_path / "config.yaml") as running:
            running.synced_to("well", table.version)
            for number in range(SILENT):
                name = f"a{number}"
                error = until(lambda name=name: running.tables()[name]["error"], f"the error of {name}")
                assert error["kind"] == "CatalogAway"
            for _ in range(5):
                table.commit(table.delete({path: [len(table.deleted[path])] for path in table.live}))
                until(lambda: running.tables()["well"]["synced_version"] == table.version, "the other", wait_s=20)
        tried = command(tmp_path / "config.yaml", "config", "check", "--connect")
        said = tried.stdout + tried.stderr
        assert (tried.returncode, "the catalog silent does not answer" in said) == (1, True), said
    for connection in connections:
        connection.close()
