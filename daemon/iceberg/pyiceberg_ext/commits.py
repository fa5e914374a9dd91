"""Stages tables, and commits by one compare-and-swap at the catalog. Names of metadata files are known in advance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from uuid import UUID

from pydantic import Field, SerializeAsAny
from pyiceberg.catalog import METADATA, Catalog, MetastoreCatalog, delete_files
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSchemaUpdate, TableRequirement, TableUpdate

from daemon.iceberg.pyiceberg_ext import metadata_cache
from daemon.iceberg.pyiceberg_ext.file_io import StoreFileIO
from daemon.store.durable import force_to_disk, is_local, make_folder_of


def stage_table(
    catalog: Catalog,
    identifier: str,
    schema: Schema,
    spec: PartitionSpec,
    *,
    location: str | None,
    properties: Mapping[str, str],
) -> Table:
    """Return a table that does not exist yet, with the uuid, location and FileIO that the catalog would give it."""
    transaction = catalog.create_table_transaction(
        identifier, schema=schema, location=location, partition_spec=spec, properties=dict(properties)
    )
    # The transaction has no public access to its staged table, and committing it would give every field a new id.
    return transaction._table


Announce = Callable[[Sequence[str]], None]

# Of the commit in progress: who gets the paths of metadata files before they are written, and the files that this
# process wrote for the commit, and that are not forced to the disk yet.
_commit: ContextVar[tuple[Announce, Sequence[str]]] = ContextVar("commit", default=(lambda _: None, ()))
# So many former metadata files of a table leave an object store together.
REMOVED_TOGETHER = 20


def writes_metadata_files(catalog: Catalog) -> bool:
    """Return whether the client of `catalog` writes metadata files. The server of a REST catalog writes its own, and
    only the server knows which it still needs, for example for a branch of the whole catalog: we never remove those.
    """
    return isinstance(catalog, MetastoreCatalog)


def manage_metadata_files(catalog: Catalog) -> None:
    """Make `commit_updates` announce the paths of metadata files before `catalog` writes them.

    The files are also forced to the disk before the catalog refers to them, and former ones leave an object store in
    groups. Patches the catalog, except one of REST; no upstream issue is known: it would take the new file's name, and
    the removal of former ones, as arguments.
    """
    if not isinstance(catalog, MetastoreCatalog):
        return

    def write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        announce, written = _commit.get()
        announce([metadata_path])
        make_folder_of(metadata_path)
        type(catalog)._write_metadata(metadata, io, metadata_path)
        # Force all files in one call, so that their folder is forced only once.
        force_to_disk([*written, metadata_path])

    # PyIceberg makes up the name inside of the commit, and this is the first function that gets it.
    catalog._write_metadata = write_metadata  # type: ignore[method-assign]

    waiting: dict[UUID, list[str]] = defaultdict(list)

    def delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        # In the place of a FileIO: collects the files that PyIceberg removes. If the process ends before, cleanup does.
        locations = waiting[metadata.table_uuid]
        type(catalog)._delete_old_metadata(SimpleNamespace(delete=locations.append), base, metadata)  # type: ignore[arg-type]
        if len(locations) < REMOVED_TOGETHER and not is_local(metadata.location):
            return
        del waiting[metadata.table_uuid]
        if locations and not (isinstance(io, StoreFileIO) and io.delete_together(locations)):
            delete_files(io, set(locations), METADATA)

    catalog._delete_old_metadata = delete_old_metadata  # type: ignore[method-assign]


class _AddSchemaUpdate(AddSchemaUpdate):
    last_column_id: int = Field(alias="last-column-id")


class _CommitTableRequest(CommitTableRequest):
    updates: tuple[SerializeAsAny[TableUpdate], ...]


def complete_rest_requests() -> None:
    """Make clients of REST catalogs send all fields of the update that `added_schema` returns. Patches PyIceberg.

    Nessie 0.99 refuses `add-schema` without `last-column-id`, which the REST specification calls deprecated and which
    Java clients send. PyIceberg lacks this field, and serializes only the fields that it knows. Goes once Nessie does
    without: https://github.com/projectnessie/nessie/issues/11341.
    """
    # Import late: with its HTTP client, this is a tenth of all imports of `dvsync sync`. Other catalogs do not need it.
    from pyiceberg.catalog import rest  # noqa: PLC0415

    rest.CommitTableRequest = _CommitTableRequest  # type: ignore[assignment, attr-defined]


def added_schema(schema: Schema, table: Table) -> TableUpdate:
    """Return an update that adds `schema`, in a form that every REST catalog accepts."""
    return _AddSchemaUpdate(schema_=schema, last_column_id=max(schema.highest_field_id, table.metadata.last_column_id))


def commit_updates(
    table: Table,
    updates: tuple[TableUpdate, ...],
    requirements: tuple[TableRequirement, ...],
    announce: Announce,
    *,
    written: Sequence[str] = (),
) -> None:
    """Commit by one compare-and-swap, after `written` is forced to the disk. Then `table` has the new metadata."""
    if not writes_metadata_files(table.catalog):
        force_to_disk(written)
    in_work = _commit.set((announce, written))
    try:
        # Transactions have their own snapshot producers and retries. This is the function below them; it also applies
        # `write.metadata.delete-after-commit.enabled`.
        table._do_commit(updates=updates, requirements=requirements)
        if writes_metadata_files(table.catalog):
            metadata_cache.add_metadata(table.metadata_location, table.metadata)
    finally:
        _commit.reset(in_work)
