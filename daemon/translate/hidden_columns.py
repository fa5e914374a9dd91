"""Maps columns of files whose names the name mapping lacks.

Most are hidden: only files have them, not the table, and their ids belong to no column of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from pyiceberg.table.name_mapping import MappedField, NameMapping

from daemon.translate.name_mapping import HIDDEN_ID_START, ROW_ID, mapped_ids

Path = tuple[str, ...]


def with_unmapped(mapping: NameMapping, unmapped: Iterable[Path], columns: Collection[int] = ()) -> NameMapping:
    """Return the mapping with these columns of files: PyIceberg refuses a file with an unmapped name.

    `columns` are the ids of the table's columns. A name that is one of theirs but for upper and lower case becomes
    another name of it, because Delta ignores case. Any other name gets an id of its own.
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


def find_paths(mapping: Iterable[MappedField], parent: Path = ()) -> Iterator[tuple[Path, int | None]]:
    """Yield the path of every field by its names in lower case, with its id."""
    for field in mapping:
        for name in {name.lower() for name in field.names}:
            yield (*parent, name), field.field_id
            yield from find_paths(field.fields, (*parent, name))


def _with_field(
    fields: Sequence[MappedField], path: Path, field_id: int, columns: Collection[int]
) -> list[MappedField]:
    name, rest = path[0], path[1:]
    if rest:
        return [
            _changed(field, fields=_with_field(field.fields, rest, field_id, columns)) if name in field.names else field
            for field in fields
        ]
    if any(_is_spelled(field, name, columns) for field in fields):
        return [
            _changed(field, names=[*field.names, name]) if _is_spelled(field, name, columns) else field
            for field in fields
        ]
    return [*fields, MappedField(field_id=field_id, names=[name], fields=[])]


def _is_spelled(field: MappedField, name: str, columns: Collection[int]) -> bool:
    return field.field_id in columns and field.names[0].lower() == name.lower()


def _changed(
    field: MappedField, *, names: list[str] | None = None, fields: list[MappedField] | None = None
) -> MappedField:
    return MappedField(
        field_id=field.field_id, names=names or field.names, fields=field.fields if fields is None else fields
    )
