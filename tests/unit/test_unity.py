"""The tests' Unity Catalog says what `api/delta.yaml` and `api/all.yaml` describe, and what a test wants instead."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.kit.unity import BASE, TOKEN_PATH, Answer, Request, StagedCommit, UnityServer, UnityTable, unity_server

ID = "5b7f3f6c-2f0a-4e5b-9e5f-000000000001"
TABLE = "/delta/v1/catalogs/main/schemas/sales/tables/orders"
LOCATION = "s3://bucket/orders"


class Described(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    """A schema of `api/delta.yaml`: its required properties, and those that the server may leave out."""


class DeltaCommit(Described):
    version: int
    timestamp: int
    file_name: str
    file_size: int
    file_modification_timestamp: int


class StructType(Described):
    type: str
    fields: list[dict[str, Any]]


class TableMetadata(Described):
    etag: str
    table_type: str
    table_uuid: UUID
    location: str
    created_time: int
    updated_time: int
    columns: StructType
    properties: dict[str, str]


class LoadTable(Described):
    metadata: TableMetadata
    commits: list[DeltaCommit] = []
    latest_table_version: int | None = None


class CatalogConfig(Described):
    endpoints: list[str]
    protocol_version: str


class StorageCredential(Described):
    prefix: str
    operation: str
    config: dict[str, str]
    expiration_time_ms: int


class Credentials(Described):
    storage_credentials: list[StorageCredential]


class ErrorModel(Described):
    message: str
    type: str
    code: int


class ErrorResponse(Described):
    error: ErrorModel


class Before(msgspec.Struct, forbid_unknown_fields=True):
    """A schema of `api/all.yaml`."""


class CommitInfo(Before):
    version: int
    timestamp: int
    file_name: str
    file_size: int
    file_modification_timestamp: int


class GetCommits(Before):
    commits: list[CommitInfo]
    latest_table_version: int


class TableInfo(Before):
    catalog_name: str
    schema_name: str
    name: str
    table_id: UUID
    table_type: str
    properties: dict[str, str]
    created_at: int
    updated_at: int
    data_source_format: str | None = None
    storage_location: str | None = None


class ListTables(Before):
    tables: list[TableInfo]
    next_page_token: str | None = None


class AwsCredentials(Before):
    access_key_id: str
    secret_access_key: str
    session_token: str


class TemporaryCredentials(Before):
    url: str
    expiration_time: int
    aws_temp_credentials: AwsCredentials


@pytest.fixture
def unity() -> Iterator[UnityServer]:
    with unity_server() as server:
        server.tables["main", "sales", "orders"] = UnityTable(ID, LOCATION)
        yield server


def ask(unity: UnityServer, path: str, body: Any = None, *, method: str | None = None, token: str = "") -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token or unity.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{unity.url}{BASE}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: bytes = answer.read()
        return found


def refusal(unity: UnityServer, path: str, *, token: str = "") -> tuple[int, bytes]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(unity, path, token=token)
    with caught.value as error:
        return error.code, error.read()


def commits(*versions: int) -> list[StagedCommit]:
    return [StagedCommit(version, 1000 + version, f"{version:020d}.{ID}.json", 10, 2000) for version in versions]


def test_delta_api(unity: UnityServer) -> None:
    """A table has all commits that are not published, the newest first, and its credentials are asked for apart."""
    told = msgspec.json.decode(ask(unity, "/delta/v1/config?catalog=main&protocol-versions=1.0"), type=CatalogConfig)
    assert "GET /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}" in told.endpoints
    table = unity.tables["main", "sales", "orders"]
    table.commits, table.latest_version = commits(*range(3, 16)), 15
    loaded = msgspec.json.decode(ask(unity, TABLE), type=LoadTable)
    assert [commit.version for commit in loaded.commits] == list(range(15, 2, -1)) and loaded.latest_table_version == 15
    assert loaded.metadata.table_uuid == UUID(ID)
    config = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.session-token": "t"}
    table.credentials = [{"prefix": LOCATION, "config": config, "expiration-time-ms": 5}]
    vended = msgspec.json.decode(ask(unity, f"{TABLE}/credentials?operation=READ"), type=Credentials)
    assert vended.storage_credentials == [StorageCredential(LOCATION, "READ", config, 5)]
    before = ask(unity, "/temporary-table-credentials", {"table_id": ID, "operation": "READ"})
    told_before = msgspec.json.decode(before, type=TemporaryCredentials)
    assert told_before == TemporaryCredentials(LOCATION, 5, AwsCredentials("k", "s", "t"))
    assert unity.requests[1] == f"GET {BASE}{TABLE}"


def test_older_api(unity: UnityServer) -> None:
    """At most ten commits come at once, the oldest of those that were asked for; a server may have no other API."""
    unity.has_delta_api = False
    assert refusal(unity, "/delta/v1/config?catalog=main&protocol-versions=1.0")[0] == 404
    table = unity.tables["main", "sales", "orders"]
    table.commits, table.latest_version = commits(*range(3, 16)), 15
    found: list[int] = []
    start = 0
    while not found or max(found) < 15:
        asked = {"table_id": ID, "table_uri": LOCATION, "start_version": start}
        # Unlike other GETs this one has a body.
        told = msgspec.json.decode(ask(unity, "/delta/preview/commits", asked, method="GET"), type=GetCommits)
        assert told.latest_table_version == 15 and len(told.commits) <= 10
        found += sorted(commit.version for commit in told.commits)
        start = found[-1] + 1
    assert found == list(range(3, 16))


def test_listing_by_pages(unity: UnityServer) -> None:
    """Pages are in the order of names; behind a full last page there is an empty one."""
    unity.page_max = 2
    for name in ("d", "b", "c"):
        unity.tables["main", "sales", name] = UnityTable(ID, LOCATION)
    unity.tables["main", "sales", "view"] = UnityTable(ID, "", table_type="VIEW", data_source_format=None)
    unity.tables["main", "b", "t"] = unity.tables["other", "b", "t"] = UnityTable(ID, LOCATION)
    found, token = [], ""
    while True:
        query = f"catalog_name=main&schema_name=sales&page_token={token}"
        page = msgspec.json.decode(ask(unity, f"/tables?{query}"), type=ListTables)
        found.append([table.name for table in page.tables])
        if page.next_page_token is None:
            break
        token = page.next_page_token
    assert found == [["b", "c"], ["d", "orders"], ["view"]]
    del unity.tables["main", "sales", "view"]
    page = msgspec.json.decode(
        ask(unity, "/tables?catalog_name=main&schema_name=sales&page_token=orders"), type=ListTables
    )
    assert page == ListTables([])
    names = [each["name"] for each in json.loads(ask(unity, "/schemas?catalog_name=main"))["schemas"]]
    assert names == ["b", "sales"]
    assert [each["name"] for each in json.loads(ask(unity, "/catalogs"))["catalogs"]] == ["main", "other"]
    assert msgspec.json.decode(ask(unity, "/tables/main.sales.b"), type=TableInfo).name == "b"


def test_refusals(unity: UnityServer) -> None:
    """Errors have the form of their API; nothing is said without the token, which a client's secret gives."""
    code, body = refusal(unity, f"{TABLE}2")
    assert msgspec.json.decode(body, type=ErrorResponse).error.type == "NoSuchTableException" and code == 404
    assert json.loads(refusal(unity, "/tables/main.sales.none")[1])["error_code"] == "TABLE_NOT_FOUND"
    assert (
        json.loads(refusal(unity, "/tables?catalog_name=main&schema_name=none")[1])["error_code"] == "SCHEMA_NOT_FOUND"
    )
    unity.tables["main", "sales", "csv"] = UnityTable(ID, LOCATION, data_source_format="CSV")
    assert refusal(unity, TABLE.replace("orders", "csv"))[0] == 400
    assert refusal(unity, TABLE, token="other") == refusal(unity, f"{TABLE}2", token="other")
    assert refusal(unity, "/catalogs", token="other")[0] == 401
    form = urllib.parse.urlencode({"grant_type": "client_credentials", "scope": "all-apis"}).encode()
    secret = base64.b64encode(b"client:client-secret").decode()
    request = urllib.request.Request(unity.url + TOKEN_PATH, form, {"Authorization": f"Basic {secret}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer)["access_token"] == unity.token


def test_other_answers(unity: UnityServer) -> None:
    """A test answers anything instead, and sees what was asked."""
    seen: list[Request] = []

    def answer(request: Request) -> Answer | None:
        seen.append(request)
        return Answer(429, {"error": {}}, {"Retry-After": "7"}) if "orders" in request.path else None

    unity.answer = answer
    assert refusal(unity, TABLE)[0] == 429
    assert ask(unity, "/catalogs?max_results=1")
    assert (seen[0].parts[-1], seen[1].query) == ("orders", {"max_results": "1"})
    unity.answer = lambda _: Answer(200, iter([b"[" * 1000] * 1000))
    assert ask(unity, TABLE) == b"[" * 1_000_000
