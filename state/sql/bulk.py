"""Many rows in few statements, of any table whose rows are keyed by (table_id, path)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Select, Table, Update, bindparam, insert, select, update

# SQLite takes 32,766 values in a statement, other databases fewer; longer lists do not get faster either.
IN_LIST_MAX = 500

T = TypeVar("T")
V = TypeVar("V")


def batched(items: Iterable[T], batch_max: int = IN_LIST_MAX) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, batch_max)):
        yield batch


def find_rows(connection: Connection, statement: Select[Any], table_id: int, paths: Iterable[str]) -> Iterator[Any]:
    """Yield the rows that a statement with the parameters `table_id` and `paths` finds, for any number of paths."""
    for batch in batched(paths):
        yield from connection.execute(statement, {"table_id": table_id, "paths": batch})


def find_by_path(connection: Connection, column: Column[V], table_id: int, paths: Iterable[str]) -> dict[str, V]:
    """Find the value of `column` for each of `paths` that has a row in the column's table."""
    return {path: value for path, value in find_rows(connection, _select_by_path(column), table_id, paths)}


def write_rows(
    connection: Connection, rows: Table, table_id: int, columns: dict[str, dict[str, Any]], *, known: Collection[str]
) -> None:
    """Insert a row for each path, or update the `known` rows, which keep their ids and what refers to them."""
    new = [{"table_id": table_id, "path": path, **row} for path, row in columns.items() if path not in known]
    if new:
        connection.execute(insert(rows), new)
    update_rows(connection, rows, table_id, {path: row for path, row in columns.items() if path in known})


def update_rows(connection: Connection, rows: Table, table_id: int, columns: dict[str, dict[str, Any]]) -> None:
    """Update the row of each path; a path without a row is ignored."""
    if columns:
        connection.execute(
            _update_by_path(rows), [{"of_table": table_id, "of_path": path, **row} for path, row in columns.items()]
        )


# Building a statement takes longer than executing it, so statements are cached.
@cache
def _select_by_path(column: Column[Any]) -> Select[Any]:
    rows = column.table
    return select(rows.c.path, column).where(
        rows.c.table_id == bindparam("table_id"), rows.c.path.in_(bindparam("paths", expanding=True))
    )


@cache
def _update_by_path(rows: Table) -> Update:
    return update(rows).where(rows.c.table_id == bindparam("of_table"), rows.c.path == bindparam("of_path"))
