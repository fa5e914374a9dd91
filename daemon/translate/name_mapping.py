"""The name mapping, which gives Iceberg's field ids to columns of files without ids. It survives schema changes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from pyiceberg.table.name_mapping import MappedField, NameMapping

Path = tuple[str, ...]

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
    ids = dict(mapped_paths(after))
    return {field_id: ".".join(path) for path, field_id in mapped_paths(before) if ids.get(path) != field_id}


def mapped_paths(fields: Iterable[MappedField], parent: Path = ()) -> Iterator[tuple[Path, int]]:
    """Yield the path of each name, with its field id."""
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield (*parent, name), field.field_id
            yield from mapped_paths(field.fields, (*parent, name))


def folded(path: Path) -> Path:
    """Return the path as Delta compares it: without regard to case, by Java's toLowerCase, which is Python's lower."""
    return tuple(name.lower() for name in path)


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
        names = [each for known in same for each in known.names if each.lower() == name.lower()]
        inner = with_former(field.fields, [each for known in same for each in known.fields], ids)
        mapped.append(MappedField(field_id=field.field_id, names=list(dict.fromkeys([name, *names])), fields=inner))
    taken, called = {field.names[0].lower() for field in mapped}, set[str]()
    for field in former:
        is_free = called.isdisjoint(field.names) and not _is_called(field, taken)
        if is_free and not any(field_id in ids for _, field_id in mapped_paths([field])):
            mapped.append(field)
            called.update(field.names)
    return mapped


def _is_called(field: MappedField, names: Container[str]) -> bool:
    return any(name.lower() in names for name in field.names)
