"""What a predicate is once its columns and literals are known: a tree, and what three-valued logic makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from pyiceberg.types import IcebergType

# A value in Iceberg's internal form: days, microseconds, a decimal of the column's scale.
Value = int | float | bool | str | Decimal
Path = tuple[str, ...]

# Each comparison -> the one that is true where it is false, and the one with its sides exchanged.
NEGATED: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
EXCHANGED: Final = {"=": "=", "<>": "<>", "<": ">", ">": "<", ">=": "<=", "<=": ">="}


@dataclass(frozen=True)
class Field:
    """A column, or a field in a struct. `path` has the names in the files, `ids` the field ids if files have them.

    `kind` is None if values cannot be compared, only be null or not.
    """

    name: str
    path: Path
    ids: tuple[int, ...] | None
    kind: IcebergType | None
    is_partition: bool


@dataclass(frozen=True)
class Comparison:
    sign: str
    field: Field
    other: Field | Value


@dataclass(frozen=True)
class Among:
    """IN: whether the value is one of some, none of which is null."""

    field: Field
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Like:
    """The pattern has `%` and `_`, and no other sign with a meaning."""

    field: Field
    pattern: str


@dataclass(frozen=True)
class IsNull:
    field: Field


@dataclass(frozen=True)
class IsTrue:
    """A boolean column."""

    field: Field


@dataclass(frozen=True)
class Always:
    value: bool


@dataclass(frozen=True)
class Not:
    item: Predicate


@dataclass(frozen=True)
class And:
    items: tuple[Predicate, ...]


@dataclass(frozen=True)
class Or:
    items: tuple[Predicate, ...]


Predicate = Comparison | Among | Like | IsNull | IsTrue | Always | Not | And | Or


def fields_in(predicate: Predicate) -> Iterator[Field]:
    """Yield the fields of a predicate, each as often as it is named."""
    match predicate:
        case And(items) | Or(items):
            for item in items:
                yield from fields_in(item)
        case Not(item):
            yield from fields_in(item)
        case Comparison(_, field, other):
            yield field
            if isinstance(other, Field):
                yield other
        case Among(field) | Like(field) | IsNull(field) | IsTrue(field):
            yield field
