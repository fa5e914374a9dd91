"""Iceberg tables in a Hive Metastore (Spark's own, 2.3.10, and 4.0.1) and in AWS Glue (moto). `test_catalogs.py` has
all readers.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.table import Table

from daemon.errors import CatalogAway, CommitConflict, CommitOutcomeUnknown, TargetChanged, Unsupported
from tests.kit.daemons import command, daemon, set_constants, write_config
from tests.kit.handmade import COLUMNS, FEATURES, Bench, HandmadeTable
from tests.kit.metastores import Between, Entry, Glue, Hive, between

HIVE, HIVE_4 = (pytest.param(each, marks=pytest.mark.long) for each in ("hive", "hive4"))
ON_HIVE = pytest.mark.parametrize("metastore", ["hive", HIVE_4], indirect=True)
ON_GLUE = pytest.mark.parametrize("metastore", ["glue", HIVE, HIVE_4], indirect=True)
# One of each in `make test`.
ON_EACH = pytest.mark.parametrize(
    ("metastore", "version"),
    [
        ("hive", 2),
        ("glue", 3),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("hive", 3), ("glue", 2), ("hive4", 2))),
    ],
    indirect=["metastore"],
)
LOCAL = {"poll_interval": "100ms", "engine": "local"}
# What makes and what changes a table: in Glue's protocol, and in the metastore's.
REQUESTS = {"create": (b"AWSGlue.CreateTable", b"create_table"), "change": (b"AWSGlue.UpdateTable", b"alter_table")}
SET_BACK = "daemon.iceberg.pyiceberg_ext.hive.LOCK_DEAD_MS"


@dataclass
class World:
    """A Delta table, and `schema.orders` in a metastore. Users write these names in another case."""

    metastore: Any
    folder: Path
    schema: str
    benches: list[Bench] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.target = f"{self.schema.title()}.Orders"
        self.name = (self.schema, "orders")
        self.delta = made(self.folder / "lake" / "t")
        # PyIceberg's own client.
        self.theirs = self.metastore.theirs(self.folder)

    @property
    def catalog(self) -> dict[str, str]:
        return dict(self.metastore.catalog(self.folder))

    def bench(self, name: str = "b", target: str | None = None, **options: Any) -> Bench:
        """dvsync in this process."""
        place, wanted = self.folder / name, target or self.target
        found = Bench(place, self.delta.location, target=wanted, catalog=self.catalog, table_options=options)
        self.benches.append(found)
        return found

    def configure(self, **sections: Any) -> Path:
        """The configuration of a daemon."""
        table = {"name": "t", "source": "lake/t", "target": self.target}
        path, told = self.folder / "config.yaml", {"catalogs": {"local": self.catalog}, "tables": [table]}
        write_config(path, **{**told, "defaults": LOCAL, **sections})
        return path

    def delete_one(self) -> None:
        delete_one(self.delta)

    def table(self) -> Table:
        """What somebody else finds."""
        found: Table = self.theirs.load_table(self.name)
        return found

    def is_shown(self) -> bool:
        return rows_of(self.table()) == self.delta.live_rows()

    def set_property(self) -> None:
        """As somebody else."""
        with self.table().transaction() as transaction:
            transaction.set_properties(theirs="kept")

    @contextmanager
    def losing(self, bench: Bench) -> Iterator[Between]:
        """Meanwhile, something between the metastore and the bench may lose answers."""
        with between(self.metastore.port) as found:
            for port in (found.port, None):
                bench.close()
                bench.catalog = self.metastore.catalog(self.folder, port)
                bench.open()
                if port:
                    yield found


@pytest.fixture
def world(metastore: Hive | Glue, tmp_path: Path) -> Iterator[World]:
    found = World(metastore, tmp_path, f"sales_{uuid4().hex[:8]}")
    yield found
    for each in found.benches:
        each.close()


def made(folder: Path) -> HandmadeTable:
    table = HandmadeTable(folder)
    table.create()
    path = table.write_file([(number, "a", f"v{number}") for number in range(9)])
    table.commit([table.add(path, deleted=[0])])
    return table


def delete_one(delta: HandmadeTable) -> None:
    delta.commit(delta.delete({path: [len(delta.deleted[path])] for path in delta.live}))


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    found = table.scan().to_arrow().to_pylist()
    return sorted((row["id"], row["part"], row.get("value", "")) for row in found)


@ON_EACH
def test_a_life(world: World, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `dvsync run`: made in a namespace that is missing; columns change, move and go; what others set stays;
    others drop and rename the table; it is compacted and expired.
    """
    constants = {"daemon.sync.patience.OLDER_STATE_MIN_S": 0.0, "daemon.maintenance.compaction.DELETE_FILES_MAX": 1}
    set_constants(monkeypatch, constants)
    config = world.configure(
        defaults={**LOCAL, "format_version": version}, maintenance={"steps": [], "snapshots_max": 1}
    )
    delta, metastore, name = world.delta, world.metastore, world.name
    with daemon(config) as running:

        def shown() -> Table:
            running.synced_to("t", delta.version)
            found = world.table()
            assert (found.metadata.format_version, rows_of(found)) == (version, delta.live_rows())
            assert list(metastore.columns(*name)) == [each.name for each in found.schema().fields]
            return found

        assert shown().location().endswith(f"/{world.schema}.db/orders")
        metastore.say_something(*name)
        world.delete_one()
        shown()
        delta.overwrite((("value", "long"), ("part", "string"), ("id", "long")), {"id": 1, "part": "q", "value": 7})
        shown()
        delta.overwrite((("part", "string"), ("id", "long")), {"id": 1, "part": "q"})
        shown()
        assert metastore.said(*name) == ("kept", "them")
        parameters = metastore.parameters(*name)
        assert parameters["previous_metadata_location"]
        # Of another state.
        assert not parameters.keys() & {"numRows", "current-snapshot-id"}
        metastore.drop(*name)
        delta.overwrite(COLUMNS, {"id": 2, "part": "q", "value": "w"})
        again = shown()
        metastore.rename(*name, "moved")
        delta.commit([delta.add(delta.write_file([(number, "z", "w") for number in range(9)]))])
        assert shown().metadata.table_uuid != again.metadata.table_uuid
        for _ in range(2):
            delta.commit(delta.delete({path: [len(delta.deleted[path])] for path in list(delta.live)[1:]}))
            before = shown()
    for step in ("compact", "expire"):
        done = command(config, step)
        assert done.returncode == 0, done.stderr
    assert (len(before.metadata.snapshots), len(world.table().metadata.snapshots)) == (3, 1)
    assert world.is_shown()


@ON_GLUE
def test_another_client_is_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg's own client sets a property while dvsync commits: in the end both commits are there."""
    bench = world.bench()
    bench.sync()
    world.delete_one()
    with monkeypatch.context() as patch:
        before_the_request(bench, patch, world.set_property)
        with pytest.raises(CommitConflict, match="another writer committed to Sales_"):
            bench.sync()
    assert len(world.table().metadata.snapshots) == 1
    assert bench.sync().snapshots == 1
    assert world.table().properties["theirs"] == "kept" and world.is_shown()


def before_the_request(bench: Bench, patch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """It happens after dvsync has looked at the table and written its metadata file."""
    catalog: Any = bench.catalogs.open("local")
    write = catalog._write_metadata

    def write_metadata(*arguments: Any, **named: Any) -> None:
        write(*arguments, **named)
        happens()

    patch.setattr(catalog, "_write_metadata", write_metadata)


def under_the_lock(world: World, bench: Bench, patch: pytest.MonkeyPatch, happens: Callable[[int], None]) -> None:
    """It happens, with each lock, after dvsync has looked at the table that it has locked."""
    catalog: Any = bench.catalogs.open("local")
    find = catalog._get_hive_table

    def get_hive_table(*arguments: Any) -> Any:
        table = find(*arguments)
        for lock in world.metastore.locks(world.schema):
            happens(lock)
        return table

    patch.setattr(catalog, "_get_hive_table", get_hive_table)


@pytest.mark.parametrize("step", [pytest.param("create", marks=pytest.mark.long), "change"])
def test_a_lost_answer(world: World, step: str) -> None:
    """The metastore does what it is asked, and the connection breaks: nothing is done twice, and no lock stays."""
    is_hive, bench = isinstance(world.metastore, Hive), world.bench()
    if step == "change":
        bench.sync()
        world.delete_one()
    with world.losing(bench) as lost:
        lost.lose(REQUESTS[step][is_hive])
        if is_hive:
            with pytest.raises(CommitOutcomeUnknown, match="may or may not have landed"):
                bench.sync()
        else:
            # boto3 asks again, and Glue says that somebody was first: this very commit.
            bench.sync()
        assert lost.met.is_set() and world.is_shown()
        snapshots = world.table().metadata.snapshots
        bench.sync()
        assert world.table().metadata.snapshots == snapshots
        world.delete_one()
        assert bench.sync().snapshots == 1
    assert world.is_shown()
    assert not is_hive or world.metastore.locks(world.schema) == []


@ON_HIVE
def test_locks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of somebody else is waited for, and named; one that a dvsync left behind is removed after a while."""
    bench, metastore = world.bench(), world.metastore
    bench.sync()
    world.delete_one()
    lock = metastore.lock(*world.name, "Iceberg-1")
    for _ in range(2):
        with pytest.raises(CommitConflict, match=rf"locked for them on elsewhere \(lock {lock}\) "):
            bench.sync()
    assert metastore.locks(world.schema) == [lock]
    metastore.unlock(lock)
    assert bench.sync().snapshots == 1
    world.delete_one()
    lock = metastore.lock(*world.name, "dvsync-1")
    with pytest.raises(CommitConflict, match="locked for them"):
        bench.sync()
    monkeypatch.setattr(SET_BACK, -1)
    assert bench.sync().snapshots == 1
    assert metastore.locks(world.schema) == [] and world.is_shown()


@ON_HIVE
def test_an_address_that_is_silent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first request waits for it."""
    wait_s = 1.0
    monkeypatch.setattr("daemon.iceberg.pyiceberg_ext.silence.CONNECT_MAX_S", wait_s)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, socket.socket() as waiting:
        # It takes no more connections than this one.
        waiting.connect(silent.getsockname())
        bench = world.bench()
        bench.close()
        bench.catalog["uri"] = f"thrift://127.0.0.1:{silent.getsockname()[1]}, {world.metastore.uri}"
        bench.open()
        began_s = monotonic()
        bench.sync()
        # It makes six requests.
        assert wait_s < monotonic() - began_s < 5 * wait_s
    assert world.is_shown()


@pytest.mark.long
@ON_HIVE
def test_without_the_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is removed under a process that stands still: the metastore compares the metadata file."""
    bench = world.bench()
    bench.sync()
    world.delete_one()

    def happens(lock: int) -> None:
        world.metastore.unlock(lock)
        world.set_property()

    with monkeypatch.context() as patch:
        under_the_lock(world, bench, patch, happens)
        with pytest.raises(CommitConflict, match="The table has been modified"):
            bench.sync()
    assert bench.sync().snapshots == 1
    assert world.table().properties["theirs"] == "kept" and world.is_shown()


@ON_HIVE
def test_dropped_under_the_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hive's DROP TABLE waits for no lock: the table is made again, as if it had been dropped before."""
    bench = world.bench()
    bench.sync()
    world.delete_one()
    with monkeypatch.context() as patch:
        under_the_lock(world, bench, patch, lambda _lock: world.metastore.drop(*world.name))
        with pytest.raises(CommitConflict, match="it was dropped: "):
            bench.sync()
    with pytest.raises(CatalogAway, match="has no table"):
        bench.sync()
    with monkeypatch.context() as patch:
        other = world.bench("d", f"{world.schema}_d.new")
        before_the_request(other, patch, lambda: world.metastore.drop_schema(f"{world.schema}_d"))
        with pytest.raises(CommitConflict, match="it was dropped: "):
            other.sync()
    assert other.sync().operation == "first sync"


@ON_GLUE
def test_a_name_that_is_taken(world: World) -> None:
    """By a table or view that is not Iceberg's: the table is parked, and nothing is replaced."""
    metastore, (schema, name), location = world.metastore, world.name, world.delta.location
    bench = world.bench()
    metastore.add_schema(schema)
    for entry in (
        Entry(name, location),
        Entry(name, location, parameters={"table_type": "DELTA"}),
        Entry(name, location, parameters={}, kind="VIRTUAL_VIEW"),
    ):
        metastore.add(schema, entry)
        for full in (False, True):
            with pytest.raises(TargetChanged, match=f"{schema}.orders in the catalog local is not an Iceberg table"):
                bench.sync(full=full)
        metastore.drop(schema, name)
    assert bench.sync().snapshots == 1


@ON_GLUE
def test_names_that_cannot_be(world: World) -> None:
    """Two targets that differ by case, and namespaces in namespaces, are refused before anything is asked."""
    targets = (world.target, f"{world.schema}.orders", "a.b.c")
    tables = [{"name": f"t{number}", "source": "lake/t", "target": target} for number, target in enumerate(targets)]
    catalog = {**world.catalog, "uri": "thrift://127.0.0.1:1", "glue.endpoint": "http://127.0.0.1:1"}
    done = command(world.configure(catalogs={"local": catalog}, tables=tables), "config", "check")
    assert done.returncode == 2
    assert f"tables[1].target: {targets[1]} is already the target of tables[0]" in done.stderr
    assert "tables[2].target: Hive and Glue have one level of namespaces" in done.stderr


@pytest.mark.long
def test_what_a_metastore_cannot_have(world: World) -> None:
    """Variants, long types, texts and properties are in Iceberg's metadata, and shortened or left out beside it; a name
    that is refused parks the table.
    """
    delta, metastore = world.delta, world.metastore
    deep = {"type": "struct", "fields": [column(f"column_{number:03}", "integer") for number in range(400)]}
    columns = [column("id", "long"), column("part", "string"), column("value", "string")]
    columns[1]["metadata"]["comment"] = text = "a text\n" * 100
    columns += [column("v", "variant"), column("deep", deep)]
    metadata = {**delta.metadata(), "schemaString": json.dumps({"type": "struct", "fields": columns})}
    delta.commit([{"protocol": delta.protocol([*FEATURES, "variantType"])}, {"metaData": metadata}])
    options = {"format_version": 3, "readers": ["spark", "duckdb"]}
    bench = world.bench(**options)
    bench.sync()
    world.delete_one()
    assert bench.sync().snapshots == 1
    found = bench.iceberg()
    assert (found.schema().find_field("part").doc, len(found.schema().find_type("deep").fields)) == (text, 400)
    assert len(found.properties["schema.name-mapping.default"]) > 4000
    kept = metastore.columns(*world.name)
    assert list(kept) == ["id", "part", "value", "v", "deep"]
    if isinstance(metastore, Hive):
        assert (kept["v"], kept["deep"]) == ("binary", "binary")
        with pytest.raises(Unsupported, match="the metastore refuses the table"):
            world.bench("c", f"{world.schema}.größe", **options).sync()


def column(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


@pytest.mark.long
@ON_HIVE
def test_a_kill_under_the_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process removes the lock that the killed one held, and commits."""
    set_constants(monkeypatch, {SET_BACK: 500})
    metastore = world.metastore
    with between(metastore.port) as kept:
        config = world.configure(catalogs={"local": metastore.catalog(world.folder, kept.port)})
        with daemon(config) as running:
            running.synced_to("t", world.delta.version)
            kept.lose(b"alter_table", holds=True)
            world.delete_one()
            assert kept.met.wait(60)
        assert len(metastore.locks(world.schema)) == 1
        with daemon(config) as running:
            running.synced_to("t", world.delta.version)
    assert metastore.locks(world.schema) == [] and world.is_shown()


@pytest.mark.long
def test_many_tables_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one catalog, by many threads."""
    set_constants(monkeypatch, {"daemon.iceberg.pyiceberg_ext.silence.ANSWER_MAX_S": 60.0})
    tables = {f"t{number}": made(world.folder / "lake" / f"n{number}") for number in range(12)}
    entries = [{"name": name, "source": f"lake/n{name[1:]}", "target": f"{world.schema}.{name}"} for name in tables]
    with daemon(world.configure(tables=entries, limits={"tables_at_once": 12})) as running:
        for _ in range(4):
            for name, table in tables.items():
                running.synced_to(name, table.version)
            writers = [Thread(target=delete_one, args=(table,)) for table in tables.values()]
            for each in writers:
                each.start()
            for each in writers:
                each.join()
        for name, table in tables.items():
            running.synced_to(name, table.version)
            found = world.theirs.load_table((world.schema, name))
            assert (rows_of(found), len(found.metadata.snapshots)) == (table.live_rows(), 5)
        assert not [line for line in running.lines if line["event"] == "sync.failed"]
