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
