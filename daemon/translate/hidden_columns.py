"""Maps hidden columns: those that only files have, not the table. Their ids belong to no column of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyiceberg.table.name_mapping import MappedField, NameMapping

from daemon.translate.name_mapping import HIDDEN_ID_START, ROW_ID

Path = tuple[str, ...]


def with_hidden(mapping: NameMapping, hidden: Iterable[Path]) -> NameMapping:
    """Return the mapping with ids for columns that only files have: PyIceberg refuses a file with an unmapped name."""
    paths = sorted(hidden)
    if not paths:
        return mapping
    used = [mapped.field_id or 0 for mapped in _flat_mapping(mapping.root) if mapped.field_id != ROW_ID]
    next_id = max([HIDDEN_ID_START, *used]) + 1
    fields = list(mapping.root)
    for number, path in enumerate(paths):
        fields = _with_field(fields, path, next_id + number)
    return NameMapping(fields)


def with_row_ids(mapping: NameMapping, column: str) -> NameMapping:
    """Return the mapping with `column`, in which files have row ids of their own, as Iceberg's `_row_id`.

    Another column that was `_row_id` before is hidden: readers refuse two of them, and Delta does not use its ids any
    more. Delta names a new column when row tracking is dropped and added again.
    """
    kept = [field for field in mapping.root if field.field_id != ROW_ID and column not in field.names]
    former = [(name,) for field in mapping.root if field.field_id == ROW_ID for name in field.names if name != column]
    return with_hidden(NameMapping([*kept, MappedField(field_id=ROW_ID, names=[column], fields=[])]), former)


def _flat_mapping(fields: Iterable[MappedField]) -> Iterator[MappedField]:
    for field in fields:
        yield field
        yield from _flat_mapping(field.fields)


def _with_field(fields: Sequence[MappedField], path: Path, field_id: int) -> list[MappedField]:
    name, rest = path[0], path[1:]
    if not rest:
        return [*fields, MappedField(field_id=field_id, names=[name], fields=[])]
    return [
        MappedField(field_id=field.field_id, names=field.names, fields=_with_field(field.fields, rest, field_id))
        if name in field.names
        else field
        for field in fields
    ]
