"""The state store of a configuration: how a process opens it, and finds a table in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import closing, contextmanager
from pathlib import Path

from daemon.config.settings import Settings, TableSettings
from daemon.config.value_types import SQLITE_FILE
from daemon.durable import make_folder_of
from daemon.errors import ConfigInvalid, StateStoreAway
from state import StateStore, StateUnavailable, TableRecord
from state.sql.store import SqlStateStore


@contextmanager
def open_store(settings: Settings) -> Iterator[StateStore]:
    """Open the state store, made or upgraded as needed. Raises ConfigInvalid, StateStoreAway."""
    _make_local_folders(settings)
    with _state_errors(), closing(SqlStateStore.open(settings.state.url)) as store:
        yield store


def find_record(records: Iterable[TableRecord], table: TableSettings) -> TableRecord | None:
    """What is remembered of a table, without making a row for it as `StateStore.open_table` does."""
    key = (table.name, table.source, table.target)
    return next((record for record in records if (record.name, record.source, record.target) == key), None)


def keep_rows(store: StateStore, tables: Iterable[TableSettings], names: Set[str]) -> None:
    """A table that has a new name and no row yet keeps the row of its source and target, whose name is not among
    `names`, those in use. Raises StateUnavailable.
    """
    records = store.list_tables()
    known = {record.name for record in records}
    left = {(record.source, record.target): record for record in records if record.name not in names}
    for table in tables:
        record = left.get((table.source, table.target))
        if record is not None and table.name not in known:
            store.rename_table(record.id, table.name)


@contextmanager
def _state_errors() -> Iterator[None]:
    try:
        yield
    except StateUnavailable as error:
        raise StateStoreAway(str(error), hint="Check state.url, and the database or the disk behind it.") from error


def _make_local_folders(settings: Settings) -> None:
    """SQLite makes the file of a catalog, but not its folder."""
    for name, properties in settings.catalogs.items():
        match = SQLITE_FILE.match(properties.get("uri", ""))
        if match:
            try:
                make_folder_of(match["path"])
            except OSError as error:
                folder = Path(match["path"]).parent
                raise ConfigInvalid(
                    f"catalogs.{name}.uri: the folder {folder} cannot be made: {error.strerror}",
                    hint="Name a place that dvsync may write to; a relative one begins at the configuration's folder.",
                ) from error
