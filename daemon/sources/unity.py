"""Unity Catalog over HTTP: which tables there are, where they are, what is ratified of them, and credentials.

The paths and fields are those of `api/delta.yaml` (the Delta API, v1) and `api/all.yaml` of unitycatalog/unitycatalog.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec.json import Decoder, encode

from daemon.clock import Clock
from daemon.errors import LogMissing, SourceCatalogAway, Unauthorized
from daemon.masking import Secret
from daemon.sources.credentials import Vended
from daemon.sources.http import Connections
from daemon.sources.ratified import Ratified, StagedCommit
from daemon.sources.table_info import TableInfo
from daemon.store.locations import normalize_location

T = TypeVar("T")

API = "/api/2.1/unity-catalog"
DELTA_API = "/delta/v1"
LOAD_TABLE = "GET /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"
# A server that asks for patience gets it, up to this.
RETRY_AFTER_MAX_S = 300.0
# What a server does not know about itself is asked for again after this.
CONFIG_MAX_S = 3600.0
PAGE_MAX, PAGES_MAX = 50, 10_000
# A catalog that gives no credentials for a table: it has no rights to its store, or the user none to have them.
REFUSALS = (400, 403, 404)
# After a request without an answer the catalog counts as away for so long.
SILENT_S = 5.0
# Tokens of the OAuth server are used for this part of their life.
TOKEN_LIFE = 0.8


class _Commit(msgspec.Struct, rename="kebab"):
    version: int
    file_name: str
    file_size: int
    file_modification_timestamp: int


class _Metadata(msgspec.Struct, rename="kebab"):
    table_uuid: str
    location: str
    table_type: str = ""


class _Loaded(msgspec.Struct, rename="kebab"):
    metadata: _Metadata
    commits: list[_Commit] = []
    latest_table_version: int | None = None


class _Config(msgspec.Struct):
    endpoints: list[str]


class _Tables(msgspec.Struct):
    tables: list[TableInfo] = []
    next_page_token: str | None = None


class _Named(msgspec.Struct):
    name: str


class _Schemas(msgspec.Struct):
    schemas: list[_Named] = []
    next_page_token: str | None = None


class _PreviewCommit(msgspec.Struct):
    version: int
    file_name: str
    file_size: int
    file_modification_timestamp: int


class _PreviewCommits(msgspec.Struct):
    latest_table_version: int
    commits: list[_PreviewCommit] = []


class _Vended(msgspec.Struct, rename="kebab"):
    prefix: str
    config: dict[str, str | None] = {}
    expiration_time_ms: int | None = None


class _Credentials(msgspec.Struct, rename="kebab"):
    storage_credentials: list[_Vended] = []


class _Older(msgspec.Struct):
    """`TemporaryCredentials`: of the sections, the one of the table's store is there."""

    url: str = ""
    expiration_time: int | None = None
    aws_temp_credentials: dict[str, str | None] = {}
    azure_user_delegation_sas: dict[str, str | None] = {}
    gcp_oauth_token: dict[str, str | None] = {}


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float = 3600.0


# Made at the import: two threads must not be the first to decode a struct.
_decode_any = Decoder(dict).decode
_decode_tables = Decoder(_Tables).decode
_decode_schemas = Decoder(_Schemas).decode
_decode_table = Decoder(TableInfo).decode
_decode_loaded = Decoder(_Loaded).decode
_decode_preview = Decoder(_PreviewCommits).decode
_decode_credentials = Decoder(_Credentials).decode
_decode_older = Decoder(_Older).decode
_decode_config = Decoder(_Config).decode
_decode_token = Decoder(_Token).decode


class LastAnswer:
    """Where to ask about a table, and the last answer with what it says: mostly, the next one is the same."""

    def __init__(self, table: TableInfo) -> None:
        self.table = table
        self.path = f"{DELTA_API}{_path_of(table)}"
        # An answer without a byte is one, too.
        self._known: tuple[bytes | None, Ratified | None] = None, None

    def read(self, parse: Callable[[bytes], Ratified | None], data: bytes) -> Ratified | None:
        known = self._known
        if data != known[0]:
            self._known = known = data, parse(data)
        return known[1]


class UnityCatalog:
    """One catalog of `sources`. From any thread; its methods raise SourceCatalogAway, and Unauthorized."""

    def __init__(self, name: str, properties: Mapping[str, str], clock: Clock) -> None:
        self.name = name
        self._properties = properties
        self._clock = clock
        self._uri = properties["uri"].rstrip("/").removesuffix(API)
        self._connections = Connections()
        self._lock = Lock()
        self._token: tuple[str, float] | None = None  # and when it is to be renewed
        self._not_before_s = self._silent_until_s = 0.0
        self._has_delta_api: dict[str, tuple[bool, float]] = {}

    def __reduce__(self) -> tuple[type[UnityCatalog], tuple[object, ...]]:
        # A Spark task has connections of its own.
        return UnityCatalog, (self.name, self._properties, self._clock)

    def check(self) -> None:
        """Ask for something that every user may see. One request."""
        self._get("/catalogs", _decode_any, query={"max_results": "1"})

    def list_tables(self, catalog: str, schema: str) -> Iterator[TableInfo]:
        """List a schema's tables, of all kinds. One request for each page."""
        query = {"catalog_name": catalog, "schema_name": schema, "max_results": str(PAGE_MAX)}
        for page in self._pages("/tables", query, _decode_tables):
            yield from page.tables

    def list_schemas(self, catalog: str) -> list[str]:
        pages = self._pages("/schemas", {"catalog_name": catalog, "max_results": str(PAGE_MAX)}, _decode_schemas)
        return [schema.name for page in pages for schema in page.schemas]

    def find_table(self, full_name: str) -> TableInfo:
        """Return one table. One request. Raises `LogMissing`."""
        return self._get(f"/tables/{quote(full_name, safe='')}", _decode_table)

    def load_ratified(self, last: LastAnswer) -> Ratified | None:
        """Return what is ratified of a table; None if the catalog does not manage it. One request, mostly.

        Raises `LogMissing` if the name has no table, or another one.
        """
        table = last.table
        if self._offers_delta_api(table.catalog_name):
            return self._get(last.path, partial(last.read, partial(self._parse_loaded, table)))
        commits: dict[int, _PreviewCommit] = {}
        while True:
            body = {
                "table_id": table.table_id,
                "table_uri": table.storage_location,
                "start_version": max(commits, default=-1) + 1,
            }
            answer = self._get("/delta/preview/commits", _decode_preview, body=body)
            new = {each.version: each for each in answer.commits if each.version not in commits}
            commits |= new
            if not new or max(commits) >= answer.latest_table_version:
                return self._ratified(table, answer.latest_table_version, commits.values())

    def read_credentials(self, table: TableInfo) -> list[Vended]:
        """Return what to read the table's files with; nothing if the catalog gives none. One request."""
        try:
            if self._offers_delta_api(table.catalog_name):
                path = f"{DELTA_API}{_path_of(table)}/credentials"
                query = {"operation": "READ"}
                found = self._get(path, _decode_credentials, query=query, missing=REFUSALS).storage_credentials
                return [Vended(each.prefix, each.expiration_time_ms, each.config) for each in found]
            body = {"table_id": table.table_id, "operation": "READ"}
            older = self._get("/temporary-table-credentials", _decode_older, body=body, method="POST", missing=REFUSALS)
        except LogMissing:
            return []
        sections = (
            ("s3", older.aws_temp_credentials),
            ("azure", older.azure_user_delegation_sas),
            ("gcs", older.gcp_oauth_token),
        )
        config = {f"{store}.{key.replace('_', '-')}": value for store, each in sections for key, value in each.items()}
        return [Vended(older.url, older.expiration_time, config)]

    def _parse_loaded(self, table: TableInfo, data: bytes) -> Ratified | None:
        loaded = _decode_loaded(data)
        found = (loaded.metadata.table_uuid, normalize_location(loaded.metadata.location))
        if found != (table.table_id, table.storage_location):
            raise _replaced(self.name, table, *found)
        if loaded.latest_table_version is None:
            return None
        return self._ratified(table, loaded.latest_table_version, loaded.commits)

    def _ratified(self, table: TableInfo, newest: int, commits: Any) -> Ratified:
        staged = {
            each.version: StagedCommit(each.file_name, each.file_size, each.file_modification_timestamp)
            for each in commits
        }
        if newest == 0 and not staged:
            # Also of a table that has other versions: they are published, and the catalog has heard of none.
            return Ratified(None, staged)
        first = min(staged, default=newest + 1)
        if (
            newest < 0
            or sorted(staged) != list(range(first, newest + 1))
            or any(
                "/" in each.file_name or not each.file_name.startswith(f"{version:020d}.")
                for version, each in staged.items()
            )
        ):
            raise self._nonsense(f"its commits of {table.full_name} are not those up to its newest version {newest}")
        return Ratified(newest, staged)

    def _offers_delta_api(self, catalog: str) -> bool:
        known, now_s = self._has_delta_api.get(catalog), self._clock.monotonic_s()
        if known and now_s < known[1]:
            return known[0]
        try:
            query = {"catalog": catalog, "protocol-versions": "1.0"}
            offers = LOAD_TABLE in self._get(f"{DELTA_API}/config", _decode_config, query=query).endpoints
        except LogMissing:
            offers = False
        self._has_delta_api[catalog] = (offers, now_s + CONFIG_MAX_S)
        return offers

    def _pages(self, path: str, query: Mapping[str, str], decode: Callable[[bytes], Any]) -> Iterator[Any]:
        token, seen = None, set[str]()
        while True:
            page = self._get(path, decode, query={**query, "page_token": token} if token else query)
            yield page
            token = page.next_page_token
            if not token:
                return
            if token in seen or len(seen) == PAGES_MAX:
                raise self._nonsense("its list has no end")
            seen.add(token)

    def _get(
        self,
        path: str,
        decode: Callable[[bytes], T],
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        method: str = "GET",
        missing: Container[int] = (404,),
    ) -> T:
        """Raises LogMissing for a status in `missing`."""
        if query:
            path = f"{path}?{urlencode(query)}"
        now_s = self._clock.monotonic_s()
        if now_s < self._not_before_s:
            raise SourceCatalogAway(
                f"the catalog {self.name} is busy, and has said for how long (Retry-After)",
                hint="dvsync asks again after that time.",
            )
        if now_s < self._silent_until_s:
            raise self._away("it gave no answer a few seconds ago")
        token = self._bearer()
        status, data = self._request(method, path, body, token)
        if status == 401:
            # The token may have been replaced since it was read.
            status, data = self._request(method, path, body, self._bearer(refused=token))
        if status in missing:
            raise LogMissing(
                f"the catalog {self.name} does not have {path}", hint="Correct the name, or create the table."
            )
        if status in (401, 403):
            refused = "refuses the token" if status == 401 else f"does not give the right to read {path}"
            raise Unauthorized(
                f"the catalog {self.name} {refused} ({status})",
                hint=f"Check the token under sources.{self.name}, and the rights of its user.",
            )
        if status != 200:
            raise SourceCatalogAway(
                f"the catalog {self.name} answers with status {status}",
                hint=f"Check sources.{self.name}.uri, and the catalog's server.",
            )
        try:
            return decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._nonsense(f"its answer to {path} is not what Unity's API says: {error}") from error

    def _request(self, method: str, path: str, body: object, token: str) -> tuple[int, bytes]:
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        return self._open(method, f"{self._uri}{API}{path}", headers, None if body is None else encode(body))

    def _open(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> tuple[int, bytes]:
        try:
            answer = self._connections.request(method, url, headers, body)
        except (OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                # Whoever asks next would wait as long.
                self._silent_until_s = self._clock.monotonic_s() + SILENT_S
            raise self._away(str(error)) from error
        if answer.status in (429, 503) and answer.retry_after_s > 0:
            self._not_before_s = self._clock.monotonic_s() + min(answer.retry_after_s, RETRY_AFTER_MAX_S)
        return answer.status, answer.data

    def _bearer(self, refused: str | None = None) -> str:
        """The token; a new one if it ends soon, or is the one that was `refused`. Empty if there is none."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._token is None or now_s >= self._token[1] or self._token[0] == refused:
                if "credential" in self._properties and "token" not in self._properties:
                    token = self._ask_token()
                    self._token = token.access_token, now_s + token.expires_in * TOKEN_LIFE
                else:
                    self._token = self._read("token"), math.inf
            return self._token[0]

    def _read(self, key: str) -> str:
        """A property as its file has it now."""
        text = self._properties.get(key, "")
        return text.read_again() if isinstance(text, Secret) else text

    def _ask_token(self) -> _Token:
        fields = {"grant_type": "client_credentials", "scope": self._properties.get("scope", "all-apis")}
        headers = {
            "Authorization": f"Basic {b64encode(self._read('credential').encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        status, data = self._open("POST", self._properties["oauth2-server-uri"], headers, urlencode(fields).encode())
        if status not in (200, 400, 401, 403):
            raise self._away(f"its token server answers with status {status}")
        if status != 200:
            raise Unauthorized(
                f"the token server of the catalog {self.name} answers with status {status}",
                hint=f"Check sources.{self.name}.credential and oauth2-server-uri.",
            )
        try:
            return _decode_token(data)
        except msgspec.DecodeError as error:
            raise self._nonsense(f"its token server's answer is no token: {error}") from error

    def _away(self, why: str) -> SourceCatalogAway:
        return SourceCatalogAway(
            f"the catalog {self.name} does not answer: {why}",
            hint=f"Check sources.{self.name}.uri, the network and the server.",
        )

    def _nonsense(self, why: str) -> SourceCatalogAway:
        return SourceCatalogAway(
            f"the catalog {self.name} makes no sense: {why}",
            hint=f"Check that sources.{self.name}.uri leads to a Unity Catalog.",
        )


def _path_of(table: TableInfo) -> str:
    catalog, schema, name = (quote(part, safe="") for part in (table.catalog_name, table.schema_name, table.name))
    return f"/catalogs/{catalog}/schemas/{schema}/tables/{name}"


def _replaced(catalog: str, table: TableInfo, found_id: str, location: str) -> LogMissing:
    return LogMissing(
        f"{table.full_name} is another table now in the catalog {catalog}: {found_id} at {location}, and was "
        f"{table.table_id} at {table.storage_location}",
        hint="The next listing of the catalog finds where the table is.",
    )
