"""Reads, takes and changes the single row of the lease, and checks it before each write. The share is in it, too."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import asdict
from sqlalchemy import Connection, select, update

from state.records import Lease
from state.sql.models import LEASE
from state.store import LeaseLost


class Home(NamedTuple):
    """Where the database was when it was last opened, and its identity, which its copies have, too."""

    place: str | None
    identity: str | None


# Put together once, because every write runs it.
_LEASE = select(*LEASE.c[Lease.__struct_fields__])


def read_lease(connection: Connection) -> Lease:
    return Lease(*connection.execute(_LEASE).one())


def check_holder(connection: Connection, token: int) -> None:
    """Raise LeaseLost unless the lease still has this token."""
    lease = read_lease(connection)
    if lease.token != token:
        raise LeaseLost(f"the state database was taken over by {lease.holder or 'another process, which has ended'}")


def replace_lease(connection: Connection, seen: Lease, new: Lease) -> bool:
    """Write `new` if the lease is as it was `seen`; return whether it was."""
    as_seen = update(LEASE).where(LEASE.c.token == seen.token, LEASE.c.renewals == seen.renewals)
    return connection.execute(as_seen.values(asdict(new))).rowcount == 1


def claim_share(connection: Connection, number: int) -> None:
    connection.execute(update(LEASE).where(LEASE.c.share.is_(None)).values(share=number))


def read_share(connection: Connection) -> int | None:
    return connection.scalar(select(LEASE.c.share))


def read_home(connection: Connection) -> Home:
    return Home(*connection.execute(select(LEASE.c.place, LEASE.c.identity)).one())


def write_home(connection: Connection, home: Home) -> None:
    connection.execute(update(LEASE).values(home._asdict()))


def touch(connection: Connection) -> None:
    """Write what is there: SQLite refuses a write to a read-only file, but not an empty transaction."""
    connection.execute(update(LEASE).values(share=LEASE.c.share))


def update_lease(connection: Connection, **columns: object) -> None:
    """Change the lease that is held; its renewals grow by one."""
    connection.execute(update(LEASE).values(renewals=LEASE.c.renewals + 1, **columns))
