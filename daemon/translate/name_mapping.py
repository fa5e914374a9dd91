"""The name mapping, which gives Iceberg's field ids to columns of files without ids. It survives schema changes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain

from pyiceberg.table.name_mapping import MappedField, NameMapping

# Ids of columns that only files have begin here: far above any id that Delta assigns, and below Iceberg's reserved ids
# (Iceberg spec, "Reserved Field IDs").
HIDDEN_ID_START = 2_147_000_000
# Iceberg spec, "Reserved Field IDs": `_row_id`.
ROW_ID = 2_147_483_540


def find_renumbered(old: Iterable[MappedField], new: Iterable[MappedField], parent: str = "") -> Iterator[str]:
    """Yield the columns, by physical name, whose id changed.

    When column mapping is switched on, Delta assigns new ids to the columns of existing files. The metrics and
    partition values of live files would then belong to other columns.
    """
    before = {field.names[0]: field for field in old if (field.field_id or 0) < HIDDEN_ID_START}
    for field in new:
        known = before.get(field.names[0])
        if known is None:
            continue
        if known.field_id != field.field_id:
            yield f"{parent}{field.names[0]} (from id {known.field_id} to {field.field_id})"
        yield from find_renumbered(known.fields, field.fields, f"{parent}{field.names[0]}.")


def find_lost(before: NameMapping, after: NameMapping) -> dict[int, str]:
    """Return the field ids that lost a name: `before` maps the name to the id, `after` does not.

    In files without field ids, readers no longer find these columns. This holds for every snapshot, because the name
    mapping belongs to the table, not to a snapshot (Iceberg spec, "Column Projection"). For example, if `before` maps
    `a` to 1 and `after` maps `a` to 7, the result is {1: "a"}.
    """
    ids = dict(_mapped_paths(after.root))
    return {field_id: ".".join(path) for path, field_id in _mapped_paths(before.root) if ids.get(path) != field_id}


def _mapped_paths(fields: Iterable[MappedField], parent: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield (*parent, name), field.field_id
            yield from _mapped_paths(field.fields, (*parent, name))


def with_former(fields: Iterable[MappedField], former: Sequence[MappedField], ids: Container[int]) -> list[MappedField]:
    """Return the mapped columns `fields` with the names in `former`: PyIceberg refuses files with unmapped names.

    `ids` are those of all columns. Columns that were dropped, or that only files have, keep their ids (Iceberg spec,
    "Column Projection": a mapping may contain ids that the schema does not have). Such a column whose name a new column
    has, but for upper and lower case, becomes that column, because Delta ignores case. For example, Delta adds `extra`,
    and a file has `Extra` with the fields x and y: `extra` gets the other name `Extra`, and the field y.
    """
    mapped = []
    for field in fields:
        name = field.names[0]
        same = [each for each in former if each.field_id == field.field_id or _is_called(each, {name.lower()})]
        others = {
            each: None for each in chain.from_iterable(each.names for each in same) if each.lower() == name.lower()
        }
        inner = [each for known in same for each in known.fields]
        mapped.append(
            MappedField(
                field_id=field.field_id,
                names=list({name: None, **others}),
                fields=with_former(field.fields, inner, ids),
            )
        )
    taken, called = {field.names[0].lower() for field in mapped}, set[str]()
    for field in former:
        is_free = called.isdisjoint(field.names) and not _is_called(field, taken)
        if is_free and not any(each in ids for each in mapped_ids([field])):
            mapped.append(field)
            called.update(field.names)
    return mapped


def _is_called(field: MappedField, names: Container[str]) -> bool:
    return any(name.lower() in names for name in field.names)


def mapped_ids(fields: Iterable[MappedField]) -> Iterator[int]:
    for field in fields:
        if field.field_id is not None:
            yield field.field_id
        yield from mapped_ids(field.fields)
