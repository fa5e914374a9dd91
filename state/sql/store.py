"""The state store on any database that SQLAlchemy knows; SQLite is the default, PostgreSQL is tested as well."""

from __future__ import annotations

from typing import Self

from state.sql.database import Database
from state.sql.lease import SqlLeaseStore
from state.sql.ledger import SqlFileLedger
from state.sql.tables import SqlTableStore
from state.sql.written import SqlWrittenFiles


class SqlStateStore(SqlLeaseStore, SqlTableStore, SqlFileLedger, SqlWrittenFiles):
    """A `StateStore` that may be used from many threads at once."""

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the store at an SQLAlchemy URL; create or upgrade it as needed.

        Raises StateUnavailable when it cannot be opened, or its schema is not known.
        """
        return cls(Database.open(url))

    def close(self) -> None:
        self._database.close()
