"""Delta tables of a Hive Metastore and of AWS Glue: where they are. Their logs say everything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from daemon.errors import LogMissing, SourceCatalogAway, Unauthorized
from daemon.sources.table_info import TableInfo

if TYPE_CHECKING:
    from hive_metastore.ThriftHiveMetastore import Client

HIVE_PORT = 9083
TIMEOUT_MS = 10_000
# Tables with thousands of columns are megabytes each.
TABLES_A_REQUEST = 100
GLUE_REFUSALS = ("AccessDenied", "UnrecognizedClient", "ExpiredToken", "InvalidSignature", "InvalidClientTokenId")
# What Delta's GENERATE writes for engines that read Hive's tables of symbolic links, below the Delta table.
MANIFESTS = "/_symlink_format_manifest"


def table_info(
    schema: str,
    name: str,
    kind: str,
    *,
    location: str,
    path: str | None,
    parameters: Mapping[str, str],
    input_format: str,
) -> TableInfo:
    """Return a table of a metastore, which has no ids: a table is known by where it is.

    `kind` is one of Hive's, such as VIRTUAL_VIEW. `path` is of the serde: Spark writes a placeholder as `location`
    where Hive could not read the table itself.
    """
    is_linked = input_format.endswith(".SymlinkTextInputFormat") and MANIFESTS in location
    formats = (parameters.get("spark.sql.sources.provider", ""), parameters.get("table_type", ""))
    is_delta = is_linked or any(each.lower() == "delta" for each in formats)
    data_format = "DELTA" if is_delta else next(filter(None, (*formats, input_format.rpartition(".")[2])), None)
    place = location.partition(MANIFESTS)[0] if is_linked else path or location
    table_type = kind if "VIEW" in kind or kind == "FOREIGN" else "EXTERNAL"
    return TableInfo(name, "", schema, place, table_type, data_format, place)


class HiveMetastore:
    """One Hive Metastore, at the first address that answers. From any thread: each method opens a connection, and
    raises SourceCatalogAway.
    """

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self._addresses = [urlsplit(uri.strip()) for uri in properties["uri"].split(",")]

    def check(self) -> None:
        self.list_schemas("")

    def list_schemas(self, _catalog: str) -> list[str]:
        with self._client() as client:
            return list(client.get_all_databases())

    def list_tables(self, _catalog: str, schema: str) -> list[TableInfo]:
        """One request for the names, and one for each hundred tables."""
        from hive_metastore.ttypes import GetTablesRequest  # noqa: PLC0415 - of the extra `hive`

        with self._client() as client:
            names = client.get_all_tables(schema)
            parts = (names[start : start + TABLES_A_REQUEST] for start in range(0, len(names), TABLES_A_REQUEST))
            # Hive 4.0.1 has only the later forms of these requests, which Hive 2.3 has, too.
            asked = (GetTablesRequest(schema, part) for part in parts)
            return [_of_hive(table) for each in asked for table in client.get_table_objects_by_name_req(each).tables]

    def find_table(self, full_name: str) -> TableInfo:
        from hive_metastore.ttypes import GetTableRequest  # noqa: PLC0415 - of the extra `hive`

        schema, name = full_name.split(".")
        with self._client() as client:
            return _of_hive(client.get_table_req(GetTableRequest(schema, name)).table)

    @contextmanager
    def _client(self) -> Iterator[Client]:
        from hive_metastore.ThriftHiveMetastore import Client  # noqa: PLC0415 - of the extra `hive`
        from hive_metastore.ttypes import NoSuchObjectException, UnknownDBException  # noqa: PLC0415
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol  # noqa: PLC0415
        from thrift.Thrift import TException  # noqa: PLC0415
        from thrift.transport.TSocket import TSocket  # noqa: PLC0415
        from thrift.transport.TTransport import TBufferedTransport  # noqa: PLC0415

        transports = []
        for address in self._addresses:
            socket = TSocket(address.hostname, address.port or HIVE_PORT)
            socket.setTimeout(TIMEOUT_MS)
            transports.append(TBufferedTransport(socket))
        *others, transport = transports
        try:
            for each in others:
                with suppress(TException, OSError):
                    each.open()
                    transport = each
                    break
            else:
                transport.open()
            yield Client(TBinaryProtocol(transport))
        except (NoSuchObjectException, UnknownDBException) as error:
            raise _missing(self.name, error) from error
        except (TException, OSError, EOFError) as error:
            raise SourceCatalogAway(
                f"the metastore {self.name} does not answer: {error}",
                hint=f"Check sources.{self.name}.uri, the network and the server.",
            ) from error
        finally:
            transport.close()


def _of_hive(table: Any) -> TableInfo:
    storage = table.sd
    path = ((storage.serdeInfo and storage.serdeInfo.parameters) or {}).get("path")
    return table_info(
        table.dbName,
        table.tableName,
        table.tableType or "",
        location=storage.location or "",
        path=path,
        parameters=table.parameters or {},
        input_format=storage.inputFormat or "",
    )


class GlueMetastore:
    """The Glue Data Catalog of an AWS account and region. Its methods raise SourceCatalogAway, and Unauthorized."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self._properties = properties

    @cached_property
    def _client(self) -> Any:
        from pyiceberg.catalog.glue import GlueCatalog  # noqa: PLC0415 - of the extra `glue`

        return GlueCatalog(self.name, **self._properties).glue

    def check(self) -> None:
        self.list_schemas("")

    def list_schemas(self, _catalog: str) -> list[str]:
        with self._errors():
            return [each["Name"] for each in self._pages("get_databases", "DatabaseList")]

    def list_tables(self, _catalog: str, schema: str) -> list[TableInfo]:
        """One request for each hundred tables."""
        with self._errors():
            return [_of_glue(table) for table in self._pages("get_tables", "TableList", DatabaseName=schema)]

    def find_table(self, full_name: str) -> TableInfo:
        schema, name = full_name.split(".")
        with self._errors():
            return _of_glue(self._client.get_table(DatabaseName=schema, Name=name)["Table"])

    def _pages(self, operation: str, key: str, **arguments: str) -> Iterable[Any]:
        for page in self._client.get_paginator(operation).paginate(**arguments):
            yield from page[key]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - of the extra `glue`

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            code = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
            if code == "EntityNotFoundException":
                raise _missing(self.name, error) from error
            if code.startswith(GLUE_REFUSALS):
                raise Unauthorized(
                    f"Glue refuses dvsync under sources.{self.name}: {error}",
                    hint="Check the keys and the rights of their user: glue:GetDatabases, GetTables, GetTable.",
                ) from error
            raise SourceCatalogAway(
                f"Glue, of sources.{self.name}, does not answer: {error}",
                hint=f"Check sources.{self.name} and the network.",
            ) from error


def _of_glue(table: Mapping[str, Any]) -> TableInfo:
    storage = table.get("StorageDescriptor", {})
    return table_info(
        table["DatabaseName"],
        table["Name"],
        # A link to a table that another account shares.
        "FOREIGN" if "TargetTable" in table and not storage else table.get("TableType", ""),
        location=storage.get("Location", ""),
        path=((storage.get("SerdeInfo") or {}).get("Parameters") or {}).get("path"),
        parameters=table.get("Parameters") or {},
        input_format=storage.get("InputFormat", ""),
    )


def _missing(catalog: str, error: Exception) -> LogMissing:
    return LogMissing(f"the metastore {catalog} does not have it: {error}", hint="Correct the name, or create it.")
