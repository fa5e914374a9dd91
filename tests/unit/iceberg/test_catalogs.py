"""The configured catalogs, opened by many threads as in the daemon."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

from daemon.iceberg.catalogs import Catalogs
from tests.kit.handmade import sql_catalog


def test_names_of_one_new_database(tmp_path: Path) -> None:
    """The tables of the first that opens it are there for the others, in whatever spelling."""
    names, properties = [f"c{number}" for number in range(8)], sql_catalog(tmp_path)
    other_spelling = {**properties, "uri": properties["uri"].replace(str(tmp_path), f"{tmp_path}/.")}
    barrier = Barrier(len(names))

    def list_namespaces(name: str) -> list[tuple[str, ...]]:
        barrier.wait()
        return catalogs.open(name).list_namespaces()

    with (
        closing(Catalogs(dict.fromkeys(names[:4], properties) | dict.fromkeys(names[4:], other_spelling))) as catalogs,
        ThreadPoolExecutor(len(names)) as pool,
    ):
        assert list(pool.map(list_namespaces, names)) == [[]] * len(names)
