"""Iceberg tables in REST catalogs (Iceberg's own servlet, and Nessie), in SQL catalogs on PostgreSQL, in a Hive
Metastore and in Glue (moto).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from daemon.config.settings import MaintenanceSettings
from daemon.errors import CatalogAway, CommitConflict, CommitOutcomeUnknown, StateStoreAway, TargetChanged, Unsupported
from daemon.iceberg.pyiceberg_ext.format_v3 import next_row_id
from daemon.iceberg.pyiceberg_ext.variant import VariantType
from daemon.iceberg.target import Target
from daemon.maintenance.maintainer import Maintainer
from daemon.store.locations import canonical
from daemon.store.storage import FileIOStorage
from tests.kit.handmade import COLUMNS, FEATURES, Bench, HandmadeTable
from tests.kit.made import LaterClock
from tests.kit.metastores import Glue, update_table
from tests.kit.readers import READERS, assert_readers_agree
from tests.kit.servers import ObjectStore, Server, iceberg_servlet, nessie, postgresql
from tests.kit.spark_session import on_catalog

HOUR_S = 3_600.0
DAY_S = 86_400.0


@dataclass
class Served:
    """A running server and how to reach the catalog in it."""

    kind: str
    catalog: dict[str, str]
    server: Server | None = None
    state_url: str | None = None
    # PyIceberg's own client, where dvsync has another one.
    theirs: Callable[[], Catalog] | None = None


# A REST catalog and PostgreSQL are started for `make test`; what is the same for all is shown on PostgreSQL there.
NESSIE, HIVE, GLUE, SERVLET = (
    pytest.param(kind, marks=pytest.mark.long) for kind in ("nessie", "hive", "glue", "servlet")
)
ON_EACH = pytest.mark.parametrize("served", [SERVLET, NESSIE, HIVE, GLUE, "postgresql"], indirect=True)
ON_REST_AND_EACH = pytest.mark.parametrize("served", ["servlet", NESSIE, HIVE, GLUE, "postgresql"], indirect=True)
ON_SERVERS = pytest.mark.parametrize("served", ["servlet", NESSIE, "postgresql"], indirect=True)


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, s3_spark: SparkSession, store: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as running, pytest.MonkeyPatch.context() as patch:
        if request.param in ("hive", "glue"):
            patch.setattr("moto.glue.responses.GlueResponse.update_table", update_table)
            metastore = request.getfixturevalue("hive") if request.param == "hive" else Glue(store)
            yield Served(request.param, metastore.catalog(folder), theirs=lambda: metastore.theirs(folder))
            return
        if request.param == "servlet":
            server = running.enter_context(iceberg_servlet(folder))
            catalog = {"type": "rest", "uri": f"http://127.0.0.1:{server.port}/"}
        elif request.param == "nessie":
            # No key in the configuration: the server gives one for each table.
            server = running.enter_context(nessie(folder, store))
            catalog = {"type": "rest", "uri": f"http://127.0.0.1:{server.port}/iceberg/"}
        else:
            server = running.enter_context(postgresql())
            url = f"postgresql+psycopg://dvsync:hunter2@127.0.0.1:{server.port}/postgres"
            catalog = {"type": "sql", "uri": url, "warehouse": f"file://{folder}/warehouse", "pool_pre_ping": "true"}
            yield Served(request.param, catalog, server, url)
            return
        yield Served(request.param, catalog, server)


@dataclass
class Followed:
    """A Delta table, dvsync on it, and its Iceberg table in the catalog."""

    served: Served
    spark: SparkSession
    folder: Path
    name: str
    options: dict[str, Any]

    def __post_init__(self) -> None:
        self.clock = LaterClock()
        self.delta = HandmadeTable(self.folder / "t")
        self.delta.create()
        self.paths = [self.delta.write_file([(n, "p", f"v{n}") for n in range(k * 10, k * 10 + 10)]) for k in range(2)]
        self.delta.commit([self.delta.add(path) for path in self.paths])
        self.bench = Bench(
            self.folder / "bench",
            self.delta.location,
            target=f"lake.{self.name}",
            clock=self.clock,
            catalog=self.served.catalog,
            state_url=self.served.state_url,
            name=self.name,
            table_options=self.options,
        )

    def delete(self, *positions: int) -> None:
        self.delta.commit(self.delta.delete({path: positions for path in self.paths}))

    def sync(self) -> Any:
        result = self.bench.follower.sync()
        self.check()
        return result

    def check(self) -> Table:
        table = self.bench.iceberg()
        # Java spells local paths as DuckDB does not. Polars' own reader is told of one store, and here are two.
        without = "DuckDB" if self.served.kind in ("servlet", "hive") else "Polars native"
        passed_over = set() if self.served.kind == "postgresql" else {without}
        assert_readers_agree(table, self.spark, self.delta.live_rows(), without=passed_over)
        return table

    def append_as_other(self) -> None:
        rows = pa.table({"id": pa.array([999], pa.int64()), "part": ["x"], "value": ["foreign"]})
        # A SQL catalog's tables go by the catalog's name, too.
        theirs = self.served.theirs or partial(load_catalog, "local", **self.served.catalog)
        with closing(theirs()) as other:
            other.load_table(self.bench.target).append(rows)


@pytest.fixture
def followed(
    request: pytest.FixtureRequest, served: Served, s3_spark: SparkSession, tmp_path: Path
) -> Iterator[Followed]:
    made = Followed(served, s3_spark, tmp_path, f"t{abs(hash(tmp_path))}", getattr(request, "param", {}))
    yield made
    made.bench.close()


@ON_EACH
@pytest.mark.parametrize("followed", [{"format_version": 3}], indirect=True)
def test_format_version_3(followed):
    """Made by the first sync; deletions that grow and shrink; row ids go on, whoever writes the metadata."""
    if followed.served.kind == "nessie":
        # The day this fails, Nessie knows version 3.
        with pytest.raises(Unsupported, match=r"refused a commit of format version 3: .*spec version 3"):
            followed.sync()
        return
    followed.sync()
    followed.delete(1)
    followed.sync()
    followed.delete(2)
    followed.sync()
    followed.delta.commit(
        [
            action
            for path in followed.paths
            for action in (followed.delta.remove(path), followed.delta.add(path, deleted=[2]))
        ],
        operation="RESTORE",
    )
    followed.sync()
    table = followed.check()
    assert table.metadata.format_version == 3
    snapshots = table.metadata.snapshots
    ends = [(each.first_row_id or 0) + (each.added_rows or 0) for each in snapshots]
    assert all(after.first_row_id >= end for after, end in zip(snapshots[1:], ends, strict=False))
    assert next_row_id(table.metadata) == ends[-1] >= 20


@pytest.mark.parametrize("served", ["servlet"], indirect=True)
@pytest.mark.parametrize("followed", [{"format_version": 3, "readers": ["spark", "duckdb"]}], indirect=True)
def test_variants(followed):
    """Iceberg's own server takes schemas with them and gives them back, to us and to Spark."""
    followed.sync()
    columns = (*COLUMNS, ("v", "variant"), ("l", {"type": "array", "elementType": "variant", "containsNull": True}))
    features = followed.delta.protocol([*FEATURES, "variantType"])
    followed.delta.commit([{"protocol": features}, {"metaData": followed.delta.metadata(columns)}])
    followed.bench.follower.sync()
    followed.delete(1)
    followed.bench.follower.sync()
    with closing(load_catalog("another", **followed.served.catalog)) as other:
        table = other.load_table(followed.bench.target)
    assert [table.schema().find_type(name) for name in ("v", "l.element")] == [VariantType()] * 2
    rows = [(*row, None, None) for row in followed.delta.live_rows()]
    assert_readers_agree(table, followed.spark, rows, without=READERS.keys() - {"Spark"})


@ON_REST_AND_EACH
def test_life_of_a_table(followed, monkeypatch):
    """First sync, deletes, compaction, expiry and cleanup; then the state database is lost."""
    assert followed.sync().operation == "first sync"
    for position in range(4):
        followed.delete(position)
        assert followed.sync().positions_added == 2
    monkeypatch.setattr("daemon.maintenance.compaction.DELETE_FILES_MAX", 1)
    settings = followed.bench.context.settings.model_copy(
        update={"maintenance": MaintenanceSettings(snapshots_max=1, orphan_grace="1h")}
    )
    object.__setattr__(followed.bench.context, "settings", settings)
    maintainer = Maintainer(followed.bench.context)
    maintainer.compact(Event())
    assert len(_live_deletes(followed.check())) == 2
    maintainer.expire()
    assert len(followed.check().metadata.snapshots) == 1
    # Nessie shows one snapshot at a time: there is nothing to expire, and the grace period begins with this.
    assert not maintainer.clean_up(Event()).removed
    followed.clock.late_s = DAY_S
    done = maintainer.clean_up(Event())
    assert done.removed and not done.failed
    table = followed.check()
    io = FileIOStorage(followed.bench.context.target_properties(table))
    kept = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    assert [path for path in kept if not io.exists(path)] == []
    _check_scan(followed, table, io)
    followed.clock.late_s = 0.0
    _check_lost_state(followed, table)


@ON_EACH
@pytest.mark.parametrize("followed", [{"tag_every": 2, "tag_retention": "1h", "version_hint": True}], indirect=True)
def test_tags_for_chosen_versions(followed):
    """The commit of the snapshot sets the tag, expiry keeps and then removes it; on Nessie there are none."""
    followed.sync()
    for position in range(3):
        followed.delete(position)
        followed.sync()
    assert _is_hinted(followed.bench.iceberg()), "a server, too, writes metadata files into the table's folder"
    if followed.served.kind == "nessie":
        assert set(followed.check().metadata.refs) == {"main"}
        return
    assert set(followed.check().metadata.refs) == {"main", "delta-v2", "delta-v4"}
    settings = followed.bench.context.settings.model_copy(update={"maintenance": MaintenanceSettings(snapshots_max=1)})
    object.__setattr__(followed.bench.context, "settings", settings)
    maintainer = Maintainer(followed.bench.context)
    tagged = followed.bench.iceberg().metadata.refs["delta-v2"].snapshot_id
    assert maintainer.expire().tags == ()
    assert len(followed.check().scan(snapshot_id=tagged).to_arrow()) == 18
    followed.clock.late_s = 2 * HOUR_S
    done = Maintainer(followed.bench.context).expire()
    assert (done.expired, set(done.tags)) == ((tagged,), {"delta-v2", "delta-v4"})
    assert set(followed.check().metadata.refs) == {"main"}


@ON_EACH
def test_another_type_of_a_column(followed):
    """Snapshots that would show it as null leave with the commit that makes it so; where these are shown at all."""
    followed.sync()
    followed.delete(0)
    followed.sync()
    before = {snapshot.snapshot_id for snapshot in followed.bench.iceberg().snapshots()}
    columns = (("id", "long"), ("part", "string"), ("value", "long"))
    followed.delta.overwrite(columns, {"id": 7, "part": "q", "value": 70})
    assert followed.sync().snapshots == 1
    assert before.isdisjoint(snapshot.snapshot_id for snapshot in followed.bench.iceberg().snapshots())
    followed.delta.commit(followed.delta.delete({path: [0] for path in followed.delta.live}))
    followed.sync()


def _is_hinted(table: Table) -> bool:
    with table.io.new_input(f"{table.metadata.location}/metadata/version-hint.text").open() as file:
        return table.metadata_location.endswith(f"/{file.read().decode()}.metadata.json")


def _live_deletes(table: Table) -> set[str]:
    return {task["file_path"] for task in table.inspect.delete_files().to_pylist()}


def _check_scan(followed: Followed, table: Table, io: FileIOStorage) -> None:
    """What the server of a REST catalog wrote is not taken for litter, whatever it is kept for."""
    folder = f"{table.location()}/metadata"
    server_s = f"{folder}/00077-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee.metadata.json"
    with table.io.new_output(server_s).create() as stream:
        stream.write(b"{}")
    done = Maintainer(followed.bench.context).clean_up(Event(), scan=True, remove_found=True)
    is_rest = followed.served.catalog["type"] == "rest"
    assert [file.path for file in done.found] == ([] if is_rest else [canonical(server_s)])
    assert io.exists(server_s) == is_rest


def _check_lost_state(followed: Followed, table: Table) -> None:
    store = followed.bench.store
    if followed.served.state_url is None:
        followed.bench.close()
        followed.bench.state_file.unlink()
        followed.bench.open()
    else:
        # Any other name is a table of which nothing is known.
        followed.bench.name = f"{followed.bench.name}-again"
        followed.bench.reopen()
    assert followed.bench.store is not store
    result = followed.sync()
    assert result.snapshots == 0
    assert followed.bench.iceberg().metadata.current_snapshot_id == table.metadata.current_snapshot_id
    followed.delete(7)
    assert followed.sync().positions_added == 2


@pytest.mark.parametrize("served", [HIVE], indirect=True)
@pytest.mark.parametrize("followed", [{"format_version": 2}, {"format_version": 3}], indirect=True)
def test_spark_in_a_metastore(followed):
    """It reads the table by its own client of the metastore, and changes it; dvsync sees that, and goes on after it."""
    name, served = f"local.lake.{followed.name}", followed.served.catalog
    properties = {"type": "hive", "uri": served["uri"].split(", ")[1], "warehouse": served["warehouse"]}
    sql = on_catalog(followed.spark, followed.folder, properties).sql
    for position in range(3):
        followed.delete(position)
        followed.sync()
        assert sorted(map(tuple, sql(f"SELECT * FROM {name}").collect())) == followed.delta.live_rows()
    sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('theirs' = 'kept')")
    followed.delete(3)
    followed.sync()
    sql(f"DELETE FROM {name} WHERE id = 15")
    followed.delete(4)
    with pytest.raises(TargetChanged, match="was changed by someone else"):
        followed.bench.follower.sync()
    assert followed.bench.follower.sync(full=True).operation == "resync"
    assert followed.check().properties["theirs"] == "kept"
    assert sorted(map(tuple, sql(f"SELECT * FROM {name}").collect())) == followed.delta.live_rows()


@ON_EACH
def test_a_foreign_commit_is_told(followed):
    """Somebody else's rows park the table; a full sync brings back Delta's."""
    followed.sync()
    followed.append_as_other()
    followed.delete(1)
    with pytest.raises(TargetChanged, match="was changed by someone else"):
        followed.bench.follower.sync()
    assert followed.bench.follower.sync(full=True).operation == "resync"
    followed.check()


@ON_EACH
@pytest.mark.parametrize("followed", [{"on_foreign_commit": "overwrite"}], indirect=True)
def test_another_client_is_first(followed, monkeypatch):
    """A commit between our look at the table and our commit is met by the catalog's requirements, not by luck."""
    followed.sync()
    followed.delete(1)
    inner = Target.commit

    def commit(*args: Any, **options: Any) -> Any:
        followed.append_as_other()
        return inner(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Target, "commit", commit)
        with pytest.raises(CommitConflict, match="another writer committed"):
            followed.bench.follower.sync()
    assert followed.bench.iceberg().scan().to_arrow().num_rows == 21
    assert followed.sync().snapshots == 1


@ON_EACH
def test_a_server_that_denies_a_table_for_a_moment(followed):
    """As one of several servers that is behind: the table is not made a second time, and goes on."""
    followed.sync()
    followed.delete(1)
    catalog = followed.bench.catalogs.open("local")
    catalog.rename_table(followed.bench.target, f"{followed.bench.target}_hidden")
    for _ in range(2):
        with pytest.raises(CatalogAway, match=f"has no table {followed.bench.target}, but version 1 was synced"):
            followed.bench.follower.sync()
        assert not catalog.table_exists(followed.bench.target)
    catalog.rename_table(f"{followed.bench.target}_hidden", followed.bench.target)
    assert followed.sync().positions_added == 2


@ON_SERVERS
def test_a_server_that_is_killed(followed, monkeypatch):
    """Before a cycle the catalog is away; in the middle of a commit its outcome is unknown; then all goes on."""
    followed.sync()
    followed.delete(1)
    server = followed.served.server
    server.kill()
    away = StateStoreAway if followed.served.state_url else CatalogAway
    try:
        with pytest.raises(away) as raised:
            followed.bench.follower.sync()
        assert "hunter2" not in str(raised.value)
    finally:
        server.start()
    assert followed.sync().positions_added == 2
    followed.delete(2)
    inner = Target.commit

    def commit(*args: Any, **options: Any) -> Any:
        server.kill()
        return inner(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Target, "commit", commit)
        try:
            with pytest.raises((CommitOutcomeUnknown, StateStoreAway)) as raised:
                followed.bench.follower.sync()
            assert "hunter2" not in str(raised.value)
        finally:
            server.start()
    followed.sync()
    snapshots = [each for each in followed.bench.iceberg().snapshots() if each.summary]
    versions = [each.summary["dvsync.delta.version"] for each in snapshots]
    assert versions[-1] == "3"
    assert len(set(versions)) == len(versions)
