"""The verbs about who may work on the state. The lease is one row, with the share and where the database is."""

from __future__ import annotations

import msgspec
from msgspec.structs import asdict
from sqlalchemy import Connection, select, update

from state.errors import LeaseLost
from state.records import Lease
from state.sql.database import Database
from state.sql.models import LEASE
from state.sql.rows import Transactions


class Home(msgspec.Struct, frozen=True):
    """Where the database was when it was last opened, and its identity, which its copies have, too."""

    place: str | None
    identity: str | None


# Built once, because every write runs it.
_LEASE = select(*LEASE.c[Lease.__struct_fields__])
_SHARE = select(LEASE.c.share)
_RENEW = update(LEASE).values(renewals=LEASE.c.renewals + 1)


class LeaseStore(Transactions):
    """For the process as a whole, and before each commit."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._token: int | None = None
        self._renewals = 0

    def claim_share(self, number: int) -> int:
        """Return the number of the share whose tables this database remembers: the first that was ever claimed."""
        with self._database.read() as connection:
            known: int | None = connection.scalar(_SHARE)
        if known is None:
            with self._database.write() as connection:
                connection.execute(update(LEASE).where(LEASE.c.share.is_(None)).values(share=number))
                # Another process may have been faster.
                known = connection.execute(_SHARE).scalar_one()
        return known

    def read_home(self) -> Home:
        with self._database.read() as connection:
            return Home(*connection.execute(select(LEASE.c.place, LEASE.c.identity)).one())

    def record_home(self, home: Home) -> None:
        with self._database.write() as connection:
            connection.execute(update(LEASE).values(asdict(home)))

    def check_writable(self) -> None:
        """Raise StateUnavailable if the database cannot be written. Changes nothing."""
        with self._database.write() as connection:
            # What is there: SQLite refuses a write to a read-only file, but not an empty transaction.
            connection.execute(update(LEASE).values(share=LEASE.c.share))

    def read_lease(self) -> Lease:
        with self._database.read() as connection:
            return _read_lease(connection)

    def take_lease(self, seen: Lease, holder: str, *, has_lock: bool, address: str | None = None) -> bool:
        """Take the lease if it is still as it was `seen`; False if it is not.

        Once another process takes the lease, every writing verb of this object raises LeaseLost and writes nothing. An
        object that never took the lease, such as that of a command, is not restricted.
        """
        new = Lease(seen.token + 1, holder, has_lock=has_lock, address=address)
        as_seen = update(LEASE).where(LEASE.c.token == seen.token, LEASE.c.renewals == seen.renewals)
        # Others count the reloads.
        values = {name: value for name, value in asdict(new).items() if name != "reloads"}
        with self._database.write() as connection:
            if connection.execute(as_seen.values(values)).rowcount != 1:
                return False
        self._token, self._renewals = new.token, new.renewals
        self._database.check_before_write(lambda connection: _check_holder(connection, new.token))
        return True

    def renew_lease(self, *, has_lock: bool) -> int:
        """Show that the holder is alive. Returns how often a reload was asked for.

        Raises LeaseLost, also if the database's contents are older than before.
        """
        with self._database.write() as connection:
            lease = _read_lease(connection)
            if lease.renewals < self._renewals:
                raise LeaseLost("the contents of the state database were replaced by older ones")
            connection.execute(_RENEW.values(has_lock=has_lock))
        # Only now: a transaction that failed may have been committed all the same.
        self._renewals = lease.renewals + 1
        return lease.reloads

    def ask_for_reload(self) -> None:
        """Let the holder of the lease, if it is a daemon, read its configuration again."""
        with self._database.write() as connection:
            connection.execute(update(LEASE).values(reloads=LEASE.c.reloads + 1))

    def check_lease(self) -> None:
        """Raise LeaseLost when another process has taken the lease that this object took."""
        if self._token is not None:
            with self._database.read() as connection:
                _check_holder(connection, self._token)

    def give_back_lease(self) -> None:
        """Free the lease, so that another process can take it at once. Raises LeaseLost."""
        with self._database.write() as connection:
            connection.execute(_RENEW.values(holder=None, address=None))


def _read_lease(connection: Connection) -> Lease:
    return Lease(*connection.execute(_LEASE).one())


def _check_holder(connection: Connection, token: int) -> None:
    """Raise LeaseLost unless the lease still has this token."""
    lease = _read_lease(connection)
    if lease.token != token:
        raise LeaseLost(f"the state database was taken over by {lease.holder or 'another process, which has ended'}")
