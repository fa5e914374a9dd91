"""The configured catalogs, opened by many threads as in the daemon."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

from daemon.iceberg.catalogs import Catalogs
from tests.kit.handmade import sql_catalog


def test_two_names_of_one_new_database(tmp_path: Path) -> None:
    """The tables of the first that opens it are there for the second."""
    names = [f"c{number}" for number in range(8)]
    barrier = Barrier(len(names))

    def list_namespaces(name: str) -> list[tuple[str, ...]]:
        barrier.wait()
        return catalogs.open(name).list_namespaces()

    with (
        closing(Catalogs(dict.fromkeys(names, sql_catalog(tmp_path)))) as catalogs,
        ThreadPoolExecutor(len(names)) as pool,
    ):
        assert list(pool.map(list_namespaces, names)) == [[]] * len(names)
