"""Many rows in few statements, of any table whose rows are keyed by (table_id, path)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, Update, bindparam, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute

from state.models import DataFileRow, DeleteFileRow, MetadataFileRow

# SQLite takes 32,766 values in a statement, other databases fewer; longer lists do not get faster either.
IN_LIST_MAX = 500

FileRow = type[DataFileRow] | type[DeleteFileRow] | type[MetadataFileRow]

T = TypeVar("T")
V = TypeVar("V")


def batched(items: Iterable[T], batch_max: int = IN_LIST_MAX) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, batch_max)):
        yield batch


def find_by_path(
    connection: Connection, column: InstrumentedAttribute[V], table_id: int, paths: Iterable[str]
) -> dict[str, V]:
    """The value of `column` for each of `paths` that has a row in the column's table."""
    rows: Any = column.class_
    by_path = _select_by_path(rows, column.key)
    return {
        path: value
        for batch in batched(paths)
        for path, value in connection.execute(by_path, {"table_id": table_id, "paths": batch})
    }


def write_rows(
    connection: Connection,
    rows: FileRow,
    table_id: int,
    columns: dict[str, dict[str, Any]],
    *,
    known: Collection[str],
) -> None:
    """Insert a row for each path, or update the `known` ones: they keep their id, and so what points at them."""
    new = [{"table_id": table_id, "path": path, **row} for path, row in columns.items() if path not in known]
    if new:
        connection.execute(insert(rows), new)
    update_rows(connection, rows, table_id, {path: row for path, row in columns.items() if path in known})


def update_rows(connection: Connection, rows: FileRow, table_id: int, columns: dict[str, dict[str, Any]]) -> None:
    """Update the row of each path; a path without a row is passed over."""
    if columns:
        connection.execute(
            _update_by_path(rows),
            [{"of_table": table_id, "of_path": path, **row} for path, row in columns.items()],
        )


# To put a statement together takes longer than to execute it.
@cache
def _select_by_path(rows: FileRow, column: str) -> Select[Any]:
    return select(rows.path, getattr(rows, column)).where(
        rows.table_id == bindparam("table_id"), rows.path.in_(bindparam("paths", expanding=True))
    )


@cache
def _update_by_path(rows: FileRow) -> Update:
    return update(rows).where(rows.table_id == bindparam("of_table"), rows.path == bindparam("of_path"))
