"""The state store of a configuration: how a process opens it, finds a table in it, and names its errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import closing, contextmanager
from pathlib import Path

from daemon.config.settings import Settings, TableSettings
from daemon.config.value_types import SQLITE_FILE
from daemon.durable import make_folder_of
from daemon.errors import ConfigInvalid, InternalError, StateStoreAway, SyncError
from state import StateStore, StateUnavailable, TableRecord, TableStore
from state.sql.store import SqlStateStore


@contextmanager
def open_store(settings: Settings) -> Iterator[StateStore]:
    """Open the state store, made or upgraded as needed. Raises ConfigInvalid, StateStoreAway."""
    _make_local_folders(settings)
    try:
        with closing(SqlStateStore.open(settings.state.url)) as store:
            yield store
    except StateUnavailable as error:
        raise as_sync_error(error) from error


def as_sync_error(raised: Exception) -> SyncError:
    """`raised` as one of the error kinds; `InternalError` for what nobody expects."""
    if isinstance(raised, SyncError):
        return raised
    if isinstance(raised, StateUnavailable):
        return StateStoreAway(
            str(raised), hint="Check state.url, and the database, its permissions and the disk or server it is on."
        )
    return InternalError(
        f"{type(raised).__name__}: {raised}",
        hint="This is a bug in dvsync: report it with the traceback from the log.",
    )


def find_record(records: Iterable[TableRecord], table: TableSettings) -> TableRecord | None:
    """What is remembered of a table, without making a row for it as `TableStore.open_table` does."""
    key = (table.name, table.source, table.target)
    return next((record for record in records if (record.name, record.source, record.target) == key), None)


def keep_rows(store: TableStore, tables: Iterable[TableSettings], names: Set[str]) -> None:
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
