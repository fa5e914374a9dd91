"""The Iceberg table of one sync: finds it, creates it and commits to it, through any catalog of PyIceberg."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC as UNPARTITIONED
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable, Table, update
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from daemon.clock import Clock
from daemon.errors import CommitConflict, CommitOutcomeUnknown, SyncError, Unsupported
from daemon.iceberg.catalogs import catalog_away, cause_of
from daemon.iceberg.manifests import has_row_lineage, write_manifest_list
from daemon.iceberg.pyiceberg_ext.commits import Announce, added_schema, commit_updates, stage_table
from daemon.iceberg.pyiceberg_ext.format_v3 import next_row_id
from daemon.iceberg.retention import TAG, Tag
from daemon.iceberg.row_delta import PreparedSnapshot, TableView
from daemon.iceberg.version_hint import ADVICE, SUFFIX, write_hint
from daemon.observe import log as events

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Updates = tuple[update.TableUpdate, ...]
Requirements = tuple[update.TableRequirement, ...]


@dataclass(frozen=True)
class Misread:
    """Our snapshots in which readers would see nulls or wrong values in `columns` of files without field ids.

    `references` are the branches (except main) and tags of others that point at such a snapshot of anybody; dvsync's
    own `tags` are removed with the snapshots.
    """

    snapshot_ids: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Definition:
    """The table after the commit. `properties` are set, never removed. Snapshots that readers would misread with the
    new name mapping (`misread`) are expired in the commit that sets it. A lower `format_version` is upgraded.
    """

    schema: Schema
    spec: PartitionSpec
    properties: Mapping[str, str] = field(default_factory=dict)
    misread: Misread = field(default_factory=Misread)
    format_version: int = 2


@dataclass(eq=False)
class Target:
    """One Iceberg identifier in one catalog. Failures of the catalog are raised as `CatalogAway`.

    Each commit has the `signature` in its summary or properties. Before it, `check_lease` raises if we may not commit.
    With `version_hint`, the hint in the table's folder follows each commit.
    """

    catalog_name: str
    open_catalog: Callable[[], Catalog]
    identifier: str
    location: str | None
    clock: Clock
    signature: Mapping[str, str] = field(default_factory=dict)
    check_lease: Callable[[], None] = lambda: None
    version_hint: bool = False
    # What the hint names, and whether the last attempt to write it failed.
    _hinted: str | None = field(default=None, init=False)
    _hint_failed: bool = field(default=False, init=False)

    @contextmanager
    def _catalog(self) -> Iterator[Catalog]:
        try:
            yield self.open_catalog()
        except SyncError:
            raise
        except Exception as error:
            raise catalog_away(self.catalog_name, error) from error

    def find_table(self) -> Table | None:
        """Load the table; None if there is none. Raises ObjectMissing and TargetUnreadable for its metadata file."""
        with self._catalog() as catalog, suppress(NoSuchTableError):
            return catalog.load_table(self.identifier)
        return None

    def drop(self) -> None:
        """Drop the table from the catalog, which keeps its files. Raises CatalogAway."""
        with self._catalog() as catalog:
            catalog.drop_table(self.identifier)

    def stage(self, definition: Definition) -> Table:
        """Stage a table that the first commit will create. Its namespace is created now if it is missing."""
        namespace = Catalog.namespace_from(self.identifier)
        with self._catalog() as catalog:
            try:
                catalog.create_namespace_if_not_exists(namespace)
            except Exception:
                # Catalogs check before they create. If two tables create it at once, one may get any error.
                if not catalog.namespace_exists(namespace):
                    raise
            properties = {**definition.properties, "format-version": str(definition.format_version)}
            schema, spec = definition.schema, definition.spec
            return stage_table(catalog, self.identifier, schema, spec, location=self.location, properties=properties)

    def define(
        self, table: Table, definition: Definition, announce: Announce, stamp: Mapping[str, str] | None = None
    ) -> Table:
        """Change `table` without a snapshot, if it differs, and set the properties `stamp`. Raises as `commit`."""
        updates = _definition_changes(table, definition)
        if not updates:
            return table
        if stamp:
            updates = (*updates, update.SetPropertiesUpdate(updates={**stamp, **self.signature}))
        removals, references = _removals(table, definition.misread.snapshot_ids, definition.misread.tags)
        with self._committing(table, definition.format_version):
            commit_updates(table, (*updates, *removals), (*_unchanged(table), *references), announce)
        self.update_hint(table)
        _log_expired(table, definition.misread)
        return table

    def expire(self, table: Table, snapshot_ids: Sequence[int], tags: Sequence[str], announce: Announce) -> Table:
        """Remove snapshots and tags from the table's metadata; files stay. Raises as `commit`, also if a branch or tag
        has changed. But a new tag that someone sets on one of the snapshots at this very moment is lost: the
        specification has no requirement that a tag is absent.
        """
        removals, references = _removals(table, snapshot_ids, tags)
        with self._committing(table, table.metadata.format_version):
            commit_updates(table, removals, (*_unchanged(table), *references), announce)
        self.update_hint(table)
        return table

    def commit(
        self,
        table: Table,
        definition: Definition,
        prepared: PreparedSnapshot,
        marker: Mapping[str, str],
        announce: Announce,
        *,
        tag: Tag | None = None,
    ) -> Table:
        """Make `prepared` the table's current snapshot. Creates the table if it was only staged.

        The same commit sets `tag`, unless the table has a tag or branch of that name. If the client names the new
        metadata file, `announce` gets its path first. Raises `CommitConflict` if someone else committed first (our
        commit certainly did not land) and `CommitOutcomeUnknown` if it may have landed. The files stay in both cases.
        """
        metadata = table.metadata
        since_ms = 0 if isinstance(table, StagedTable) else metadata.last_updated_ms + 1
        first_row_id = next_row_id(metadata)
        with_row_ids = has_row_lineage(definition.format_version)
        tag = None if tag and (tag.name in metadata.refs or _is_nessie(table)) else tag
        tagged = {TAG: tag.name} if tag else {}
        snapshot = Snapshot(
            snapshot_id=prepared.snapshot_id,
            parent_snapshot_id=metadata.current_snapshot_id,
            sequence_number=metadata.next_sequence_number(),
            # Iceberg's JVM library refuses a table whose log goes back in time by more than a minute.
            timestamp_ms=max(self.clock.now_ms(), since_ms),
            manifest_list=prepared.manifest_list_path,
            summary=Summary(operation=prepared.operation, **prepared.summary, **marker, **self.signature, **tagged),
            schema_id=definition.schema.schema_id,
            first_row_id=first_row_id if with_row_ids else None,
        )
        row_ids_end = write_manifest_list(table.io, prepared.manifests, snapshot, definition.format_version)
        if with_row_ids:
            # Row ids that Delta gave to rows must not be given to others later.
            added_rows = max(row_ids_end, prepared.row_ids_end) - first_row_id
            snapshot = snapshot.model_copy(update={"added_rows": added_rows})
        updates, requirements = _changes(table, definition, snapshot, tag)
        manifests = {*prepared.placements.values(), *prepared.moved_manifests.values()}
        try:
            with self._committing(table, definition.format_version):
                written = [*manifests, prepared.manifest_list_path]
                commit_updates(table, updates, requirements, announce, written=written)
        except CommitConflict:
            # A catalog client that repeats a request by itself can conflict with its own first request.
            found = self.find_table()
            if found is None or found.metadata.current_snapshot_id != prepared.snapshot_id:
                raise
            table = found
        self.update_hint(table)
        _log_expired(table, definition.misread)
        return table

    def update_hint(self, table: Table) -> None:
        """Let the version hint, if it is wanted, name the table's current metadata file. Of several failures the first
        one is logged, and the next call tries again: the hint serves nobody but readers by folder.
        """
        if not self.version_hint or table.metadata_location == self._hinted:
            return
        try:
            # The next holder of the lease would not know that its hint was replaced.
            self.check_lease()
            if not table.metadata_location.endswith(SUFFIX):
                # Nessie answers a commit with an address of its own, and names the file only when the table is loaded.
                table = self.open_catalog().load_table(self.identifier)
            write_hint(table)
            self._hinted, self._hint_failed = table.metadata_location, False
        except Exception as error:
            if not self._hint_failed:
                advice = error.hint if isinstance(error, SyncError) else ADVICE
                _log.warning(events.HINT_UNWRITTEN, reason=f"{type(error).__name__}: {error}", hint=advice)
            self._hint_failed = True

    @contextmanager
    def _committing(self, table: Table, format_version: int) -> Iterator[None]:
        """Check the lease before a commit; of a commit that fails, say whether it may have landed."""
        self.check_lease()
        try:
            yield
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise CommitConflict(
                f"another writer committed to {self.identifier} first: {error}",
                hint="dvsync reads the table again. If the other writer is not dvsync, `on_foreign_commit` counts.",
            ) from error
        except SyncError:
            raise
        except Exception as error:
            is_new = isinstance(table, StagedTable) or table.metadata.format_version < format_version
            if isinstance(error, BadRequestError) and format_version > 2 and is_new:
                raise Unsupported(
                    f"the catalog refused a commit of format version {format_version}: {error}",
                    path=self.identifier,
                    hint="Set format_version: 2, or use a version of the catalog's server that supports this one.",
                ) from error
            raise CommitOutcomeUnknown(
                f"the commit to {self.identifier} in the catalog {self.catalog_name} may or may not have landed: "
                f"{cause_of(error)}",
                hint="Check the catalog. dvsync first searches the table for its marker, then tries again.",
            ) from error


def view_of(table: Table, definition: Definition) -> TableView:
    """Return what a row delta needs to know about `table`, as if it already had `definition`."""
    return TableView(
        io=table.io,
        locations=load_location_provider(table.metadata.location, table.metadata.properties),
        schemas=(definition.schema, *(schema for _, schema in sorted(table.schemas().items(), reverse=True))),
        specs={**table.specs(), definition.spec.spec_id: definition.spec},
        format_version=definition.format_version,
        parent=table.current_snapshot(),
        properties=table.properties,
    )


def _changes(table: Table, definition: Definition, snapshot: Snapshot, tag: Tag | None) -> tuple[Updates, Requirements]:
    point = partial(
        update.SetSnapshotRefUpdate,
        snapshot_id=snapshot.snapshot_id,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    main = point(ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, max_ref_age_ms=None)
    reference: Updates = (update.AddSnapshotUpdate(snapshot=snapshot), main)
    if tag:
        reference += (point(ref_name=tag.name, type=SnapshotRefType.TAG, max_ref_age_ms=tag.age_max_ms),)
    if isinstance(table, StagedTable):
        return (
            update.AssignUUIDUpdate(uuid=table.metadata.table_uuid),
            update.UpgradeFormatVersionUpdate(format_version=definition.format_version),
            added_schema(definition.schema, table),
            update.SetCurrentSchemaUpdate(schema_id=-1),
            update.AddPartitionSpecUpdate(spec=definition.spec if definition.spec.fields else UNPARTITIONED),
            update.SetDefaultSpecUpdate(spec_id=-1),
            update.AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER),
            update.SetDefaultSortOrderUpdate(sort_order_id=-1),
            update.SetLocationUpdate(location=table.metadata.location),
            update.SetPropertiesUpdate(updates={**table.metadata.properties, **definition.properties}),
            *reference,
        ), (update.AssertCreate(),)
    removals, references = _removals(table, definition.misread.snapshot_ids, definition.misread.tags)
    if tag:
        references += (update.AssertRefSnapshotId(ref=tag.name, snapshot_id=None),)
    # Remove snapshots last: the previous newest snapshot may be one of them, and is current until the reference moves.
    return (*_definition_changes(table, definition), *reference, *removals), (*_unchanged(table), *references)


def _is_nessie(table: Table) -> bool:
    """Nessie keeps older snapshots in its own history, with the name mapping of their time, and removes none."""
    return table.catalog.properties.get("nessie.is-nessie-catalog") == "true"


def _removals(table: Table, snapshot_ids: Sequence[int], tags: Sequence[str]) -> tuple[Updates, Requirements]:
    """Return the updates that remove tags and snapshots, and requirements that branches and tags have not changed."""
    if not (snapshot_ids or tags) or _is_nessie(table):
        return (), ()
    refs = table.metadata.refs.items()
    removals: Updates = tuple(update.RemoveSnapshotRefUpdate(ref_name=name) for name in tags)
    if snapshot_ids:
        removals += (update.RemoveSnapshotsUpdate(snapshot_ids=list(snapshot_ids)),)
    return removals, tuple(update.AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in refs)


def _log_expired(table: Table, misread: Misread) -> None:
    expired = tuple(each for each in misread.snapshot_ids if table.snapshot_by_id(each) is None)
    if expired:
        _log.warning(events.SNAPSHOTS_EXPIRED, snapshot_ids=expired, columns=misread.columns, tags=misread.tags)


def _unchanged(table: Table) -> Requirements:
    """Require that the table is the same one, and that nobody changed its rows, schema or spec since it was loaded."""
    return (
        update.AssertTableUUID(uuid=table.metadata.table_uuid),
        update.AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=table.metadata.current_snapshot_id),
        update.AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
        update.AssertDefaultSpecId(default_spec_id=table.metadata.default_spec_id),
    )


def _definition_changes(table: Table, definition: Definition) -> Updates:
    updates: list[update.TableUpdate] = []
    if definition.format_version > table.metadata.format_version:
        updates += [update.UpgradeFormatVersionUpdate(format_version=definition.format_version)]
    if definition.schema.schema_id not in table.schemas():
        updates += [added_schema(definition.schema, table), update.SetCurrentSchemaUpdate(schema_id=-1)]
    elif definition.schema.schema_id != table.metadata.current_schema_id:
        updates += [update.SetCurrentSchemaUpdate(schema_id=definition.schema.schema_id)]
    if definition.spec.spec_id not in table.specs():
        updates += [update.AddPartitionSpecUpdate(spec=definition.spec), update.SetDefaultSpecUpdate(spec_id=-1)]
    elif definition.spec.spec_id != table.metadata.default_spec_id:
        updates += [update.SetDefaultSpecUpdate(spec_id=definition.spec.spec_id)]
    changed = {key: value for key, value in definition.properties.items() if table.properties.get(key) != value}
    if changed:
        updates += [update.SetPropertiesUpdate(updates=changed)]
    return tuple(updates)
