"""Catalog-managed tables by Spark: Delta's own catalog in memory, behind Delta's own client of Unity Catalog.

Spark finds such a table by its name only: that of its folder, in a database for the folder above.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa

from tests.kit.handmade import new_uuid
from tests.kit.unity import UnityTable
from tests.kit.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CATALOG = "spark_catalog"
FEATURE = "catalogManaged"
ID_PROPERTY = "io.unitycatalog.tableId"
PUBLISHED_MAX = "dvsync.published.max"
AUTO_COMPACT = {
    "spark.databricks.delta.autoCompact.enabled": "true",
    "spark.databricks.delta.autoCompact.minNumFiles": "2",
}
# One for the property, and one for the coordinator, which a table's creation needs, too.
_testing, _compiling = Lock(), Lock()


class ManagedTable:
    """The table in `folder`, whose name must be one of SQL. `latest` and `named` are what its catalog last said.

    `is_managed` says whether the catalog manages it, or whether its log alone is the table.
    """

    def __init__(self, writer: Writer, folder: Path) -> None:
        self.writer, self.folder = writer, folder
        self.table_id = str(new_uuid())
        self.is_managed = False
        self.latest = 0
        # The staged files of the ratified commits that the catalog has not forgotten yet, the oldest first.
        self.named: list[str] = []

    def create(self, columns: str, *properties: str, managed: bool = True) -> None:
        self.is_managed = managed
        features = [f"'delta.feature.{FEATURE}' = 'supported'"] if managed else []
        given = ", ".join([f"'{ID_PROPERTY}' = '{self.table_id}'", *features, *properties])
        self._do(create, f"CREATE TABLE {{t}} {columns} USING delta TBLPROPERTIES ({given})")

    def sql(self, *statements: str, published_max: int | None = None) -> None:
        """Run statements, in which `{t}` is the table. Their commits are published up to a version; None: all are.

        Unity lets ten commits wait. With the next, Delta publishes first, and tries for ever if it may not.
        """
        settings = {} if published_max is None else {PUBLISHED_MAX: str(published_max)}
        with self.writer.confs(settings):
            for statement in statements:
                self._do(run, statement)

    def upgrade(self) -> None:
        """Its commit is published, and unknown to the catalog: until the next one it says that 0 is the latest."""
        self.is_managed = True
        self._do(switch, True)

    def downgrade(self) -> None:
        """Its commit is the last one of the catalog."""
        self._do(switch, False)
        self.is_managed = False

    def publish(self) -> None:
        """All commits are published; the catalog does not learn of it before the next commit."""
        self._do(publish)

    def rows(self, version: int | None = None) -> pa.Table:
        """The rows as Delta reads them by way of the catalog, at its newest version or another one."""
        found: pa.Table = self.writer.do(read_rows, self.folder, version)
        return found

    def tell(self, table: UnityTable) -> None:
        """The server says what the catalog last said. Unity has no commits of external tables."""
        table.table_id = self.table_id
        table.table_type = "MANAGED" if self.is_managed else "EXTERNAL"
        table.tell(self.folder, self.latest, self.named)

    def _do(self, function: Any, *arguments: str | bool) -> None:
        said = self.writer.do(function, *arguments, self.folder, self.table_id)
        self.latest, self.named = said["latest"], said["named"]


def create(session: SparkSession, statement: str, folder: Path, table_id: str) -> dict[str, Any]:
    """Only to its own tests Delta lets catalogs other than Unity's connector make a catalog-managed table."""
    system = session._jvm.java.lang.System  # type: ignore[union-attr]
    with _testing:
        system.setProperty("spark.testing", "true")
        try:
            session.sql(statement.replace("{t}", name_of(session, folder)))
        finally:
            system.clearProperty("spark.testing")
    return said_by_catalog(session, folder, table_id)


def run(session: SparkSession, statement: str, folder: Path, table_id: str) -> dict[str, Any]:
    session.sql(statement.replace("{t}", name_of(session, folder)))
    return said_by_catalog(session, folder, table_id)


def switch(session: SparkSession, managed: bool, folder: Path, table_id: str) -> dict[str, Any]:
    """What Delta has no statement for yet: a commit that sets or drops the feature, as Delta's own helper makes it."""
    jvm: Any = session._jvm
    delta, table = jvm.org.apache.spark.sql.delta, table_of(session, folder)
    log = delta.DeltaLog.forTable(session._jsparkSession, table.get())
    transaction = log.startTransaction(table, jvm.scala.Option.empty())
    delta.coordinatedcommits.CatalogOwnedTableUtils.setTxnProtocol(transaction, managed)
    # Only this operation may take a feature away.
    drop = delta.DeltaOperations.DropTableFeature(FEATURE, False)
    upgrade = scala_object(delta, "DeltaOperations$ManualUpdate")
    no_actions = scala_object(jvm.scala.collection.immutable, "Nil")
    transaction.commit(no_actions, upgrade if managed else drop)
    return said_by_catalog(session, folder, table_id)


def publish(session: SparkSession, folder: Path, table_id: str) -> dict[str, Any]:
    jvm: Any = session._jvm
    table, no_options = table_of(session, folder), scala_object(jvm.scala.collection.immutable, "Map").empty()
    logs = jvm.org.apache.spark.sql.delta.DeltaLog
    snapshot = logs.forTableWithSnapshot(session._jsparkSession, table.get(), no_options)._2()
    snapshot.ensureCommitFilesBackfilled(table)
    return said_by_catalog(session, folder, table_id)


def table_of(session: SparkSession, folder: Path) -> Any:
    """What Spark's catalog knows of the table, as an `Option`."""
    jvm: Any = session._jvm
    some = jvm.scala.Option.apply
    database, name = (part.strip("`") for part in name_of(session, folder).split("."))
    identifier = jvm.org.apache.spark.sql.catalyst.TableIdentifier(name, some(database))
    return some(session._jsparkSession.sessionState().catalog().getTableMetadata(identifier))


def scala_object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def read_rows(session: SparkSession, folder: Path, version: int | None) -> pa.Table:
    at = "" if version is None else f" VERSION AS OF {version}"
    return session.sql(f"SELECT * FROM {name_of(session, folder)}{at}").toArrow()


def said_by_catalog(session: SparkSession, folder: Path, table_id: str) -> dict[str, Any]:
    jvm: Any = session._jvm
    log = jvm.org.apache.hadoop.fs.Path(f"file:{folder}/_delta_log")
    conf = jvm.java.util.HashMap()
    conf.put(ID_PROPERTY, table_id)
    table = jvm.io.delta.storage.commit.TableDescriptor(log, jvm.java.util.Optional.empty(), conf)
    said = coordinator(session).getCommits(table, None, None)
    named = [commit.getFileStatus().getPath().getName() for commit in said.getCommits()]
    return {"latest": said.getLatestTableVersion(), "named": named}


def name_of(session: SparkSession, folder: Path) -> str:
    """The table's name. Its folder is then a managed one, as Unity's are."""
    coordinator(session)
    database = f"d{uuid5(NAMESPACE_URL, str(folder.parent)).hex}"
    session.sql(f"CREATE DATABASE IF NOT EXISTS {database} LOCATION '{folder.parent}'")
    return f"{database}.`{folder.name}`"


def coordinator(session: SparkSession) -> Any:
    """`UnityCoordinator.java` as the catalog of all catalog-managed tables of this JVM."""
    jvm: Any = session._jvm
    builders = jvm.org.apache.spark.sql.delta.coordinatedcommits.CatalogOwnedCommitCoordinatorProvider
    with _compiling:
        if builders.getBuilder(SPARK_CATALOG).isEmpty():
            source = Path(__file__).with_name("UnityCoordinator.java")
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(session._jsparkSession.sharedState().jarClassLoader())
            compiler.cook(source.name, jvm.java.io.StringReader(source.read_text()))
            constructor = compiler.getClassLoader().loadClass("dvsync.UnityCoordinator").getConstructors()[0]
            gateway: Any = session.sparkContext._gateway
            builders.registerBuilder(SPARK_CATALOG, constructor.newInstance(gateway.new_array(jvm.java.lang.Object, 0)))
        return builders.getBuilder(SPARK_CATALOG).get()
