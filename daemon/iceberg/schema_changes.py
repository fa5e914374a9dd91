"""What changed between two schemas of an Iceberg table, in words for people who read the table."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id, index_name_by_id
from pyiceberg.table import Table
from pyiceberg.types import NestedField


@dataclass(frozen=True)
class Layout:
    """The columns and the partitioning of a table."""

    schema: Schema
    spec: PartitionSpec


def layout_of(table: Table) -> Layout:
    return Layout(table.schema(), table.spec())


def describe_changes(before: Layout, after: Layout) -> list[str]:
    """Describe how `after` differs, without comments: `id: long is now string`, `new column city: string`."""
    old, new = _columns(before.schema), _columns(after.schema)
    names = {field.field_id: name for name, field in new.items() if name not in old}
    left = {name: field for name, field in old.items() if name not in new}
    renamed = {name: names[field.field_id] for name, field in left.items() if field.field_id in names}
    changes = [f"{name} is now {to}" for name, to in renamed.items()]
    changes += [f"no column {name} any more" for name in left if name not in renamed]
    added = new.keys() - old.keys() - set(renamed.values())
    changes += [f"new column {name}: {field.field_type}" for name, field in new.items() if name in added]
    for name, field in old.items():
        now = new.get(renamed.get(name, name), field)
        # The fields of a struct, list or map are columns of their own here.
        is_leaf = field.field_type.is_primitive or now.field_type.is_primitive
        if is_leaf and now.field_type != field.field_type:
            changes.append(f"{name}: {field.field_type} is now {now.field_type}")
        if now.required != field.required:
            changes.append(f"{name} is now {'required' if now.required else 'optional'}")
    if _partitioning(before) != _partitioning(after):
        changes.append(f"partitioned by {', '.join(_partitioning(after)) or 'nothing'}")
    return changes


def _columns(schema: Schema) -> dict[str, NestedField]:
    """Return all fields by their full name, nested ones too."""
    names = index_name_by_id(schema)
    return {names[field_id]: field for field_id, field in index_by_id(schema).items()}


def _partitioning(layout: Layout) -> list[str]:
    names = index_name_by_id(layout.schema)
    return [f"{field.transform}({names.get(field.source_id, field.name)})" for field in layout.spec.fields]
