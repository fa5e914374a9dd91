"""The name mapping, which gives Iceberg's field ids to columns of files without ids. It survives schema changes.

It also has hidden columns, which only files have, and not the table: PyIceberg refuses a file with an unmapped name. A
field has no name if Iceberg's Java library gave the name to a new column. `with_former` drops such fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

from pyiceberg.table.name_mapping import MappedField, NameMapping

Path = tuple[str, ...]

# Ids of columns that only files have begin here: far above any id that Delta assigns, and below Iceberg's reserved ids
# (Iceberg spec, "Reserved Field IDs").
HIDDEN_ID_START = 2_147_000_000
# Iceberg spec, "Reserved Field IDs": `_row_id`.
ROW_ID = 2_147_483_540
NOTHING = MappedField(names=[])


def find_renumbered(old: Iterable[MappedField], new: Iterable[MappedField], parent: str = "") -> Iterator[str]:
    """Yield the columns, by physical name, whose id changed: Delta gives new ids when column mapping is switched on."""
    # The metrics and partition values of live files would then belong to other columns.
    before = {field.names[0]: field for field in old if field.names and (field.field_id or 0) < HIDDEN_ID_START}
    for field in new:
        known = before.get(field.names[0])
        if known is None:
            continue
        if known.field_id != field.field_id:
            yield f"{parent}{field.names[0]} (from id {known.field_id} to {field.field_id})"
        yield from find_renumbered(known.fields, field.fields, f"{parent}{field.names[0]}.")


def find_lost(before: Iterable[MappedField], after: Iterable[MappedField], parent: Path = ()) -> dict[int, str]:
    """Return the field ids that lost a name: if `before` maps `a` to 1 and `after` maps `a` to 7, that is {1: "a"}.

    In files without field ids, readers of any snapshot no longer find these columns: the name mapping belongs to the
    table (Iceberg spec, "Column Projection").
    """
    by_name = {name: field for field in after for name in field.names}
    lost = {}
    for field in before:
        now = {name: by_name.get(name, NOTHING) for name in field.names}
        for name, found in now.items():
            if field.field_id is not None and found.field_id != field.field_id:
                lost[field.field_id] = ".".join((*parent, name))
        for each in {id(each): each for each in now.values()}.values():
            lost |= find_lost(field.fields, each.fields, (*parent, field.names[0]))
    return lost


def takes_name(
    after: Iterable[MappedField], new_ids: Container[int], before: Sequence[MappedField], old_ids: Container[int]
) -> bool:
    """Return whether a column of `new_ids` has a name, in any case, that `before` maps to none of `old_ids`."""
    by_name = _by_name(before)
    for field in after:
        former = by_name.get(field.names[0].lower(), [])
        if field.field_id in new_ids and any(each.field_id not in old_ids for each in former):
            return True
        if takes_name(field.fields, new_ids, [inner for each in former for inner in each.fields], old_ids):
            return True
    return False


def _by_name(fields: Iterable[MappedField]) -> dict[str, list[MappedField]]:
    """Return the fields by their names in lower case."""
    found: dict[str, list[MappedField]] = {}
    for field in fields:
        for name in {name.lower() for name in field.names}:
            found.setdefault(name, []).append(field)
    return found


def column_finder(
    mapping: Iterable[MappedField], columns: Container[int | None], *, exact: bool
) -> Callable[[str], MappedField | None]:
    """Return a function that finds the mapped field of a name in a file, as Delta does. `columns` are the table's ids.

    Delta ignores case in names, but a name mapping does not: unless names are `exact`, a name that is one of the
    columns' but for case is that column's.
    """
    by_name = {name: mapped for mapped in mapping for name in mapped.names}
    # Java's toLowerCase is Python's lower.
    spellings = {mapped.names[0].lower(): mapped for mapped in mapping if mapped.field_id in columns}

    def find(name: str) -> MappedField | None:
        mapped = by_name.get(name)
        is_column = mapped is not None and mapped.field_id in columns
        return mapped if is_column or exact else spellings.get(name.lower(), mapped)

    return find


def folded(path: Path) -> Path:
    """Return the path as Delta compares it: by Java's toLowerCase, which is Python's lower."""
    return tuple(name.lower() for name in path)


def with_former(fields: Iterable[MappedField], former: Sequence[MappedField], ids: Container[int]) -> list[MappedField]:
    """Return the mapped columns `fields` with the names in `former`: PyIceberg refuses files with unmapped names.

    `ids` are those of all columns. Columns that were dropped, or that only files have, keep their ids. One whose name a
    new column has, but for case, becomes that column, because Delta ignores case. For example, Delta adds `extra`, and
    a file has `Extra` with the fields x and y: `extra` gets the other name `Extra`, and the field y.
    """
    by_id, by_name = {field.field_id: field for field in former}, _by_name(former)
    mapped = []
    for field in fields:
        name = field.names[0]
        same = by_name.pop(name.lower(), [])
        if field.field_id in by_id and all(each.field_id != field.field_id for each in same):
            same = [by_id[field.field_id], *same]
        names = [each for known in same for each in known.names if each.lower() == name.lower()]
        inner = with_former(field.fields, [each for known in same for each in known.fields], ids)
        mapped.append(MappedField(field_id=field.field_id, names=list(dict.fromkeys([name, *names])), fields=inner))
    called: set[str] = set()
    for field in former:
        is_free = called.isdisjoint(field.names) and all(name.lower() in by_name for name in field.names)
        if field.names and is_free and not any(field_id in ids for field_id in mapped_ids([field])):
            inner = with_former((), field.fields, ids)
            mapped.append(MappedField(field_id=field.field_id, names=field.names, fields=inner))
            called.update(field.names)
    return mapped


def mapped_ids(fields: Iterable[MappedField]) -> Iterator[int]:
    """Yield the field ids at all levels."""
    for field in fields:
        if field.field_id is not None:
            yield field.field_id
        yield from mapped_ids(field.fields)


def first_names(fields: Iterable[MappedField]) -> Iterator[tuple[int, str]]:
    """Yield the field ids at all levels, each with its first name: the physical one of a column."""
    for field in fields:
        if field.field_id is not None and field.names:
            yield field.field_id, field.names[0]
        yield from first_names(field.fields)


def only_ids(fields: Iterable[MappedField], ids: Container[int]) -> list[MappedField]:
    """Return the fields that have one of `ids`, or a hidden id, at all levels."""
    return [
        MappedField(field_id=field.field_id, names=field.names, fields=only_ids(field.fields, ids))
        for field in fields
        if field.field_id is not None and (field.field_id in ids or field.field_id > HIDDEN_ID_START)
    ]


def with_unmapped(mapping: NameMapping, unmapped: Iterable[Path], columns: Collection[int] = ()) -> NameMapping:
    """Return the mapping with these columns of files.

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

    Another column that was `_row_id` before is hidden: readers refuse two, and Delta names a new column when row
    tracking is dropped and added again.
    """
    kept = [field for field in mapping.root if field.field_id != ROW_ID and column not in field.names]
    former = [(name,) for field in mapping.root if field.field_id == ROW_ID for name in field.names if name != column]
    return with_unmapped(NameMapping([*kept, MappedField(field_id=ROW_ID, names=[column], fields=[])]), former)


def _with_field(
    fields: Sequence[MappedField], path: Path, field_id: int, columns: Collection[int]
) -> list[MappedField]:
    (name, *rest), changed, is_known = path, [], False
    for field in fields:
        names, inner = field.names, field.fields
        if rest and name in names:
            inner = _with_field(inner, tuple(rest), field_id, columns)
        elif not rest and field.field_id in columns and names[0].lower() == name.lower():
            names, is_known = [*names, name], True
        elif not rest and name in names:
            continue
        changed.append(MappedField(field_id=field.field_id, names=names, fields=inner))
    return changed if rest or is_known else [*fields, MappedField(field_id=field_id, names=[name], fields=[])]
