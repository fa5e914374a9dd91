"""The state store on SQLite, or on PostgreSQL."""

from __future__ import annotations

from typing import Self

from state.sql.database import Database
from state.sql.lease import LeaseStore
from state.sql.ledger import FileLedger
from state.sql.tables import TableStore
from state.sql.written import WrittenFiles


class StateStore(LeaseStore, TableStore, FileLedger, WrittenFiles):
    """The whole store, by user of its verbs. Safe to use from many threads. Frozen records come out, never rows.

    Each verb is one transaction, unless it says otherwise. Every verb but `open_table` and `find_table` takes ids that
    the store gave or was given: for a table that it does not know it raises LookupError, and so do `record_pending`
    and `record_prepared` for an intent.
    """

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the store at an SQLAlchemy URL; create or upgrade it as needed.

        Raises StateUnavailable when it cannot be opened, or its schema is not known.
        """
        return cls(Database.open(url))

    def close(self) -> None:
        self._database.close()
