"""The state store of a configuration: how a process opens it, finds a table in it, and names its errors."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator, Set
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from daemon.config.settings import Settings, TableSettings
from daemon.config.value_types import sqlite_file
from daemon.errors import ConfigInvalid, InternalError, StateStoreAway, SyncError
from daemon.store.durable import make_folder_of
from state import StateUnavailable, TableRecord
from state.sql.lease import Home
from state.sql.store import StateStore
from state.sql.tables import TableStore


@contextmanager
def open_store(settings: Settings, *, reads_only: bool = False) -> Iterator[StateStore]:
    """Open the state store, made or upgraded as needed. Raises ConfigInvalid, StateStoreAway.

    With `reads_only`, a SQLite file of another user is enough, and a missing one is not made: the store is empty then.
    Another share's is refused: if its daemon held the lease, ours would stand by, and nobody follow our tables.
    """
    file = settings.state.sqlite_file
    url = _find_readable(file) if reads_only and file else None
    try:
        if url is None:
            _make_local_folders(settings)
        with closing(StateStore.open(url or settings.state.url)) as store:
            if url is None:
                _check_ours(store, settings)
            yield store
    except StateUnavailable as error:
        raise as_sync_error(error) from error


def _find_readable(file: Path) -> str | None:
    """Return the URL of what a command can read in the place of the database, without writing; None if it may write."""
    if not file.exists():
        # Made by the command, it would belong to the command's user, and perhaps not be the daemon's to write.
        return "sqlite://"
    if os.access(file.parent, os.W_OK) or file.with_name(f"{file.name}-wal").exists():
        return None
    # No process has it open. SQLite would still make files beside it, unless nobody is said to change it.
    return f"sqlite:///file:{quote(str(file))}?mode=ro&immutable=1&uri=true"


def _check_ours(store: StateStore, settings: Settings) -> None:
    """Raise ConfigInvalid if the database is another share's, or a copy of one that is still there: both would commit
    to the same tables, and remove each other's files. Else remember its place.
    """
    number, share = store.claim_share(settings.share.number), settings.share
    file, place = settings.state.sqlite_file, settings.state.place
    if number != share.number:
        raise ConfigInvalid(
            f"state.url: the database {place} belongs to share {number}, but `share` is {share}",
            hint="Each share has a state database of its own. Set DVSYNC_SHARE and DVSYNC_STATE__URL to the share and "
            "the database that belong together.",
        )
    if file is None:
        return
    home = store.read_home()
    if home.place == place:
        return
    if home.place is not None:
        host, _, path = home.place.partition(":")
        is_here = host == socket.gethostname() and os.path.exists(path) and not os.path.samefile(path, file)
        if is_here and _read_identity(path) == home.identity:
            raise ConfigInvalid(
                f"state.url: {file} is a copy of {path}, which is still there: dvsync with the copy would change and "
                "remove files of the Iceberg tables that belong to the other",
                hint="Set state.url to a file that does not exist yet, and give the copy an Iceberg catalog of its own."
                f" If you have moved the database, remove {path}.",
            )
    with suppress(StateUnavailable):  # A copy may be read only.
        store.record_home(Home(place, home.identity or str(uuid4())))


def _read_identity(path: str) -> str | None:
    """Read the identity of the SQLite database at `path`; None if it has none."""
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            return str(connection.execute("SELECT identity FROM lease").fetchone()[0])
    except sqlite3.Error:
        return None


def as_sync_error(raised: Exception) -> SyncError:
    """Turn `raised` into one of the error kinds; `InternalError` for any unexpected error."""
    if isinstance(raised, SyncError):
        return raised
    if isinstance(raised, StateUnavailable):
        return StateStoreAway(
            str(raised),
            hint="Check state.url, the database, its permissions, and its disk or server. Commands that change a table "
            "need the daemon's user.",
        )
    return InternalError(
        f"{type(raised).__name__}: {raised}", hint="This is a bug in dvsync: report it with the traceback from the log."
    )


def find_record(records: Iterable[TableRecord], table: TableSettings) -> TableRecord | None:
    """Find a table's row without making one, as `TableStore.open_table` would."""
    key = (table.name, table.source, table.target)
    return next((record for record in records if (record.name, record.source, record.target) == key), None)


def keep_rows(store: TableStore, tables: Iterable[TableSettings], names: Set[str]) -> None:
    """Let renamed tables keep their state: a row is renamed if its source and target are those of a table without a
    row, and its name is not in use (`names`). Raises StateUnavailable.
    """
    records = store.list_tables()
    known = {record.name for record in records}
    left = {(record.source, record.target): record for record in records if record.name not in names}
    for table in tables:
        record = left.get((table.source, table.target))
        if record is not None and table.name not in known:
            store.rename_table(record.id, table.name)


def _make_local_folders(settings: Settings) -> None:
    """Make the folders of SQLite catalogs, because SQLite makes only the file."""
    for name, properties in settings.catalogs.items():
        file = sqlite_file(properties.get("uri", ""))
        if file:
            try:
                make_folder_of(str(file))
            except OSError as error:
                raise ConfigInvalid(
                    f"catalogs.{name}.uri: the folder {file.parent} cannot be created: {error.strerror}",
                    hint="Choose a writable folder. Relative paths begin at the configuration's folder.",
                ) from error
