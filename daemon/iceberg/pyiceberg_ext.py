"""The only place that touches PyIceberg's private names (pinned to 0.12.x), each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate


def stage_table(
    catalog: Catalog,
    identifier: str,
    *,
    schema: Schema,
    spec: PartitionSpec,
    location: str | None,
    properties: Mapping[str, str],
) -> Table:
    """A table that exists nowhere yet: its uuid, location and FileIO, as the catalog would have them."""
    transaction = catalog.create_table_transaction(
        identifier, schema=schema, location=location, partition_spec=spec, properties=dict(properties)
    )
    # The transaction offers no way to its staged table, and its own updates would give every field a new id.
    return transaction._table


def commit_updates(table: Table, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]) -> None:
    """One compare-and-swap at the catalog; `table` shows the new metadata afterwards."""
    # Transactions bring their own snapshot producers and retries; this is the step below them, which also applies
    # `write.metadata.delete-after-commit.enabled`.
    table._do_commit(updates=updates, requirements=requirements)
