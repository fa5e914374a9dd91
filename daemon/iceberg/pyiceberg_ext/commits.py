"""Staging a table, and one compare-and-swap at the catalog, with the names of its metadata files known in advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from pydantic import Field, SerializeAsAny
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSchemaUpdate, TableRequirement, TableUpdate

from daemon.durable import force_to_disk, make_folder_of
from daemon.iceberg.pyiceberg_ext import metadata_cache


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


Announce = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class _Commit:
    """The commit in work: whom to tell the names of metadata files, and which files they will lead to that this process
    has written and not forced to the disk yet.
    """

    announce: Announce
    written: Sequence[str]


_commit: ContextVar[_Commit | None] = ContextVar("commit", default=None)


def writes_metadata_files(catalog: Catalog) -> bool:
    """Whether the client of `catalog` names and writes metadata files. A REST catalog's server writes its own: which of
    them it still needs, for a branch or a tag of the whole catalog perhaps, is its business.
    """
    return isinstance(catalog, MetastoreCatalog)


def announce_metadata_files(catalog: Catalog) -> None:
    """From now on `commit_updates` tells the names of metadata files before `catalog` writes them, if it does, and
    forces them to the disk before `catalog` names them.
    """
    if not isinstance(catalog, MetastoreCatalog):
        return

    def write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        commit = _commit.get()
        if commit:
            commit.announce([metadata_path])
        make_folder_of(metadata_path)
        type(catalog)._write_metadata(metadata, io, metadata_path)
        # All at once, and their folder but once.
        force_to_disk([*(commit.written if commit else ()), metadata_path])

    # The name is made inside of the commit, and this is the first step that sees it.
    catalog._write_metadata = write_metadata  # type: ignore[method-assign]


class _AddSchemaUpdate(AddSchemaUpdate):
    last_column_id: int = Field(alias="last-column-id")


class _CommitTableRequest(CommitTableRequest):
    updates: tuple[SerializeAsAny[TableUpdate], ...]


def complete_rest_requests() -> None:
    """From now on clients of REST catalogs send all of what `added_schema` makes.

    Nessie 0.99 refuses `add-schema` without the field that the REST specification calls deprecated, and that Java
    clients send. PyIceberg does not have it, and writes no more of an update than it has.
    """
    # With its HTTP client it is a tenth of all that `dvsync sync` imports, and other catalogs do without.
    from pyiceberg.catalog import rest  # noqa: PLC0415

    rest.CommitTableRequest = _CommitTableRequest  # type: ignore[assignment, attr-defined]


def added_schema(schema: Schema, table: Table) -> TableUpdate:
    """Adds `schema`, in a way that every REST catalog takes."""
    return _AddSchemaUpdate(schema_=schema, last_column_id=max(schema.highest_field_id, table.metadata.last_column_id))


def commit_updates(
    table: Table,
    updates: tuple[TableUpdate, ...],
    requirements: tuple[TableRequirement, ...],
    announce: Announce,
    *,
    written: Sequence[str] = (),
) -> None:
    """One compare-and-swap at the catalog; `table` shows the new metadata afterwards.

    The files in `written` are on the disk before the catalog is asked.
    """
    if not writes_metadata_files(table.catalog):
        force_to_disk(written)
    in_work = _commit.set(_Commit(announce, written))
    try:
        # Transactions bring their own snapshot producers and retries; this is the step below them, which also applies
        # `write.metadata.delete-after-commit.enabled`.
        table._do_commit(updates=updates, requirements=requirements)
        if writes_metadata_files(table.catalog):
            metadata_cache.written_metadata.add(table.metadata_location, table.metadata)
    finally:
        _commit.reset(in_work)
