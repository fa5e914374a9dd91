"""What the commands say of catalogs of Delta tables. Their tables are external ones, and nothing needs a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from tests.kit.daemons import write_config
from tests.kit.handmade import HandmadeTable, new_uuid
from tests.kit.invoke import invoke
from tests.kit.unity import Answer, UnityServer, UnityTable, unity_server

ODD = "größe %41 'x' \"y\" [z]"
OTHERS = {
    "view": ("VIEW", None),
    "fresh": ("MATERIALIZED_VIEW", None),
    "csv": ("EXTERNAL", "CSV"),
    "theirs": ("FOREIGN", "SNOWFLAKE_FORMAT"),
    "shared": ("MANAGED", "DELTASHARING"),
    "streamed": ("STREAMING_TABLE", "DELTA"),
}


@pytest.fixture
def unity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityServer]:
    """It has `orders`, `items` and a table of an odd name, and what is no Delta table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVSYNC_CONFIG", raising=False)
    with unity_server() as server:
        for schema, name in (("sales", "orders"), ("sales", "items"), ("sales_eu", ODD)):
            table = HandmadeTable(tmp_path / "lake" / str(new_uuid()))
            table.create()
            table.commit([table.add(table.write_file([(1, "x", "v")]))])
            server.tables["main", schema, name] = UnityTable(str(new_uuid()), table.location, table_type="EXTERNAL")
        for name, (kind, data_format) in OTHERS.items():
            server.tables["main", "sales", name] = UnityTable(name, "", table_type=kind, data_source_format=data_format)
        yield server


@pytest.fixture
def in_variables(unity: UnityServer, monkeypatch: pytest.MonkeyPatch) -> UnityServer:
    """What `dvsync init` gets to know of it."""
    for key, value in (
        ("TYPE", "unity"),
        ("URI", unity.url),
        ("TOKEN", unity.token),
        ("OAUTH2_SERVER_URI", "http://o"),
    ):
        monkeypatch.setenv(f"DVSYNC_SOURCES__PROD__{key}", value)
    return unity


def configured(unity: UnityServer, *sources: str, **more: str) -> None:
    tables = [{"source": each, "target": "lake.{table}"} for each in sources]
    source = {"type": "unity", "uri": unity.url, "token": unity.token, **more}
    defaults = {"engine": "local"}
    write_config(Path("config.yaml"), sources={"prod": source}, tables=tables, defaults=defaults)


def dvsync(*words: str) -> Result:
    return invoke(words)


def test_doctor_counts_what_is_no_delta_table(unity: UnityServer) -> None:
    """In one line that is no fault, and without a request more than the listing."""
    configured(unity, "prod:main.sales.*", "prod:main.sales.orders")
    done = dvsync("doctor")
    assert done.exit_code == 0, done.output
    assert "2 of 2 tables can be followed." in done.output
    line = "source prod: passed over 2 views, 2 shared or foreign tables, 1 CSV table, 1 streaming table"
    assert [each for each in done.output.splitlines() if "source prod" in each] == [line]
    asked = [each.partition("unity-catalog/")[2].partition("?")[0] for each in unity.requests]
    assert sorted(each for each in asked if not each.startswith("delta/")) == ["tables", "tables/main.sales.orders"]
    assert json.loads(dvsync("doctor", "--json").output)["passed_over"]["prod:main.sales.theirs"] == (
        "shared or foreign table"
    )
    del unity.tables["main", "sales", "orders"], unity.tables["main", "sales", "items"]
    configured(unity, "prod:main.sales.*")
    done = dvsync("doctor")
    assert (done.exit_code, done.output.splitlines()) == (0, ["0 of 0 tables can be followed.", line])


def test_a_name_of_what_is_no_delta_table_is_a_fault(unity: UnityServer) -> None:
    """Who names it wants it. A missing one, and a missing schema, are named, too."""
    for name, says in (
        ("main.sales.view", "main.sales.view in the catalog prod is no Delta table (view)"),
        ("main.sales.nothing", "the catalog prod has no main.sales.nothing"),
        ("main.nowhere.*", "the catalog prod has no main.nowhere.*"),
    ):
        configured(unity, f"prod:{name}")
        done = dvsync("doctor")
        assert (done.exit_code, says in done.output) == (1, True), done.output


def test_a_schema_that_is_dropped_while_tables_are_listed(unity: UnityServer) -> None:
    """The tables of the other schemas are still there."""
    configured(unity, "prod:main.sales*.*")
    unity.answer = lambda request: Answer(404) if request.query.get("schema_name") == "sales_eu" else None
    done = dvsync("doctor")
    assert (done.exit_code, "2 of 2 tables can be followed." in done.output) == (0, True), done.output


def test_config_check_tries_each_source(unity: UnityServer) -> None:
    configured(unity, "prod:main.sales.orders", "prod:main.sales*.*")
    done = dvsync("config", "check", "--connect")
    lines = done.stdout.splitlines()
    assert "tables: 1, patterns: 1" in lines
    assert "source prod: answers; 2 tables found" in lines
    assert "table lake.orders: prod:main.sales.orders is a Delta table" in lines
    assert not [line for line in lines if "readers need both" in line], "a name is no place"
    (fault,) = [number for number, line in enumerate(lines) if line.startswith(f"prod:main.sales_eu.{ODD}: the name ")]
    assert lines[fault + 1] == "  Give it an entry of its own, rename it, or exclude it from the pattern."
    assert done.exit_code == 1
    configured(unity)
    assert "source prod: answers; 0 tables found" in dvsync("config", "check", "--connect").stdout


@pytest.mark.parametrize(
    ("status", "says", "hint"),
    [
        (401, "the catalog prod refuses the token (401)", "Check the token under sources.prod, and"),
        (503, "the catalog prod answers with status 503", "Check sources.prod.uri, and"),
        (None, "the catalog prod does not answer: ", "Check sources.prod.uri, the network and the server."),
    ],
)
def test_a_catalog_that_cannot_be_asked_is_told_once(
    unity: UnityServer, status: int | None, says: str, hint: str
) -> None:
    """By each command, whatever it has; and no secret."""
    configured(
        unity, "prod:main.sales.orders", "prod:main.sales*.*", **({} if status else {"uri": "http://127.0.0.1:1"})
    )
    unity.answer = lambda _: Answer(status or 500)
    for words, code in ((("config", "check", "--connect"), 1), (("sync",), 1), (("status",), 0)):
        done = dvsync(*words)
        assert (done.exit_code, done.output.count(says), done.output.count(hint)) == (code, 1, 1), done.output
        assert unity.token not in done.output
        assert " after " not in done.output, "else each try has a text of its own"
    assert dvsync("doctor").exit_code == 1


def test_init_of_a_catalog(in_variables: UnityServer) -> None:
    """The file needs the token's variable, and has all else; what a pattern leaves out has an entry of its own."""
    done = dvsync("init", "prod:main.sales*.*", "prod:main.sales.orders")
    assert done.exit_code == 0, done.output
    assert "Tables: 3 can be followed." in done.output
    assert "source prod: passed over 2 views" in done.output
    assert "dvsync needs them whenever it runs: DVSYNC_SOURCES__PROD__TOKEN.\n" in done.output
    written = Path("config.yaml").read_text()
    assert in_variables.token not in written
    with pytest.MonkeyPatch.context() as patch:
        for key in ("TYPE", "URI", "OAUTH2_SERVER_URI"):
            patch.delenv(f"DVSYNC_SOURCES__PROD__{key}")
        patch.setenv("DVSYNC_DEFAULTS__ENGINE", "local")
        done = dvsync("config", "check", "--connect")
        assert (done.exit_code, "source prod: answers; 3 tables found" in done.output) == (0, True), done.output
        done = dvsync("sync")
        assert done.exit_code == 0, done.output
        shown = {each["source_table"]: each["target"] for each in json.loads(dvsync("status", "--json").output)}
    assert shown == {
        "prod:main.sales.items": "sales.items",
        "prod:main.sales.orders": "sales.orders",
        f"prod:main.sales_eu.{ODD}": "sales_eu.größe_41_x_y_z",
    }
    done = dvsync("show", "sales.orders")
    assert "\n  source    prod:main.sales.orders, at file://" in done.output


@pytest.mark.parametrize(
    ("place", "code", "says"),
    [
        ("prod:main.sales", 2, "prod:main.sales: name catalog, schema and table, joined by dots"),
        ("dev:main.sales.*", 2, "dev:main.sales.*: there is no 'dev' under sources (prod)"),
        ("prod:main.empty.*", 1, "the catalog prod has no main.empty.*"),
        ("prod:main.sales.view", 1, "main.sales.view in the catalog prod is no Delta table (view)"),
        ("prod:main.sales.*", 1, "the catalog prod refuses the token (401)"),
    ],
)
def test_init_of_what_is_not_there(
    in_variables: UnityServer, monkeypatch: pytest.MonkeyPatch, place: str, code: int, says: str
) -> None:
    if "401" in says:
        monkeypatch.setenv("DVSYNC_SOURCES__PROD__TOKEN", "another-token")
    done = dvsync("init", place)
    assert (done.exit_code, says in done.output) == (code, True), done.output
    assert not Path("config.yaml").exists()
    assert "another-token" not in done.output
