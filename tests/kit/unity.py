"""Unity Catalog's two APIs over HTTP, as far as a reader needs them: the Delta API (v1), and the older one.

unitycatalog/unitycatalog, `api/delta.yaml` and `api/all.yaml`; where these leave room, as its server answers (August
2026). What it says about tables are records that a test fills, and may be wrong on purpose.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

BASE = "/api/2.1/unity-catalog"
# OAuth's client credentials. Unity leaves the address to the provider; this is the one of Databricks.
TOKEN_PATH = "/oidc/v1/token"
TABLE_PATH = "/v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"
ENDPOINTS = (f"GET {TABLE_PATH}", f"GET {TABLE_PATH}/credentials")
# As many commits are in one answer of the older API.
COMMITS_MAX = 10
# The older API's names of errors: status, and the name in the Delta API.
ERRORS = {
    "INVALID_ARGUMENT": (400, "InvalidParameterValueException"),
    "UNSUPPORTED_TABLE_FORMAT": (400, "UnsupportedTableFormatException"),
    "UNAUTHENTICATED": (401, "NotAuthorizedException"),
    "CATALOG_NOT_FOUND": (404, "NoSuchCatalogException"),
    "SCHEMA_NOT_FOUND": (404, "NoSuchSchemaException"),
    "TABLE_NOT_FOUND": (404, "NoSuchTableException"),
}
LISTED, PARENTS = ("catalogs", "schemas", "tables"), ("catalog_name", "schema_name")


@dataclass(frozen=True)
class StagedCommit:
    """A ratified commit that the catalog still names; times are epoch milliseconds."""

    version: int
    timestamp: int
    file_name: str
    file_size: int
    file_modification_timestamp: int

    @classmethod
    def read(cls, folder: Path, file_name: str) -> StagedCommit:
        """What a writer would tell the catalog of this file of the table in `folder`."""
        path = folder / "_delta_log" / "_staged_commits" / file_name
        with path.open() as lines:
            info = json.loads(lines.readline())["commitInfo"]
        stat = path.stat()
        version = int(file_name.partition(".")[0])
        return cls(version, info["inCommitTimestamp"], file_name, stat.st_size, int(stat.st_mtime * 1000))

    def told(self, separator: str) -> dict[str, Any]:
        return {name.replace("_", separator): value for name, value in vars(self).items()}


@dataclass
class UnityTable:
    """What the catalog knows of a table. `commits` are those it names: a view has none, nor has an external table."""

    table_id: str
    location: str
    latest_version: int = 0
    commits: list[StagedCommit] = field(default_factory=list)
    table_type: str = "MANAGED"
    data_source_format: str | None = "DELTA"
    properties: dict[str, str] = field(default_factory=dict)
    # As in the Delta API, but for the operation. Those that do not expire have no time of that.
    credentials: list[dict[str, Any]] = field(default_factory=list)
    # Only changes of metadata change it, and the etag with it: commits of rows do not.
    updated_ms: int = 1_577_836_800_000

    def tell(self, folder: Path, latest_version: int, file_names: Iterable[str]) -> None:
        """From now on the catalog names these staged files of `folder`, and no version above the latest."""
        self.commits = [StagedCommit.read(folder, name) for name in file_names]
        self.latest_version = latest_version


@dataclass(frozen=True)
class Request:
    """`parts` are those of the path below `BASE`, unquoted."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def parts(self) -> list[str]:
        return [unquote(part) for part in self.path.removeprefix(BASE).strip("/").split("/")]

    def json(self) -> Any:
        return json.loads(self.body or b"{}")


@dataclass
class Answer:
    """`body` is sent as JSON; bytes as they are; what an iterator gives piece by piece, until the connection ends."""

    status: int
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An error by its name in the older API."""


class UnityServer(ThreadingHTTPServer):
    """`tables` by catalog, schema and name. `requests` has method, path and query of each request.

    `answer` may answer a request instead, or return None; it may also wait: each request has a thread of its own.
    Without `has_delta_api` it is a server of before 2026. A client's secret is exchanged for `token`.
    """

    # Connections that wait to be accepted.
    request_queue_size = 128

    def __init__(self, token: str = "catalog-token", client: tuple[str, str] = ("client", "client-secret")) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token, self.client = token, client
        self.tables: dict[tuple[str, ...], UnityTable] = {}
        self.requests: list[str] = []
        self.answer: Callable[[Request], Answer | None] | None = None
        self.has_delta_api, self.page_max = True, 100

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def reply(self, request: Request) -> Answer:
        is_of_delta = request.path.startswith(f"{BASE}/delta/v1/")
        try:
            if request.path == TOKEN_PATH:
                return self._token(request)
            if request.headers.get("authorization") != f"Bearer {self.token}":
                raise Refused("UNAUTHENTICATED")
            api = self._by_delta_api if is_of_delta else self._by_older_api
            found = None if is_of_delta and not self.has_delta_api else api(request)
        except Refused as error:
            status, kind = ERRORS[name := str(error)]
            told = {"message": name, "type": kind, "code": status}
            return Answer(status, {"error": told} if is_of_delta else {"error_code": name, "message": name})
        # What no service is at, the server's framework answers.
        return found or Answer(404, b"Status: 404\nDescription: Not Found\n", {"Content-Type": "text/plain"})

    def _token(self, request: Request) -> Answer:
        secret = base64.b64encode(":".join(self.client).encode()).decode()
        if request.headers.get("authorization") != f"Basic {secret}" or b"=client_credentials" not in request.body:
            return Answer(401, {"error": "invalid_client"})
        return Answer(200, {"access_token": self.token, "token_type": "Bearer", "expires_in": 3600})

    def _by_delta_api(self, request: Request) -> Answer | None:
        match request.method, *request.parts[2:]:
            case "GET", "config":
                self._names(request.query.get("catalog", ""))
                return Answer(200, {"endpoints": ENDPOINTS, "protocol-version": "1.0"})
            case "GET", "catalogs", catalog, "schemas", schema, "tables", name:
                table = self._find(catalog, schema, name)
                if table.data_source_format != "DELTA":
                    raise Refused("UNSUPPORTED_TABLE_FORMAT")
                return Answer(200, _loaded(table))
            case "GET", "catalogs", catalog, "schemas", schema, "tables", name, "credentials":
                if request.query.get("operation") != "READ":
                    raise Refused("INVALID_ARGUMENT")
                vended = [{**each, "operation": "READ"} for each in self._find(catalog, schema, name).credentials]
                return Answer(200, {"storage-credentials": vended})
        return None

    def _by_older_api(self, request: Request) -> Answer | None:
        match request.method, *request.parts:
            case "GET", ("catalogs" | "schemas" | "tables") as what:
                place = [request.query.get(key, "") for key in PARENTS[: LISTED.index(what)]]
                return self._page(request, what, [self._info(*place, name) for name in self._names(*place)])
            case "GET", "tables", full_name:
                return Answer(200, self._info(*full_name.split(".")))
            case "POST", "temporary-table-credentials":
                table = self._find_by_id(request)
                return Answer(200, _vended(*table.credentials[:1] or [{"prefix": table.location, "config": {}}]))
            case "GET", "delta", "preview", "commits":
                return Answer(200, _commits_of(self._find_by_id(request), request.json()))
        return None

    def _names(self, *place: str) -> list[str]:
        """Those of catalogs, of the schemas of one, or of the tables of a schema, in the order of listings."""
        found = {key[len(place)] for key in self.tables if key[: len(place)] == place}
        if place and not found:
            raise Refused("SCHEMA_NOT_FOUND" if place[1:] else "CATALOG_NOT_FOUND")
        return sorted(found)

    def _find(self, *place: str) -> UnityTable:
        if table := self.tables.get(place):
            return table
        raise Refused("TABLE_NOT_FOUND")

    def _find_by_id(self, request: Request) -> UnityTable:
        table_id = request.json().get("table_id")
        return self._find(*next((key for key, table in self.tables.items() if table.table_id == table_id), ()))

    def _info(self, *place: str) -> dict[str, Any]:
        told: dict[str, Any] = {**dict(zip(PARENTS, place[:-1], strict=False)), "name": place[-1]}
        if len(place) < len(LISTED):
            return told
        table = self._find(*place)
        told |= {"table_id": table.table_id, "table_type": table.table_type, "properties": table.properties}
        told |= {"created_at": table.updated_ms, "updated_at": table.updated_ms}
        if table.data_source_format:
            told |= {"data_source_format": table.data_source_format, "storage_location": table.location}
        return told

    def _page(self, request: Request, what: str, found: list[dict[str, Any]]) -> Answer:
        """The token is the last name of a page, also of a full one that is the last."""
        after, wanted = request.query.get("page_token"), int(request.query.get("max_results") or 0)
        size = min(wanted or self.page_max, self.page_max)
        page = [each for each in found if not after or each["name"] > after][:size]
        told: dict[str, Any] = {what: page}
        if len(page) == size:
            told["next_page_token"] = page[-1]["name"]
        return Answer(200, told)


def _loaded(table: UnityTable) -> dict[str, Any]:
    """The columns are none, as those are that the server cannot parse."""
    metadata: dict[str, Any] = dict.fromkeys(("created-time", "updated-time"), table.updated_ms)
    metadata |= {"table-type": table.table_type, "table-uuid": table.table_id, "location": table.location}
    metadata |= {"columns": {"type": "struct", "fields": []}, "properties": table.properties}
    told: dict[str, Any] = {"metadata": {**metadata, "etag": f"etag-{table.updated_ms}"}}
    if table.table_type == "MANAGED":
        told["commits"] = [commit.told("-") for commit in sorted(table.commits, key=lambda each: -each.version)]
        told["latest-table-version"] = table.latest_version
    return told


def _commits_of(table: UnityTable, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The newest first, but of many the oldest: who asks goes on behind them."""
    start, end = asked.get("start_version"), asked.get("end_version")
    if start is None or table.table_type != "MANAGED" or not asked.get("table_uri"):
        raise Refused("INVALID_ARGUMENT")
    asked_for = [each for each in table.commits if start <= each.version and (end is None or each.version <= end)]
    told = sorted(asked_for, key=lambda each: each.version)[COMMITS_MAX - 1 :: -1]
    return {"commits": [commit.told("_") for commit in told], "latest_table_version": table.latest_version}


def _vended(credential: Mapping[str, Any]) -> dict[str, Any]:
    """A credential as the older API tells it."""
    kinds = {"s3": "aws_temp_credentials", "azure": "azure_user_delegation_sas", "gcs": "gcp_oauth_token"}
    told = {"url": credential["prefix"], "expiration_time": credential.get("expiration-time-ms")}
    for key, value in credential["config"].items():
        store, _, name = key.partition(".")
        told[kinds[store]] = {**told.get(kinds[store], {}), name.replace("-", "_"): value}
    return {key: value for key, value in told.items() if value is not None}


class _Handler(BaseHTTPRequestHandler):
    server: UnityServer
    protocol_version = "HTTP/1.1"
    # Otherwise the body waits for the client to acknowledge the headers.
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        target = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = dict(parse_qsl(target.query, keep_blank_values=True))
        self.server.requests.append(f"{self.command} {self.path}")
        request = Request(self.command, target.path, query, headers, body)
        answer = self.server.answer(request) if self.server.answer else None
        self._send(answer or self.server.reply(request))

    do_GET = do_POST = _serve

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        body, headers = answer.body, {"Content-Type": "application/json", **answer.headers}
        if isinstance(body, Iterator):
            headers["Connection"] = "close"
        else:
            body = [body if isinstance(body, bytes) else json.dumps(body).encode()]
            headers["Content-Length"] = str(len(body[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        # Who was sent too much may have gone.
        with suppress(ConnectionError):
            self.wfile.writelines(body)

    def handle(self) -> None:
        # A client may be killed.
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def unity_server() -> Iterator[UnityServer]:
    with UnityServer() as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
