"""Maps columns of files whose names the name mapping lacks.

Most are hidden: only files have them, not the table, and their ids belong to no column of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pyiceberg.table.name_mapping import MappedField, NameMapping

from daemon.translate.name_mapping import HIDDEN_ID_START, ROW_ID, Path, mapped_ids


def with_unmapped(mapping: NameMapping, unmapped: Iterable[Path], columns: Collection[int] = ()) -> NameMapping:
    """Return the mapping with these columns of files: PyIceberg refuses a file with an unmapped name.

    `columns` are the ids of the table's columns. A name that is one of theirs but for upper and lower case becomes
    another name of it, because Delta ignores case; an older dvsync hid it. Any other name gets an id of its own.
    """
    paths = sorted(unmapped)
    if not paths:
        return mapping
    used = [field_id for field_id in mapped_ids(mapping) if field_id != ROW_ID]
    next_id = max([HIDDEN_ID_START, *used]) + 1
    fields = list(mapping.root)
    for number, path in enumerate(paths):
        fields = _with_field(fields, path, next_id + number, columns)
    return NameMapping(fields)


def with_row_ids(mapping: NameMapping, column: str) -> NameMapping:
    """Return the mapping with `column`, in which files have row ids of their own, as Iceberg's `_row_id`.

    Another column that was `_row_id` before is hidden: readers refuse two of them, and Delta does not use its ids any
    more. Delta names a new column when row tracking is dropped and added again.
    """
    kept = [field for field in mapping.root if field.field_id != ROW_ID and column not in field.names]
    former = [(name,) for field in mapping.root if field.field_id == ROW_ID for name in field.names if name != column]
    return with_unmapped(NameMapping([*kept, MappedField(field_id=ROW_ID, names=[column], fields=[])]), former)


def _with_field(
    fields: Sequence[MappedField], path: Path, field_id: int, columns: Collection[int]
) -> list[MappedField]:
    name, rest = path[0], path[1:]
    if not rest and not any(_is_spelled(field, name, columns) for field in fields):
        return [*fields, MappedField(field_id=field_id, names=[name], fields=[])]
    changed = []
    for field in fields:
        if rest and name in field.names:
            inner = _with_field(field.fields, rest, field_id, columns)
            changed.append(MappedField(field_id=field.field_id, names=field.names, fields=inner))
        elif not rest and _is_spelled(field, name, columns):
            changed.append(MappedField(field_id=field.field_id, names=[*field.names, name], fields=field.fields))
        elif rest or name not in field.names:
            changed.append(field)
    return changed


def _is_spelled(field: MappedField, name: str, columns: Collection[int]) -> bool:
    return field.field_id in columns and field.names[0].lower() == name.lower()
