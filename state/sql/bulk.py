"""Statements on any table: those on many rows are for tables whose rows are keyed by (table_id, path)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Executable,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

# SQLite takes 32,766 values in a statement, other databases fewer; longer lists do not get faster either.
IN_LIST_MAX = 500

T = TypeVar("T")


def batched(items: Iterable[T], batch_max: int = IN_LIST_MAX) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, batch_max)):
        yield batch


def find_rows(connection: Connection, statement: Select[Any], table_id: int, paths: Iterable[str]) -> Iterator[Any]:
    """Yield the rows that a statement with the parameters `table_id` and `paths` finds, for any number of paths."""
    for batch in batched(paths):
        yield from connection.execute(statement, {"table_id": table_id, "paths": batch})


def write_rows(
    connection: Connection,
    rows: Table,
    table_id: int,
    columns: Mapping[str, Mapping[str, Any]],
    *,
    keep: Collection[Any] = (),
) -> None:
    """Insert a row for each path, or update the known one, which keeps its id and what refers to it.

    A known row with a status of `keep` stays as it is. All paths get the same columns.
    """
    if columns:
        names = tuple(next(iter(columns.values())))
        statement = _upsert(connection.dialect.name, rows, names, tuple(keep))
        connection.execute(statement, [{"table_id": table_id, "path": path, **row} for path, row in columns.items()])


def update_rows(connection: Connection, rows: Table, table_id: int, columns: dict[str, dict[str, Any]]) -> None:
    """Update the row of each path; a path without a row is ignored."""
    if columns:
        each = (("table_id", object), ("path", object))
        connection.execute(
            _update(rows, each), [{"of_table_id": table_id, "of_path": path, **row} for path, row in columns.items()]
        )


def change_rows(connection: Connection, rows: Table, of: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    """Write `values` into the rows that `of` selects, each column by its value or a tuple of them. Returns how many."""
    shape, parameters = _selection(of)
    return connection.execute(_update(rows, shape), {**parameters, **values}).rowcount


def delete_rows(connection: Connection, rows: Table, of: Mapping[str, Any]) -> None:
    """Delete the rows that `of` selects, as in `change_rows`."""
    shape, parameters = _selection(of)
    connection.execute(_delete(rows, shape), parameters)


# Of each column that selects: its name, and the type of what it is compared with: None, a tuple, or any other.
_Shape = tuple[tuple[str, type], ...]


def _selection(of: Mapping[str, Any]) -> tuple[_Shape, dict[str, Any]]:
    shape, parameters = [], {}
    for name, wanted in of.items():
        # A list of one value costs more than the value.
        value = wanted[0] if isinstance(wanted, tuple) and len(wanted) == 1 else wanted
        shape.append((name, type(value) if value is None or isinstance(value, tuple) else object))
        if value is not None:
            parameters[f"of_{name}"] = value
    return tuple(shape), parameters


def _conditions(rows: Table, of: _Shape) -> Iterator[ColumnElement[bool]]:
    for name, kind in of:
        if kind is tuple:
            yield rows.c[name].in_(bindparam(f"of_{name}", expanding=True))
        else:
            yield rows.c[name].is_(None) if kind is type(None) else rows.c[name] == bindparam(f"of_{name}")


# Building a statement takes longer than executing it, so statements are cached.
@cache
def _upsert(dialect: str, rows: Table, names: tuple[str, ...], keep: tuple[Any, ...]) -> Executable:
    new: sqlite.Insert | postgresql.Insert = (sqlite if dialect == "sqlite" else postgresql).insert(rows)
    written = {name: new.excluded[name] for name in names}
    may_change = and_(true(), *(rows.c.status != status for status in keep))
    return new.on_conflict_do_update(index_elements=["table_id", "path"], set_=written, where=may_change)


@cache
def _update(rows: Table, of: _Shape) -> Update:
    return update(rows).where(*_conditions(rows, of))


@cache
def _delete(rows: Table, of: _Shape) -> Delete:
    return delete(rows).where(*_conditions(rows, of))
