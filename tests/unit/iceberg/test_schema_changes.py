"""What people are told when a table's columns change."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType

from daemon.iceberg.schema_changes import Layout, describe_changes


def layout(*fields: NestedField, by: int | None = None) -> Layout:
    parts = [PartitionField(by, 1000, IdentityTransform(), "p")] if by else []
    return Layout(Schema(*fields), PartitionSpec(*parts))


ID = NestedField(1, "id", IntegerType(), required=False)
NAME = NestedField(2, "name", StringType(), required=False)


def test_each_change_is_named() -> None:
    """A new id under an old name is a change of type, as Delta's `overwriteSchema` makes it without column mapping."""
    before = layout(ID, NAME, NestedField(3, "old", StringType(), required=False))
    after = layout(
        NestedField(9, "id", StringType(), required=True),
        NestedField(2, "customer", StringType(), required=False),
        NestedField(4, "city", StringType(), required=False),
        by=4,
    )
    assert describe_changes(before, after) == [
        "name is now customer",
        "no column old any more",
        "new column city: string",
        "id: int is now string",
        "id is now required",
        "partitioned by identity(city)",
    ]


def test_nested_columns_count_and_comments_do_not() -> None:
    def nested(*fields: NestedField) -> Layout:
        inner = StructType(*fields)
        return layout(NestedField(5, "items", ListType(6, inner, element_required=False), required=False))

    price = NestedField(7, "price", IntegerType(), required=False)
    commented = NestedField(7, "price", IntegerType(), required=False, doc="in cents")
    assert describe_changes(nested(price), nested(commented)) == []
    wider = nested(NestedField(7, "price", LongType(), required=False), NestedField(8, "tax", LongType()))
    assert describe_changes(nested(price), wider) == [
        "new column items.element.tax: long",
        "items.element.price: int is now long",
    ]
