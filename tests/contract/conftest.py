"""The state stores that every promise is asked of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from state.sql.store import StateStore
from tests.kit.memory_store import MemoryStateStore
from tests.kit.servers import Server, postgresql
from tests.kit.states import admin, lay_database


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    return tmp_path / "var" / "dvsync.db"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with postgresql() as running:
        yield running


@pytest.fixture(scope="session")
def migrated(server: Server) -> str:
    """The name of a database of the newest schema, for others to begin as."""
    url = url_of(server, "migrated")
    with admin(url_of(server, "postgres"), isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CREATE DATABASE migrated")
    StateStore.open(url).close()
    return "migrated"


@pytest.fixture
def postgresql_url(server: Server, migrated: str) -> Iterator[str]:
    """A database of its own, at the newest schema."""
    name = f"d{uuid4().hex}"
    with admin(url_of(server, "postgres"), isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {migrated}")
    yield url_of(server, name)
    with admin(url_of(server, "postgres"), isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name}")


def url_of(server: Server, database: str) -> str:
    return f"postgresql+psycopg://dvsync:hunter2@127.0.0.1:{server.port}/{database}"


@pytest.fixture(params=["sql", "postgresql", "memory"])
def store(request: pytest.FixtureRequest, database_path: Path) -> Iterator[StateStore]:
    made: StateStore
    if request.param == "memory":
        made = MemoryStateStore()
    elif request.param == "sql":
        lay_database(database_path)
        made = StateStore.open(f"sqlite:///{database_path}")
    else:
        made = StateStore.open(request.getfixturevalue("postgresql_url"))
    with closing(made):
        yield made


@pytest.fixture
def sql_store(database_path: Path) -> Iterator[StateStore]:
    lay_database(database_path)
    with closing(StateStore.open(f"sqlite:///{database_path}")) as opened:
        yield opened


@pytest.fixture
def table_id(store: StateStore) -> int:
    return store.open_table("orders", "s3://delta/orders", "sales.orders").id
