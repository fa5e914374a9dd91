"""Iceberg tables in a Hive Metastore, committed to as Iceberg's Java library does it: under the metastore's lock, and
only if the table still has the metadata file that the commit begins with.

PyIceberg 0.12 relies on the lock alone, leaves it behind when its connection breaks, shares one connection between all
threads and waits on it for ever, and fails at columns and properties that the metastore cannot have. No issues are
known; `docs/decisions/0005-pyiceberg-patches.md` has them one by one.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from copy import deepcopy
from functools import partial
from getpass import getuser
from threading import Lock
from time import time
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from hive_metastore import ttypes
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    AlreadyExistsException,
    EnvironmentContext,
    FieldSchema,
    GetTableRequest,
    InvalidObjectException,
    InvalidOperationException,
    LockComponent,
    LockLevel,
    LockRequest,
    LockState,
    LockType,
    MetaException,
    NoSuchObjectException,
    ShowLocksRequest,
    UnlockRequest,
)
from hive_metastore.ttypes import Table as HiveTable
from pyiceberg.catalog import EXTERNAL_TABLE, LOCATION, METADATA_LOCATION, URI, WAREHOUSE_LOCATION
from pyiceberg.catalog.hive import (
    DO_NOT_UPDATE_STATS,
    HIVE2_COMPATIBLE,
    HIVE_KERBEROS_AUTH,
    HIVE_KERBEROS_SERVICE_NAME,
    HIVE_KERBEROS_SERVICE_NAME_DEFAULT,
    HIVE_PRIMITIVE_TYPES,
    HiveCatalog,
    SchemaToHiveConverter,
    _construct_hive_storage_descriptor,
    _construct_parameters,
    _HiveClient,
)
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    WaitingForLockException,
)
from pyiceberg.schema import Schema, visit
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import DecimalType, PrimitiveType
from pyiceberg.utils.properties import property_as_bool
from thrift.Thrift import TException
from thrift.transport import TSocket, TTransport

from daemon.errors import CatalogAway, CommitConflict, Unsupported
from daemon.iceberg.pyiceberg_ext import silence
from daemon.iceberg.pyiceberg_ext.metastores import Metastore

PORT = 9083
# Of the metastore's own tables, in Hive 2. Iceberg's readers take columns and properties from the metadata file.
TEXT_BYTES_MAX = 4000
COMMENT_CHARACTERS_MAX = 255
# For variants, and for types whose text is too long.
ANY_TYPE = "binary"
# The metastore's `hive.txn.timeout`, after which it removes locks of the dead itself, if it does so at all.
LOCK_DEAD_MS = 300_000
AGENT = "dvsync-"
# HIVE-26882, from Hive 2.3.10 and 4.0 on: the metastore changes a table only if a parameter has this value. Older ones
# ignore it, and the lock must do.
EXPECTED_KEY, EXPECTED_VALUE = "expected_parameter_key", "expected_parameter_value"
IS_CHANGED = "The table has been modified"
# Parameters in which Iceberg's Java library and Hive describe what the table is: of no other state than their own.
DESCRIPTIONS = (
    *("COLUMN_STATS_ACCURATE", "numFiles", "numRows", "rawDataSize", "totalSize"),
    *("current-schema", "current-snapshot-id", "current-snapshot-summary", "current-snapshot-timestamp-ms"),
    *("snapshot-count", "default-partition-spec", "default-sort-order"),
)
IS_INCOMPATIBLE = "incompatible"
# It logs each address that does not answer as an error, also if the next one does.
logging.getLogger(TSocket.__name__).setLevel(logging.CRITICAL)


def let_exceptions_pass() -> None:
    """Let Thrift's exceptions be as others: they refuse the traceback that `contextlib` sets, and end as a TypeError
    instead. Patches hive_metastore.
    """
    for each in vars(ttypes).values():
        if isinstance(each, type) and issubclass(each, TException) and "__setattr__" in vars(each):
            del each.__setattr__


class _Socket(TSocket.TSocket):  # type: ignore[misc]
    def open(self) -> None:
        self.setTimeout(silence.CONNECT_MAX_S * 1000)
        super().open()
        self.setTimeout(silence.ANSWER_MAX_S * 1000)


class _Connection(_HiveClient):
    """A connection whose requests end."""

    def _init_thrift_transport(self) -> Any:
        address = urlsplit(self._uri)
        opened = _Socket(address.hostname, address.port or PORT)
        if self._kerberos_auth:
            service = self._kerberos_service_name
            return TTransport.TSaslClientTransport(opened, host=address.hostname, service=service)
        return TTransport.TBufferedTransport(opened)


class Hive(Metastore, HiveCatalog):
    """The tables of one metastore, which may have several addresses. From any thread."""

    def __init__(self, name: str, **properties: str) -> None:
        # Only to tell our locks from those of other processes.
        self._agent = f"{AGENT}{uuid4()}"
        self._creating = Lock()
        # The one that answered last comes first.
        self._uris = [uri.strip() for uri in properties[URI].split(",")]
        self._server = silence.Server(properties[URI], TTransport.TTransportException, OSError, EOFError)
        super().__init__(name, **properties)

    @property  # type: ignore[override]
    def _client(self) -> AbstractContextManager[Client]:
        return self._connected()

    @_client.setter
    def _client(self, _shared: object) -> None:
        """PyIceberg sets one connection, for all threads."""

    @contextmanager
    def _connected(self) -> Iterator[Client]:
        with self._server.asked(), ExitStack() as stack:
            yield self._open(stack)

    def _open(self, stack: ExitStack) -> Client:
        for _ in self._uris[1:]:
            first, *others = self._uris
            with suppress(TException, OSError):
                return stack.enter_context(self._connection_to(first))
            # Not to wait for it at each request.
            self._uris = [*others, first]
        return stack.enter_context(self._connection_to(self._uris[0]))

    def _connection_to(self, uri: str) -> _Connection:
        told = self.properties
        service = told.get(HIVE_KERBEROS_SERVICE_NAME, HIVE_KERBEROS_SERVICE_NAME_DEFAULT)
        return _Connection(uri, told.get("ugi"), property_as_bool(told, HIVE_KERBEROS_AUTH, False), service)

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Create a database in the catalog's warehouse, if it has one: not where the metastore would put it. Raises
        NamespaceAlreadyExistsError.
        """
        name = self.identifier_to_database(namespace)
        if warehouse := self.properties.get(WAREHOUSE_LOCATION):
            properties = {LOCATION: f"{warehouse.rstrip('/')}/{name}.db", **properties}
        # Of two requests at once, the metastore refuses one, and removes the database's folder, with all files in it.
        with self._creating:
            if self.namespace_exists(namespace):
                raise NamespaceAlreadyExistsError(f"there is a database {name}")
            super().create_namespace(namespace, properties)

    def _get_hive_table(self, open_client: Client, database_name: str, table_name: str) -> HiveTable:
        # PyIceberg's `get_table` is gone in Hive 4.0.1. This one is in Hive from 2.3 on.
        try:
            return open_client.get_table_req(GetTableRequest(database_name, table_name)).table
        except NoSuchObjectException as error:
            raise NoSuchTableError(f"there is no table {database_name}.{table_name}") from error

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit the updates, or create the table. Raises CommitFailedException and TableAlreadyExistsError if somebody
        else was first, CommitConflict while somebody has the lock, CatalogAway if there are no locks, and Unsupported
        if the metastore refuses the table: nothing is committed then.
        """
        name = self.identifier_to_database_and_table(table.name(), NoSuchTableError)
        try:
            current = self.load_table(name)
        except NoSuchTableError:
            current = None
        staged = self._update_and_stage_table(current, name, requirements, updates)
        if current is None or staged.metadata != current.metadata:
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            with self._client as client, self._refusals(name, is_new=current is None):
                if current is None:
                    self._create(client, staged)
                else:
                    # Held as briefly as can be: the metadata file is written.
                    with self._locked(client, *name):
                        self._alter(client, staged, current.metadata_location)
            current = staged
        return CommitTableResponse(metadata=current.metadata, metadata_location=current.metadata_location)

    @contextmanager
    def _refusals(self, name: tuple[str, str], *, is_new: bool) -> Iterator[None]:
        """Raise what PyIceberg and dvsync call a refusal of the metastore. Other errors say nothing of the outcome."""
        try:
            yield
        except AlreadyExistsException as error:
            raise TableAlreadyExistsError(f"there is a table {'.'.join(name)}") from error
        except MetaException as error:
            if IS_CHANGED in str(error):
                raise CommitFailedException(error.message) from error
            raise
        except (InvalidObjectException, InvalidOperationException) as error:
            # It also refuses what is no longer there.
            if not (self.namespace_exists(name[0]) if is_new else self.table_exists(name)):
                raise CommitFailedException(f"it was dropped: {error.message}") from error
            raise Unsupported(
                f"the metastore refuses the table {'.'.join(name)}: {error.message}",
                hint="Choose another target, columns or catalog; then `dvsync resume` the table.",
            ) from error

    def _create(self, client: Client, staged: StagedTable) -> None:
        database, name = staged.name()
        now_s = int(time())
        storage = _construct_hive_storage_descriptor(Schema(), staged.location())
        storage.cols = self._columns(staged.schema())
        table = HiveTable(
            dbName=database,
            tableName=name,
            owner=_user(),
            createTime=now_s,
            lastAccessTime=now_s,
            sd=storage,
            tableType=EXTERNAL_TABLE,
            parameters=_parameters({}, staged),
        )
        client.create_table_with_environment_context(table, EnvironmentContext({DO_NOT_UPDATE_STATS: "true"}))

    def _alter(self, client: Client, staged: StagedTable, base: str) -> None:
        """Let the table have the new metadata file if it still has `base`. What others have set of it stays, such as
        the serde with which Hive reads it.
        """
        database, name = staged.name()
        before: HiveTable = self._get_hive_table(client, database, name)
        if (found := before.parameters.get(METADATA_LOCATION)) != base:
            raise CommitFailedException(f"it has the metadata file {found}, and had {base}")
        after = deepcopy(before)
        after.parameters = _parameters(before.parameters, staged, base)
        after.sd.cols = self._columns(staged.schema())
        expected = {DO_NOT_UPDATE_STATS: "true", EXPECTED_KEY: METADATA_LOCATION, EXPECTED_VALUE: base}
        context = EnvironmentContext(expected)
        alter = partial(client.alter_table_with_environment_context, database, name, environment_context=context)
        try:
            alter(new_tbl=after)
        except InvalidOperationException as error:
            # `hive.metastore.disallow.incompatible.col.type.changes`, which is on: it compares the old and new columns
            # place by place, so that no column can be dropped, or moved. With no columns any are compatible.
            if not before.sd.cols or IS_INCOMPATIBLE not in str(error):
                raise
            before.sd.cols = []
            alter(new_tbl=before)
            alter(new_tbl=after)

    def _columns(self, schema: Schema) -> list[FieldSchema]:
        types = _Types(property_as_bool(self.properties, HIVE2_COMPATIBLE, False))
        named = [(field, visit(field.field_type, types)) for field in schema.fields]
        return [
            FieldSchema(
                field.name,
                text if len(text.encode()) <= TEXT_BYTES_MAX else ANY_TYPE,
                field.doc and field.doc[:COMMENT_CHARACTERS_MAX],
            )
            for field, text in named
        ]

    @contextmanager
    def _locked(self, client: Client, database: str, name: str) -> Iterator[None]:
        """Hold the lock of the table that Iceberg's writers respect."""
        component = LockComponent(type=LockType.EXCLUSIVE, level=LockLevel.TABLE, dbname=database, tablename=name)
        request = LockRequest([component], user=_user(), hostname=socket.gethostname(), agentInfo=self._agent)
        try:
            lock = client.lock(request)
        except MetaException as error:
            raise CatalogAway(
                f"the metastore gives no lock for {database}.{name}: {error.message}",
                hint="Its database must have the tables for locks, which Hive's schematool creates.",
            ) from error
        try:
            if lock.state != LockState.ACQUIRED:
                self._remove_dead_locks(client, database, name, lock.lockid)
                try:
                    self._wait_for_lock(database, name, lock.lockid, client)
                except WaitingForLockException as error:
                    raise self._is_held(client, database, name, lock.lockid) from error
            yield
        finally:
            # By another connection: this one may be broken. What stays is removed when it is in the way.
            with suppress(TException, OSError, EOFError), self._client as other:
                other.unlock(UnlockRequest(lock.lockid))

    def _remove_dead_locks(self, client: Client, database: str, name: str, own_id: int) -> None:
        """Remove the locks of dvsync whose process or connection ended. One of this process is none of a commit: a
        table has one at a time.
        """
        locks = _locks_of(client, database, name)
        # By the metastore's clock.
        now_ms = next((each.lastheartbeat for each in locks if each.lockid == own_id), 0)
        for lock in locks:
            is_old = now_ms - lock.lastheartbeat > LOCK_DEAD_MS
            agent = lock.agentInfo or ""
            if lock.lockid != own_id and (agent == self._agent or (agent.startswith(AGENT) and is_old)):
                client.unlock(UnlockRequest(lock.lockid))

    def _is_held(self, client: Client, database: str, name: str, own_id: int) -> CommitConflict:
        locks = [each for each in _locks_of(client, database, name) if each.lockid < own_id]
        holders = ", ".join(f"{each.user} on {each.hostname} (lock {each.lockid})" for each in locks)
        return CommitConflict(
            f"the metastore keeps {database}.{name} locked for {holders or 'somebody'}",
            hint="dvsync tries again. If that program has ended, the metastore removes its lock after "
            "hive.txn.timeout, but only with hive.compactor.initiator.on. Otherwise delete the lock from the table "
            "HIVE_LOCKS of the metastore's database.",
        )


def _locks_of(client: Client, database: str, name: str) -> list[Any]:
    """Return the locks of a table, and of its whole database."""
    locks = client.show_locks(ShowLocksRequest(database)).locks or ()
    return [each for each in locks if each.dbname == database and each.tablename in (name, None)]


class _Types(SchemaToHiveConverter):
    def primitive(self, primitive: PrimitiveType) -> str:
        is_known = isinstance(primitive, DecimalType) or type(primitive) in HIVE_PRIMITIVE_TYPES
        return super().primitive(primitive) if is_known else ANY_TYPE


def _parameters(before: Properties, staged: StagedTable, base: str | None = None) -> dict[str, str]:
    """Return the table's parameters with its properties, but for those that are too long for the metastore, and those
    of others that say what is in the table.
    """
    own: dict[str, str] = _construct_parameters(staged.metadata_location, base, staged.properties)
    left_out = {*DESCRIPTIONS, *(key for key, value in own.items() if len(value.encode()) > TEXT_BYTES_MAX)}
    return {key: value for key, value in {**before, **own}.items() if key not in left_out}


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # The user of a container may have no name.
        return "dvsync"
