"""One database behind an SQLAlchemy URL: how it is opened, migrated, read and written. Names none of its tables."""

from __future__ import annotations

import ctypes
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from state.errors import DatabaseReplaced, StateUnavailable

# The newest schema, as Alembic numbers it: state/migrations.
REVISION = "0001"
SQLITE_BUSY_TIMEOUT_S = 5
# SQLite's extended codes have the primary one in the lowest byte.
PRIMARY_CODE = 0xFF
# How long to wait for a server that does not answer; in seconds, except tcp_user_timeout in milliseconds.
POSTGRESQL_PATIENCE = {"connect_timeout": "10", "tcp_user_timeout": "15000", "keepalives_idle": "10"}
BEGIN_STATEMENT = "dvsync_begin_statement"
# An advisory lock of PostgreSQL, named by two numbers; one for each schema of a database.
_POSTGRESQL_WRITE_LOCK = text("SELECT pg_advisory_xact_lock(hashtext('dvsync.write'), hashtext(current_schema()))")
# A process that is suspended inside a transaction must not block the others for ever.
_POSTGRESQL_IDLE_MAX = text("SET LOCAL idle_in_transaction_session_timeout = '60s'")

T = TypeVar("T")


class Database:
    """Transactions on one database, for many threads: readers side by side, one writer at a time."""

    def __init__(self, engine: Engine) -> None:
        # The query of a URL may hold a password as well, so it is never shown.
        self._name = engine.url.set(query={}).render_as_string(hide_password=True)
        self._engine = engine
        self._readers = engine
        self._writers = engine.execution_options(**{BEGIN_STATEMENT: "BEGIN IMMEDIATE"})
        self._is_postgresql = engine.dialect.name == "postgresql"
        if self._is_postgresql:
            # With PostgreSQL's default, each statement of a transaction could see another state.
            self._readers = engine.execution_options(isolation_level="REPEATABLE READ")
        name = engine.url.database or ""
        is_file = engine.dialect.name == "sqlite" and name and not name.startswith((":", "file:"))
        self._file = Path(name) if is_file else None
        # SQLite's write-ahead log: https://sqlite.org/wal.html.
        self._log = Path(f"{name}-wal") if is_file else None
        self._identity: tuple[int, int] | None = None
        # The write-ahead log that our connections hold open, once the first of them has written.
        self._log_identity: tuple[int, int] | None = None
        self._is_replaced = False
        self._one_writer = threading.Lock()
        self._writes = 0
        self._before_write: Callable[[Connection], None] = lambda _: None

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the database at the newest schema. A missing SQLite file and its folder are created.

        Raises StateUnavailable when it cannot be opened, or its schema is not known.
        """
        database = cls(_create_engine(url))
        try:
            database._migrate()
            database._identity = _identity_of(database._file)
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that sees a single state of the database. Raises StateUnavailable."""
        with self._translated(), self._readers.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction. It commits at the end, or rolls back after an exception. Raises StateUnavailable."""
        # SQLite's own waiting is unfair and gives up after the busy timeout: our threads queue here instead.
        with self._one_writer, self._translated(), self._writers.begin() as connection:
            self._writes += 1
            self._check_file()
            if self._is_postgresql:
                # Like SQLite's write lock: writers of other processes queue here, until the end of the transaction.
                connection.execute(_POSTGRESQL_IDLE_MAX)
                connection.execute(_POSTGRESQL_WRITE_LOCK)
            self._before_write(connection)
            yield connection

    def paced(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield batches, for one `write` each. If other threads write meanwhile, sleep as long as a batch has taken.

        Otherwise a long series would hold the lock, and the interpreter, for most of the time.
        """
        writes, began_s = self._writes, time.monotonic()
        for batch in batches:
            yield batch
            if self._writes > writes + 1:
                time.sleep(time.monotonic() - began_s)
            writes, began_s = self._writes, time.monotonic()

    def check_before_write(self, check: Callable[[Connection], None]) -> None:
        """Run `check` at the start of each later write. If it raises, the transaction writes nothing."""
        self._before_write = check

    def close(self) -> None:
        with suppress(StateUnavailable):
            self._check_file()
        if not self._is_replaced:
            self._engine.dispose()
            self._log_identity = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            code = getattr(error.orig, "sqlite_errorcode", 0) & PRIMARY_CODE
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR):
                # A copy in the place of the contents looks like that, too.
                self._check_file()
                # SQLite opens a file that cannot be written read-only, and the connection stays so.
                self.close()
            # Only the driver's message: SQLAlchemy's would add the statement and its values.
            raise StateUnavailable(f"the state database {self._name} is not usable: {error.orig}") from error
        except PoolTimeoutError as error:
            raise StateUnavailable(f"the state database {self._name} has no free connection") from error

    def _check_file(self) -> None:
        """Raise DatabaseReplaced if the file was removed or replaced: what is written now would be lost with it."""
        if self._identity is None:
            return
        try:
            found, log = _identity_of(self._file), _identity_of(self._log)
        except OSError as error:
            raise StateUnavailable(f"the state database {self._name} is not usable: {error.strerror}") from error
        self._log_identity = self._log_identity or log
        # A copy that is put in the place of the contents leaves the file, but takes the log away.
        if found != self._identity or log != self._log_identity:
            if not self._is_replaced:
                self._is_replaced = True
                # When the last connection is closed, SQLite writes what it had logged into the file: there, into
                # another database. The interpreter's end would close it, too.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))
            raise DatabaseReplaced(f"the state database {self._name} was removed or replaced while dvsync was running")

    def _migrate(self) -> None:
        revision: str | None = None
        with self.read() as connection:
            if connection.dialect.has_table(connection, "alembic_version"):
                revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()
        if revision == REVISION:
            return
        # Imported only when needed: the import takes longer than everything else here.
        from state.migrations import is_known, upgrade  # noqa: PLC0415

        if revision is not None and not is_known(revision):
            raise StateUnavailable(
                f"the state database {self._name} has the schema revision {revision}, which this dvsync, with revision "
                f"{REVISION}, does not know: use the dvsync that wrote it, or another database"
            )
        with self.write() as connection:
            upgrade(connection)


def _identity_of(file: Path | None) -> tuple[int, int] | None:
    """Return what the file system knows a file by; None if there is none. Raises OSError."""
    try:
        found = file.stat() if file else None
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def _create_engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The cause is not shown or chained: it quotes pieces of the URL, a password perhaps.
        raise StateUnavailable("the URL of the state database is not an SQLAlchemy URL") from None
    try:
        if parsed.get_backend_name() == "postgresql":
            parsed = parsed.set(query={**POSTGRESQL_PATIENCE, **parsed.query})
        if parsed.get_backend_name() != "sqlite":
            return create_engine(parsed, pool_pre_ping=True)
        return _create_sqlite_engine(parsed)
    except (ArgumentError, ImportError, OSError) as error:
        place = f"{parsed.drivername}://{parsed.host or ''}/{parsed.database or ''}"
        raise StateUnavailable(f"the state database at {place} cannot be opened: {error}") from error


def _create_sqlite_engine(url: URL) -> Engine:
    # A `file:` URI may open the file read-only, so its folder is not made.
    if url.database and not url.database.startswith("file:"):
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url.set(query={"timeout": str(SQLITE_BUSY_TIMEOUT_S), **url.query}))

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
        # Python's driver would begin a transaction only before the first write, and then without the write lock.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock at once: a transaction that reads first cannot fail later for want of it.
        connection.exec_driver_sql(connection.get_execution_options().get(BEGIN_STATEMENT, "BEGIN"))

    return engine
