"""Commits: what lands, what certainly did not, and what nobody can tell yet. A real SQL catalog, in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from daemon.errors import CatalogAway, CommitConflict, CommitOutcomeUnknown, SyncError, Unsupported
from daemon.iceberg import target as target_module
from daemon.iceberg.catalogs import catalog_away
from daemon.iceberg.marker import Marker, find_marker
from daemon.iceberg.pyiceberg_ext.format_v3 import allow_version_3
from daemon.iceberg.retention import Tag
from daemon.iceberg.target import Definition, Misread, Target
from tests.kit.made import BY_PART, NOW_MS, SCHEMA, UNPARTITIONED, FixedClock, MadeTable, data_file

ADDED = {"added_data_files": [data_file("a")]}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MadeTable]:
    made = MadeTable(tmp_path)
    yield made
    made.close()


def snapshot_ids(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.snapshots()]


def commit(made: MadeTable, table: Table, **changes: Any) -> Table:
    """As `MadeTable.commit`, on a table as it was looked at earlier."""
    prepared = made.prepare(table, **(changes or ADDED))
    return made.target.commit(table, made.definition, prepared, {"marker": "x"}, made.announced.extend)


# --- creating ---


def test_a_table_is_created_with_its_first_snapshot(made: MadeTable) -> None:
    """Schema, spec, properties, snapshot and marker appear in one commit; before it there is no table."""
    made.definition = Definition(SCHEMA, BY_PART, {"gc.enabled": "false", "k": "v"})
    assert made.target.find_table() is None
    staged = made.target.stage(made.definition)
    prepared = made.prepare(staged, added_data_files=[data_file("a", part="x", spec=BY_PART)])
    assert made.target.find_table() is None
    table = made.target.commit(
        staged, made.definition, prepared, Marker("t", 4, 17).to_summary(operation="WRITE"), made.announced.extend
    )
    found = made.target.find_table()
    assert found is not None
    assert (found.schema(), found.spec(), found.metadata.format_version) == (SCHEMA, BY_PART, 2)
    assert {"gc.enabled": "false", "k": "v"}.items() <= found.properties.items()
    snapshot = found.current_snapshot()
    assert snapshot is not None
    assert (snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.sequence_number) == (1, None, 1)
    assert (snapshot.timestamp_ms, snapshot.schema_id) == (NOW_MS, SCHEMA.schema_id)
    assert find_marker(snapshot) == Marker("t", 4, 17)
    assert table.metadata_location == found.metadata_location


def test_a_namespace_that_someone_else_creates_meanwhile(made: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog looks, another table's first sync creates it, and the catalog's own try is in vain."""
    look = made.catalog.namespace_exists

    def too_early(namespace: Any) -> bool:
        monkeypatch.setattr(made.catalog, "namespace_exists", look)
        made.catalog.create_namespace(namespace)
        return False

    monkeypatch.setattr(made.catalog, "namespace_exists", too_early)
    made.commit(**ADDED)
    assert len(snapshot_ids(made.table())) == 1


def test_field_ids_stay_as_they_are_given(made: MadeTable) -> None:
    """The catalog's own way would number the fields anew, away from what the name mapping says."""
    schema = Schema(NestedField(7, "b", LongType()), NestedField(4, "a", StringType()), schema_id=0)
    made.definition = Definition(schema, UNPARTITIONED)
    made.commit(**ADDED)
    assert made.table().schema() == schema


def test_a_location_of_ones_own(tmp_path: Path) -> None:
    """A configured location is the table's, and its files go there."""
    made = MadeTable(tmp_path / "warehouse")
    made.target = Target("local", lambda: made.catalog, "lake.t", f"file://{tmp_path}/elsewhere", FixedClock())
    prepared = made.commit(**ADDED)
    assert made.table().location() == f"file://{tmp_path}/elsewhere"
    assert prepared.manifest_list_path.startswith(f"file://{tmp_path}/elsewhere/metadata/")
    made.close()


@pytest.mark.parametrize(
    ("before", "after", "kind"), [(2, 2, CommitOutcomeUnknown), (2, 3, Unsupported), (3, 3, CommitOutcomeUnknown)]
)
def test_a_request_that_the_catalog_calls_bad(
    made: MadeTable, monkeypatch: pytest.MonkeyPatch, before: int, after: int, kind: type[SyncError]
) -> None:
    """The server does not know version 3 only if this commit brings it; else the next try may succeed."""
    allow_version_3()
    made.definition = replace(made.definition, format_version=before)
    made.commit(**ADDED)
    made.definition = replace(made.definition, format_version=after)

    def refused(*_: object, **__: object) -> None:
        raise BadRequestError("Cannot add snapshot with sequence number 2 older than last sequence number 3")

    monkeypatch.setattr(target_module, "commit_updates", refused)
    with pytest.raises(kind, match="older than last sequence number"):
        commit(made, made.table(), added_data_files=[data_file("b")])


def test_creating_a_table_that_someone_else_created(made: MadeTable) -> None:
    """Certainly not landed: the other's table is as it was."""
    staged = made.target.stage(made.definition)
    prepared = made.prepare(staged, **ADDED)
    theirs = made.catalog.create_table("lake.t", SCHEMA)
    with pytest.raises(CommitConflict, match=r"another writer committed to lake\.t first"):
        made.target.commit(staged, made.definition, prepared, {}, made.announced.extend)
    assert made.table().metadata_location == theirs.metadata_location


# --- following ---


def test_a_snapshot_follows_its_parent(made: MadeTable) -> None:
    """Parent, sequence number and totals go on from the current snapshot."""
    for number in range(1, 4):
        made.commit(added_data_files=[data_file(str(number))])
    snapshots = made.table().snapshots()
    assert [
        (snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.sequence_number) for snapshot in snapshots
    ] == [(1, None, 1), (2, 1, 2), (3, 2, 3)]
    assert made.summary()["total-data-files"] == "3"
    assert made.table().metadata.last_sequence_number == 3


def test_a_schema_and_a_spec_come_with_the_snapshot_that_needs_them(made: MadeTable) -> None:
    """What is new is added, what was there before is taken up again; properties are set, never removed."""
    made.commit(**ADDED)
    wider = Schema(*SCHEMA.fields, NestedField(3, "new", LongType()), schema_id=1)
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=1)
    made.definition = Definition(wider, spec, {"k": "1"})
    made.commit(added_data_files=[data_file("b", part="x", spec=spec)])
    table = made.table()
    assert (table.schema(), table.spec()) == (wider, spec)
    assert (table.properties["k"], table.properties["gc.enabled"]) == ("1", "false")
    made.definition = Definition(SCHEMA, UNPARTITIONED, {"k": "2"})
    made.commit(added_data_files=[data_file("c")])
    table = made.table()
    assert (table.schema(), table.spec(), set(table.schemas()), set(table.specs())) == (
        SCHEMA,
        UNPARTITIONED,
        {0, 1},
        {0, 1},
    )
    assert [snapshot.schema_id for snapshot in table.snapshots()] == [0, 1, 0]
    assert table.properties["k"] == "2"


# --- conflicts ---


def test_a_tag_that_someone_sets_at_the_same_time_is_a_conflict(made: MadeTable) -> None:
    """Theirs is not moved. With the table loaded anew, it stays as it is, and the commit lands without a tag."""
    made.commit(**ADDED)
    stale, tag = made.table(), Tag("delta-v2", 5)
    made.table().manage_snapshots().create_tag(1, "delta-v2").commit()
    prepared = made.prepare(stale, added_data_files=[data_file("b")])
    with pytest.raises(CommitConflict, match="delta-v2"):
        made.target.commit(stale, made.definition, prepared, {}, made.announced.extend, tag=tag)
    table = made.table()
    made.target.commit(table, made.definition, prepared, {}, made.announced.extend, tag=tag)
    table = made.table()
    assert table.metadata.refs["delta-v2"].snapshot_id == 1
    assert table.metadata.current_snapshot_id == prepared.snapshot_id
    assert "dvsync.tag" not in made.summary()


def test_another_snapshot_is_a_conflict(made: MadeTable) -> None:
    """Another writer was first: ours certainly did not land, and theirs is untouched."""
    made.commit(**ADDED)
    stale = made.table()
    theirs = made.commit(added_data_files=[data_file("theirs")])
    location = made.table().metadata_location
    with pytest.raises(CommitConflict, match=r"another writer committed to lake\.t first"):
        commit(made, stale, added_data_files=[data_file("ours")])
    table = made.table()
    assert table.metadata_location == location
    assert snapshot_ids(table) == [1, theirs.snapshot_id]
    assert set(made.live()) == {"a", "theirs"}


def test_a_rollback_is_a_conflict(made: MadeTable) -> None:
    """Someone moved the branch back: the parent that we planned on is not the current snapshot any more."""
    made.commit(**ADDED)
    made.commit(added_data_files=[data_file("b")])
    stale = made.table()
    made.table().manage_snapshots().rollback_to_snapshot(1).commit()
    with pytest.raises(CommitConflict):
        commit(made, stale)
    current = made.table().current_snapshot()
    assert current is not None
    assert current.snapshot_id == 1


def test_a_dropped_and_recreated_table_is_a_conflict(made: MadeTable) -> None:
    """The same name is another table: its uuid differs."""
    made.commit(**ADDED)
    stale = made.table()
    made.catalog.drop_table("lake.t")
    made.catalog.create_table("lake.t", SCHEMA)
    with pytest.raises(CommitConflict):
        commit(made, stale)
    assert snapshot_ids(made.table()) == []


def test_trying_again_after_a_conflict(made: MadeTable) -> None:
    """Looked at and planned again, the same change lands behind the other writer's, with the next sequence number."""
    made.commit(**ADDED)
    stale = made.table()
    made.commit(added_data_files=[data_file("theirs")])
    with pytest.raises(CommitConflict):
        commit(made, stale, added_data_files=[data_file("ours")])
    made.commit(added_data_files=[data_file("ours")])
    assert set(made.live()) == {"a", "theirs", "ours"}
    assert made.live()["ours"][2] == 3


# --- outcomes that are not what they seem ---

UNKNOWN = [
    CommitStateUnknownException("504"),
    ConnectionError("reset"),
    TimeoutError(),
    OSError("disk full"),
    ValueError(),
]


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
@pytest.mark.parametrize("creating", [True, False])
def test_an_error_after_the_commit_leaves_the_outcome_open(
    made: MadeTable, error: Exception, *, creating: bool
) -> None:
    """It did land: nothing may be cleaned up, and the marker is there to be found."""
    if not creating:
        made.commit(**ADDED)
    made.catalog.after = error
    with pytest.raises(CommitOutcomeUnknown, match="may or may not have landed") as caught:
        made.commit(added_data_files=[data_file("b")])
    assert type(error).__name__ in caught.value.message
    assert caught.value.__cause__ is error
    made.catalog.after = None
    assert made.table().snapshot_by_id(made.snapshots) is not None


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
def test_an_error_before_the_commit_leaves_the_outcome_open_too(made: MadeTable, error: Exception) -> None:
    """Nobody can tell the two apart from here; the table says that it did not land."""
    made.commit(**ADDED)
    made.catalog.before = error
    with pytest.raises(CommitOutcomeUnknown):
        made.commit(added_data_files=[data_file("b")])
    assert snapshot_ids(made.table()) == [1]


@pytest.mark.parametrize("creating", [True, False])
def test_a_conflict_with_ourselves_has_landed(made: MadeTable, *, creating: bool) -> None:
    """A catalog client that repeats its request is told of a conflict with its own first try: that is success."""
    if not creating:
        made.commit(**ADDED)
    made.catalog.after = TableAlreadyExistsError("again") if creating else CommitFailedException("again")
    made.commit(added_data_files=[data_file("b")])
    table = made.table()
    assert snapshot_ids(table)[-1] == made.snapshots
    assert "b" in made.live()


def test_a_refused_commit_leaves_the_table_alone(made: MadeTable) -> None:
    """The catalog refuses for a reason of its own: a conflict, with its words."""
    made.commit(**ADDED)
    location = made.table().metadata_location
    made.catalog.before = CommitFailedException("branch main was frozen")
    with pytest.raises(CommitConflict, match="branch main was frozen"):
        made.commit(added_data_files=[data_file("b")])
    assert made.table().metadata_location == location


# --- define ---


def test_defining_what_is_there_costs_nothing(made: MadeTable) -> None:
    """No commit, no metadata file."""
    made.commit(**ADDED)
    table = made.table()
    made.catalog.before = AssertionError("no commit is needed")
    assert made.target.define(table, made.definition, made.announced.extend) is table


def test_a_definition_changes_without_a_snapshot(made: MadeTable) -> None:
    """A version that only changes the schema or the properties shows in the table, not in its history."""
    made.commit(**ADDED)
    wider = Schema(*SCHEMA.fields, NestedField(3, "new", LongType()), schema_id=1)
    made.target.define(made.table(), Definition(wider, UNPARTITIONED, {"k": "v"}), made.announced.extend)
    table = made.table()
    assert (table.schema(), table.properties["k"], snapshot_ids(table)) == (wider, "v", [1])


def test_a_definition_loses_to_another_snapshot(made: MadeTable) -> None:
    """It was planned on a table that has moved on."""
    made.commit(**ADDED)
    stale = made.table()
    made.commit(added_data_files=[data_file("theirs")])
    with pytest.raises(CommitConflict):
        made.target.define(stale, Definition(SCHEMA, UNPARTITIONED, {"k": "v"}), made.announced.extend)
    assert "k" not in made.table().properties


# --- snapshots that are misread by another name mapping ---


@pytest.mark.parametrize("with_rows", [True, False])
def test_misread_snapshots_leave_with_the_new_definition(made: MadeTable, *, with_rows: bool) -> None:
    """In one and the same commit, the newest one as well where it has a successor; it is told."""
    for number in range(3):
        made.commit(added_data_files=[data_file(f"{number}")])
    table = made.table()
    before = len(table.metadata.metadata_log)
    misread = (1, 2, 3) if with_rows else (1, 2)
    made.definition = Definition(SCHEMA, UNPARTITIONED, {"k": "v"}, Misread(misread, ("part",)))
    with capture_logs() as logs:
        if with_rows:
            commit(made, table)
        else:
            made.target.define(table, made.definition, made.announced.extend)
    found = made.table()
    assert len(found.metadata.metadata_log) == before + 1
    assert (snapshot_ids(found), found.properties["k"]) == ([4] if with_rows else [3], "v")
    assert [(line["snapshot_ids"], line["columns"]) for line in logs] == [(misread, ("part",))]


@pytest.mark.parametrize("with_rows", [True, False])
def test_a_tag_that_moves_to_a_misread_snapshot_meanwhile(made: MadeTable, *, with_rows: bool) -> None:
    """It was on another one when the table was looked at: a conflict, and nothing has left."""
    for number in range(3):
        made.commit(added_data_files=[data_file(f"{number}")])
    made.table().manage_snapshots().create_tag(3, "audit").commit()
    stale = made.table()
    made.table().manage_snapshots().remove_tag("audit").commit()
    made.table().manage_snapshots().create_tag(1, "audit").commit()
    made.definition = Definition(SCHEMA, UNPARTITIONED, {"k": "v"}, Misread((1, 2), ("part",)))
    with capture_logs() as logs, pytest.raises(CommitConflict):
        if with_rows:
            commit(made, stale)
        else:
            made.target.define(stale, made.definition, made.announced.extend)
    assert (snapshot_ids(made.table()), logs) == ([1, 2, 3], [])


# --- a catalog that is away ---


def test_a_catalog_that_does_not_answer(made: MadeTable) -> None:
    """Looking and staging say who must be looked after; nothing can have happened."""

    def refuse() -> Any:
        raise ConnectionError("refused")

    target = Target("local", refuse, "lake.t", None, FixedClock())
    with pytest.raises(CatalogAway, match=r"the catalog local does not answer: ConnectionError: refused"):
        target.find_table()
    broken = OperationalError("SELECT secret", {"name": "t"}, sqlite3.OperationalError("unable to open database file"))
    made.commit(**ADDED)
    with pytest.raises(CommitOutcomeUnknown) as unknown, target._committing(made.table(), 2):
        raise broken
    assert unknown.value.message.endswith("may or may not have landed: OperationalError: unable to open database file")
    assert catalog_away("local", broken).message == (
        "the catalog local does not answer: OperationalError: unable to open database file"
    )
    with pytest.raises(CatalogAway, match="ConnectionError: refused"):
        target.stage(Definition(SCHEMA, UNPARTITIONED))


def test_a_snapshot_of_someone_else_has_no_marker(made: MadeTable) -> None:
    """The summary is the truth about our progress, and only ours has the keys."""
    made.commit(**ADDED)
    assert find_marker(made.table().current_snapshot()) is None
    assert find_marker(None) is None
    marker = Marker("t", 3, 5)
    folded = marker.to_summary(from_version=2, operation="A, B")
    assert folded["dvsync.delta.from-version"] == "2"
    assert "dvsync.delta.from-version" not in marker.to_summary(from_version=3)
