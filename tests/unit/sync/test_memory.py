"""The state store that commands read beside or without a daemon, as another user."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from daemon.config.load import load_settings
from daemon.config.settings import Settings
from daemon.errors import StateStoreAway
from daemon.sync.memory import open_store

NOBODY = 65_534
CONFIG = """
state: {url: "sqlite:///%s/state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
tables: [{source: t, target: lake.t}]
"""


@pytest.fixture
def settings() -> Iterator[Settings]:
    """Of a state database with one table, in a folder that every user can read; pytest's own folders are private."""
    folder = Path(mkdtemp())
    folder.chmod(0o755)
    made = load_settings(folder / "config.yaml", CONFIG % folder)
    with open_store(made) as store:
        store.open_table("t", "file:///t", "lake.t")
    yield made
    shutil.rmtree(folder)


def names_as(user: int, settings: Settings) -> str:
    """What a process of this user reads: the tables' names, or the kind of the error."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.setuid(user)
            with open_store(settings, reads_only=True) as store:
                said = " ".join(record.name for record in store.list_tables())
        except BaseException as error:
            said = type(error).__name__
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    os.wait()
    return said


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_reads_the_state(settings: Settings) -> None:
    """Without a daemon, and beside one, whose files SQLite then uses. After a crash, only the daemon's user can."""
    file = settings.state.sqlite_file
    assert file is not None
    assert names_as(NOBODY, settings) == "t"
    with open_store(settings) as store:
        store.open_table("u", "file:///u", "lake.u")
        assert names_as(NOBODY, settings) == "t u"
    file.with_name("state.db-wal").write_bytes(b"")
    assert names_as(NOBODY, settings) == StateStoreAway.__name__
    assert names_as(0, settings) == "t u"


def test_a_missing_database_is_not_made_for_reading(settings: Settings) -> None:
    file = settings.state.sqlite_file
    assert file is not None
    for path in file.parent.glob("state.db*"):
        path.unlink()
    with open_store(settings, reads_only=True) as store:
        assert store.list_tables() == []
    assert not [*file.parent.glob("state.db*")]
