"""The name mapping, which gives Iceberg's field ids to columns of files without ids. It survives schema changes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

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
        path = (*parent, field.names[0])
        if field.field_id is not None:
            yield path, field.field_id
        yield from _mapped_paths(field.fields, path)


def with_dropped(
    fields: list[MappedField], previous: Sequence[MappedField], ids: Container[int | None]
) -> list[MappedField]:
    """Return `fields` and the dropped columns, which older files may have: PyIceberg refuses files with unmapped names.

    Iceberg spec, "Column Projection": a mapping may contain ids that the schema no longer has.
    """
    before = {field.field_id: field.fields for field in previous}
    # Some readers ignore case in names: a dropped `id` must not hide a new `ID`.
    names = {name.casefold() for field in fields for name in field.names}
    kept = [
        MappedField(
            field_id=field.field_id,
            names=field.names,
            fields=with_dropped(field.fields, before.get(field.field_id, []), ids),
        )
        for field in fields
    ]
    return kept + [
        field
        for field in previous
        if names.isdisjoint(name.casefold() for name in field.names)
        and not any(field_id in ids for field_id in _mapped_ids(field))
    ]


def _mapped_ids(field: MappedField) -> Iterator[int | None]:
    yield field.field_id
    for inner in field.fields:
        yield from _mapped_ids(inner)
