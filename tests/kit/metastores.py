"""A Hive Metastore and Glue, changed as others change them: by the metastore's protocol, by boto3, and by PyIceberg's
own clients. And what comes between them and dvsync.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from types import MappingProxyType
from typing import Any, NamedTuple

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    Database,
    FieldSchema,
    GetTableRequest,
    LockComponent,
    LockLevel,
    LockRequest,
    LockState,
    LockType,
    SerDeInfo,
    ShowLocksRequest,
    StorageDescriptor,
    Table,
    UnlockRequest,
)
from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.hive import HiveCatalog
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from tests.kit.servers import ObjectStore

DELTA = MappingProxyType({"spark.sql.sources.provider": "delta"})
SEQUENCE_FILE = "org.apache.hadoop.mapred.SequenceFileInputFormat"


class Entry(NamedTuple):
    """What a metastore has of a table. `path` is of the serde."""

    name: str
    location: str
    path: str | None = None
    parameters: Mapping[str, str] = DELTA
    input_format: str = SEQUENCE_FILE
    kind: str = "EXTERNAL_TABLE"


class _HiveCatalog(HiveCatalog):
    def _get_hive_table(self, open_client: Client, database_name: str, table_name: str) -> Table:
        # PyIceberg 0.12 asks for what Hive 4.0.1 no longer has.
        return open_client.get_table_req(GetTableRequest(database_name, table_name)).table


class Hive:
    """A Hive Metastore, changed by its own protocol."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.uri = f"thrift://127.0.0.1:{port}"
        # The first address does not answer.
        self.source = {"type": "hive", "uri": f"thrift://127.0.0.1:1, {self.uri}"}

    def _do(self, change: Callable[[Client], Any]) -> Any:
        with closing(TBufferedTransport(TSocket("127.0.0.1", self.port))) as transport:
            transport.open()
            return change(Client(TBinaryProtocol(transport)))

    def add_schema(self, name: str) -> None:
        self._do(lambda client: client.create_database(Database(name=name, locationUri=f"file:///tmp/{name}")))

    def drop_schema(self, name: str) -> None:
        self._do(lambda client: client.drop_database(name, deleteData=False, cascade=True))

    def add(self, schema: str, entry: Entry) -> None:
        serde = SerDeInfo(parameters={"path": entry.path} if entry.path else {}, serializationLib="lazy")
        columns = [FieldSchema("col", "array<string>", "from deserializer")]
        storage = StorageDescriptor(columns, entry.location, entry.input_format, serdeInfo=serde, parameters={})
        storage.sortCols = storage.bucketCols = []
        table = Table(entry.name, schema, "spark", sd=storage, partitionKeys=[], parameters={**entry.parameters})
        table.tableType = entry.kind
        self._do(lambda client: client.create_table(table))

    def _get(self, schema: str, name: str) -> Table:
        return self._do(lambda client: client.get_table_req(GetTableRequest(schema, name)).table)

    def rename(self, schema: str, name: str, new_name: str) -> None:
        table = self._get(schema, name)
        table.tableName = new_name
        self._do(lambda client: client.alter_table(schema, name, table))

    def drop(self, schema: str, name: str) -> None:
        self._do(lambda client: client.drop_table(schema, name, False))

    def catalog(self, folder: Path, port: int | None = None) -> dict[str, str]:
        """The properties of it as a catalog of Iceberg tables; `port` is that of what is between."""
        uri = f"thrift://127.0.0.1:1, thrift://127.0.0.1:{port or self.port}"
        # Not to wait for locks as long as PyIceberg does.
        waits = {"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.05", "lock-check-retries": "2"}
        return {"type": "hive", "uri": uri, "warehouse": f"file://{folder}/warehouse", **waits}

    def theirs(self, folder: Path) -> MetastoreCatalog:
        """PyIceberg's own client."""
        return _HiveCatalog("theirs", **{**self.catalog(folder), "uri": self.uri})

    def parameters(self, schema: str, name: str) -> dict[str, str]:
        return dict(self._get(schema, name).parameters)

    def columns(self, schema: str, name: str) -> dict[str, str]:
        columns = self._get(schema, name).sd.cols
        return {each.name: each.type for each in columns}

    def say_something(self, schema: str, name: str) -> None:
        """Set what only others set: a parameter, the owner, and how many rows there are."""
        table = self._get(schema, name)
        table.parameters |= {"theirs": "kept", "numRows": "7", "current-snapshot-id": "7"}
        table.owner = "them"
        self._do(lambda client: client.alter_table(schema, name, table))

    def said(self, schema: str, name: str) -> tuple[str | None, str | None]:
        table = self._get(schema, name)
        return table.parameters.get("theirs"), table.owner

    def lock(self, schema: str, name: str, agent: str) -> int:
        """Lock a table as a writer does; returns the lock."""
        component = LockComponent(type=LockType.EXCLUSIVE, level=LockLevel.TABLE, dbname=schema, tablename=name)
        request = LockRequest([component], user="them", hostname="elsewhere", agentInfo=agent)
        answer = self._do(lambda client: client.lock(request))
        assert answer.state == LockState.ACQUIRED
        return int(answer.lockid)

    def unlock(self, lock: int) -> None:
        self._do(lambda client: client.unlock(UnlockRequest(lock)))

    def locks(self, schema: str) -> list[int]:
        found = self._do(lambda client: client.show_locks(ShowLocksRequest(dbname=schema))).locks
        return [each.lockid for each in found or ()]


class Glue:
    """Glue by moto."""

    def __init__(self, store: ObjectStore) -> None:
        self.store, self.port = store, store.port
        self.client = store.client("glue")
        self.source = {
            "type": "glue",
            "glue.endpoint": store.url,
            "glue.region": "us-east-1",
            "glue.access-key-id": store.access_key,
            "glue.secret-access-key": store.secret,
        }

    def add_schema(self, name: str) -> None:
        self.client.create_database(DatabaseInput={"Name": name})

    def add(self, schema: str, entry: Entry) -> None:
        serde = {"Parameters": {"path": entry.path}} if entry.path else {}
        storage = {"Location": entry.location, "InputFormat": entry.input_format, "SerdeInfo": serde}
        made = {"Name": entry.name, "TableType": entry.kind, "Parameters": {**entry.parameters}}
        self.client.create_table(DatabaseName=schema, TableInput={**made, "StorageDescriptor": storage})

    def rename(self, schema: str, name: str, new_name: str) -> None:
        table = self.client.get_table(DatabaseName=schema, Name=name)["Table"]
        kept = {key: table[key] for key in ("TableType", "Parameters", "StorageDescriptor")}
        self.drop(schema, name)
        self.client.create_table(DatabaseName=schema, TableInput={"Name": new_name, **kept})

    def drop(self, schema: str, name: str) -> None:
        self.client.delete_table(DatabaseName=schema, Name=name)

    def catalog(self, folder: Path, port: int | None = None) -> dict[str, str]:
        """As of `Hive`; the tables are on S3."""
        endpoint = f"http://127.0.0.1:{port}" if port else self.source["glue.endpoint"]
        warehouse = {"warehouse": f"s3://warehouse/{folder.name}", **self.store.properties}
        return {**self.source, **warehouse, "glue.endpoint": endpoint}

    def theirs(self, folder: Path) -> MetastoreCatalog:
        """PyIceberg's own client."""
        return GlueCatalog("theirs", **self.catalog(folder))

    def _get(self, schema: str, name: str) -> Any:
        return self.client.get_table(DatabaseName=schema, Name=name)["Table"]

    def parameters(self, schema: str, name: str) -> dict[str, str]:
        return dict(self._get(schema, name)["Parameters"])

    def columns(self, schema: str, name: str) -> dict[str, str]:
        columns = self._get(schema, name)["StorageDescriptor"]["Columns"]
        return {each["Name"]: each["Type"] for each in columns if each["Parameters"]["iceberg.field.current"] == "true"}

    def say_something(self, schema: str, name: str) -> None:
        """Set what only others set: a parameter, and the owner."""
        table = self._get(schema, name)
        kept = {key: table[key] for key in ("Name", "TableType", "StorageDescriptor")}
        theirs = {"Parameters": {**table["Parameters"], "theirs": "kept"}, "Owner": "them"}
        self.client.update_table(DatabaseName=schema, TableInput={**kept, **theirs})

    def said(self, schema: str, name: str) -> tuple[str | None, str | None]:
        table = self._get(schema, name)
        return table["Parameters"].get("theirs"), table.get("Owner")


_update_table, _updating = GlueResponse.update_table, Lock()


def update_table(self: GlueResponse) -> Any:
    """Glue's UpdateTable, for `monkeypatch.setattr`: of a version that the table no longer has, Glue does nothing. moto
    takes any.
    """
    asked = self.parameters
    with _updating:
        table = self.glue_backend.get_table(asked["DatabaseName"], asked["TableInput"]["Name"])
        if asked.get("VersionId", (now := table.as_dict()["VersionId"])) != now:
            raise JsonRESTError(
                "ConcurrentModificationException", "Update table failed due to concurrent modifications."
            )
        return _update_table(self)


@dataclass
class Between:
    """A server before another one, which loses the answer to the next request that contains `sign`, or with `holds`
    keeps that request to itself.
    """

    port: int = 0
    sign: bytes | None = None
    holds: bool = False
    met: Event = field(default_factory=Event)

    def lose(self, sign: bytes, *, holds: bool = False) -> None:
        self.met.clear()
        self.sign, self.holds = sign, holds


@contextmanager
def between(to_port: int) -> Iterator[Between]:
    listener = socket.create_server(("127.0.0.1", 0))
    found, clients = Between(listener.getsockname()[1]), list[socket.socket]()

    def serve(client: socket.socket) -> None:
        is_lost = False
        with client, socket.create_connection(("127.0.0.1", to_port)) as server, suppress(OSError):
            while True:
                for source in select.select((client, server), (), ())[0]:
                    data = source.recv(1 << 16)
                    if source is client and found.sign and found.sign in data:
                        found.sign, is_lost = None, True
                        if found.holds:
                            found.met.set()
                            continue
                    if is_lost and source is server:
                        found.met.set()  # What was asked is done.
                        return
                    if not data:
                        return
                    (server if source is client else client).sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                clients.append(listener.accept()[0])
                Thread(target=serve, args=(clients[-1],), daemon=True).start()

    accepting = Thread(target=accept)
    accepting.start()
    try:
        yield found
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(10)
        for each in clients:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
