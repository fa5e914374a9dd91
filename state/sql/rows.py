"""The row of a table, and the transactions that check first whether it is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import msgspec
from msgspec.structs import asdict, replace
from sqlalchemy import Connection, Row, Select, bindparam, select

from state.cursor import join_commits
from state.records import CommitIdentity, Outcome, Pause, ProofRecord, SourceEntry, TableError, TableRecord, Wait
from state.sql import files as sql_files
from state.sql.bulk import change_rows
from state.sql.database import Database
from state.sql.models import TABLES

WRITE_BATCH_MAX = 2_000

_FIELDS = TableRecord.__struct_fields__
# The columns of a table that are JSON.
_DECODERS = {
    "pause": msgspec.json.Decoder(Pause).decode,
    "error": msgspec.json.Decoder(TableError).decode,
    "proof": msgspec.json.Decoder(ProofRecord).decode,
    "wait": msgspec.json.Decoder(Wait).decode,
    "entry": msgspec.json.Decoder(SourceEntry).decode,
}
_PLACES = [(_FIELDS.index(name), decode) for name, decode in _DECODERS.items()]
decode_commits = msgspec.json.Decoder(tuple[CommitIdentity, ...]).decode
# Statements of every sync are built once: building one takes longer than executing it.
TABLE_RECORDS = select(*TABLES.c[_FIELDS])
_TABLE_BY_ID = TABLE_RECORDS.where(TABLES.c.id == bindparam("table_id"))
_TABLE_AND_COMMITS = select(*TABLES.c[(*_FIELDS, "recent_commits")]).where(TABLES.c.id == bindparam("table_id"))
_TABLE_IS_THERE = select(TABLES.c.id).where(TABLES.c.id == bindparam("table_id"))


class Transactions:
    """The database of a store. `_read` and `_write` raise LookupError if it has no table with this id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def _read(self, table_id: int) -> Iterator[Connection]:
        with self._database.read() as connection:
            _load_row(connection, _TABLE_IS_THERE, table_id)
            yield connection

    @contextmanager
    def _write(self, table_id: int) -> Iterator[Connection]:
        with self._database.write() as connection:
            _load_row(connection, _TABLE_IS_THERE, table_id)
            yield connection

    def _change(self, table_id: int, **columns: Any) -> None:
        with self._database.write() as connection:
            change_table(connection, table_id, **columns)

    def _remove_live_files(self, table_id: int) -> None:
        # A transaction for each batch: the writes of all other tables would wait for a single long one.
        for _ in self._database.paced(repeat(None)):
            with self._database.write() as connection:
                if not sql_files.remove_some_live_files(connection, table_id, WRITE_BATCH_MAX):
                    return


def table_record(row: Row[Any]) -> TableRecord:
    """The first columns are those of TABLE_RECORDS."""
    values = [*row[: len(_FIELDS)]]
    for place, decode in _PLACES:
        if values[place] is not None:
            values[place] = decode(values[place])
    return TableRecord(*values)


def load_table(connection: Connection, table_id: int) -> TableRecord:
    return table_record(_load_row(connection, _TABLE_BY_ID, table_id))


def load_for_outcome(connection: Connection, outcome: Outcome) -> tuple[TableRecord, dict[str, bytes]]:
    """Return the table's row, and the column with its last commits if `outcome` changes it.

    Each commit of a table does this: the row is read and written once.
    """
    row = _load_row(connection, _TABLE_AND_COMMITS, outcome.table_id)
    table, known = table_record(row), decode_commits(row.recent_commits or b"[]")
    joined = join_commits(table, known, outcome)
    return table, {} if joined == known else {"recent_commits": msgspec.json.encode(joined)}


def _load_row(connection: Connection, statement: Select[Any], table_id: int) -> Row[Any]:
    row = connection.execute(statement, {"table_id": table_id}).one_or_none()
    if row is None:
        raise LookupError(f"no table has the id {table_id}")
    return row


def write_table(connection: Connection, table: TableRecord, **more: bytes) -> None:
    columns = {**asdict(table), **more}
    # Setting the key, even to itself, makes SQLite check every row that refers to it.
    table_id = columns.pop("id")
    for name in _DECODERS:
        if columns[name] is not None:
            columns[name] = msgspec.json.encode(columns[name])
    change_rows(connection, TABLES, {"id": table_id}, columns)


def change_table(connection: Connection, table_id: int, **columns: Any) -> None:
    """Write these columns of the table's row."""
    write_table(connection, replace(load_table(connection, table_id), **columns))
