"""The name mapping: Iceberg's ids for the columns of files that carry none, through every change of the schema."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from pyiceberg.table.name_mapping import MappedField, NameMapping

# Ids of columns that only files have: far above those that Delta counts up to, below Iceberg's reserved ones (Iceberg
# spec, "Reserved Field IDs").
HIDDEN_ID_START = 2_147_000_000


def find_renumbered(old: Iterable[MappedField], new: Iterable[MappedField], parent: str = "") -> Iterator[str]:
    """Columns, by physical name, that have another id than before.

    Switching column mapping on numbers the columns of the files that are there anew, as Delta likes. Metrics and
    partition values of what is live would then belong to other columns.
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
    """Field ids to which a name of `before` led and leads no more, each with that name.

    Readers find these columns no longer in files without field ids, whichever snapshot shows them: a name mapping is
    the table's, not a snapshot's (Iceberg spec, "Column Projection").
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
    """`fields`, and dropped columns that older files may still carry: PyIceberg refuses a file with an unmapped name.

    Iceberg spec, "Column Projection": names of the mapping may lead to ids that the schema does not have any more.
    """
    before = {field.field_id: field.fields for field in previous}
    # Some readers compare names without regard to case: a dropped `id` must not stand before a new `ID`.
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
