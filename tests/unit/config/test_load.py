from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemon.config.load import load_settings
from daemon.config.settings import DefaultsSettings, HealthSettings, LimitsSettings, Settings, TableSettings
from daemon.errors import ConfigInvalid
from daemon.iceberg.catalogs import Catalogs, with_auth
from daemon.masking import masked
from tests.kit.keys import render_keys

ONE_CATALOG = 'catalogs: {local: {type: sql, uri: "sqlite:///var/catalog.db", warehouse: var/warehouse}}\n'
SHIPPED = Path(__file__).parents[3] / "config.yaml"


@pytest.fixture
def load(tmp_path: Path):
    def load_text(text: str) -> Settings:
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return load_settings(path, ask_pyiceberg=True)

    return load_text


def faults_of(load, text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as raised:
        load(text)
    return str(raised.value).splitlines()


def test_the_shipped_file_is_valid_and_says_the_defaults():
    """config.yaml as it comes is read without a fault, and what it writes out is what holds without it."""
    settings = load_settings(SHIPPED, ask_pyiceberg=True)
    assert [table.name for table in settings.tables] == ["sales.orders"]
    assert settings.limits == LimitsSettings()
    assert settings.health == HealthSettings()
    assert settings.defaults == DefaultsSettings(catalog="local")


def test_paths_are_relative_to_the_file(load, tmp_path):
    """State, catalog, warehouse, source and locations become absolute, wherever the process was started."""
    settings = load(
        ONE_CATALOG
        + "tables: [{source: data/../data/orders/, target: a.b, location: ice, delete_files_location: /del}]"
    )
    assert settings.state.url == f"sqlite:///{tmp_path}/var/dvsync.db"
    assert settings.state.sqlite_file == tmp_path / "var/dvsync.db"
    assert settings.catalogs["local"]["uri"] == f"sqlite:///{tmp_path}/var/catalog.db"
    assert settings.catalogs["local"]["warehouse"] == f"file://{tmp_path}/var/warehouse"
    assert settings.tables[0].source == f"file://{tmp_path}/data/orders"
    assert settings.tables[0].location == f"file://{tmp_path}/ice"
    assert settings.tables[0].delete_files_location == "file:///del"


def test_remote_places_stay_as_they_are(load):
    """URIs, a REST catalog's warehouse name, other databases and SQLite in memory are nobody's relative paths."""
    settings = load(
        "state: {url: 'sqlite:///:memory:'}\n"
        "catalogs: {rest: {uri: 'https://host/x', warehouse: prod}, pg: {type: sql, uri: 'postgresql://h/d'}}\n"
        "tables: [{source: 's3://bucket/orders/', target: a.b, catalog: rest}]"
    )
    assert settings.state.sqlite_file is None
    assert settings.catalogs["rest"]["warehouse"] == "prod"
    assert settings.catalogs["pg"]["uri"] == "postgresql://h/d"
    assert settings.tables[0].source == "s3://bucket/orders"


def test_a_table_overrides_defaults_key_by_key(load):
    """What a table writes holds for it, the rest comes from the shared sections; the name is the target."""
    settings = load(
        ONE_CATALOG + "maintenance: {snapshots_max: 7}\n"
        "defaults: {poll_interval: 2s, engine: local, deletes: 12.5%}\n"
        "tables:\n"
        "- {source: x, target: a.b, name: orders, poll_interval: 1m30s, engine: spark,\n"
        "  maintenance: {steps: [compact, cleanup]}}\n"
        "- {source: y, target: a.c}\n"
    )
    first, second = settings.tables
    assert (first.name, first.poll_interval_s, first.engine) == ("orders", 90.0, "spark")
    assert (first.maintenance.steps, first.maintenance.snapshots_max) == (("compact", "cleanup"), 7)
    assert (second.name, second.poll_interval_s, second.engine) == ("a.c", 2.0, "local")
    assert (second.may_delete, second.foreign_deletes_max) == (True, 0.125)
    assert first.catalog == second.catalog == "local"


def test_the_environment_overrides_the_file(load, monkeypatch):
    """DVSYNC_… with __ between the levels; JSON where a key cannot be a variable's name."""
    monkeypatch.setenv("DVSYNC_HEALTH__PORT", "9000")
    monkeypatch.setenv("DVSYNC_DEFAULTS__POLL_INTERVAL", "3s")
    monkeypatch.setenv("DVSYNC_STORAGE", '{"s3.endpoint": "http://s3"}')
    settings = load(ONE_CATALOG + "health: {port: 8000, host: '::1'}\ntables: [{source: x, target: a.b}]")
    assert (settings.health.port, settings.health.host) == (9000, "::1")
    assert settings.tables[0].poll_interval_s == 3.0
    assert settings.storage == {"s3.endpoint": "http://s3"}


def test_a_misspelt_variable_is_a_fault_but_not_what_kubernetes_makes(load, monkeypatch):
    """A service called dvsync puts DVSYNC_PORT and its like into every pod."""
    monkeypatch.setenv("DVSYNC_PORT", "tcp://10.0.0.1:8080")
    monkeypatch.setenv("DVSYNC_SERVICE_HOST", "10.0.0.1")
    load(ONE_CATALOG)
    monkeypatch.setenv("DVSYNC_HELTH__PORT", "9000")
    assert faults_of(load, ONE_CATALOG) == ["DVSYNC_HELTH__PORT (environment): no such setting"]


def test_a_faulty_variable_is_told_with_its_place(load, monkeypatch):
    """What the environment says is checked like the file."""
    monkeypatch.setenv("DVSYNC_HEALTH__PORT", "70000")
    assert faults_of(load, ONE_CATALOG)[0].startswith("health.port: ")
    monkeypatch.setenv("DVSYNC_HEALTH__PROT", "70000")
    both = faults_of(load, ONE_CATALOG + "tables: [{source: 3}]\n")
    assert [fault.partition(": ")[0] for fault in both] == [
        "tables[0].source",
        "tables[0].target",
        "health.port",
        "health.prot",
    ]
    monkeypatch.setenv("DVSYNC_TABLES", "[{")
    assert "tables" in faults_of(load, ONE_CATALOG)[0]
    monkeypatch.setenv("DVSYNC_TABLES", '[{"source": 3}]')
    for text in (ONE_CATALOG, ONE_CATALOG + "tables:\n"):
        assert "tables[0].source" in [fault.partition(": ")[0] for fault in faults_of(load, text)]


def test_every_fault_is_told_at_once(load):
    """One line for each fault, with its place; faults of one part do not hide those between the others."""
    text = """
_env_file: x
catalogs:
  local: {type: sql, uri: "sqlite:///var/catalog.db"}
health: {port: 99999, bogus: 1}
health: {port: 99999, bogus: 1}
defaults: {catalog: nowhere}
tables:
- {source: data/orders, target: sales.orders, catalog: local, delete_files_location: data/orders/x}
- {source: data/orders, target: sales.orders, catalog: local, location: data/orders/_x/y}
- {source: s3://b/x/, target: sales, poll_interval: soon, engine: jvm, format_version: 4}
- {target: a.b, maintenance: {snapshots_max: -1}}
- {source: x, target: a.b2, name: sales.orders, catalog: elsewhere}
"""
    faults = faults_of(load, text)
    places = [fault.partition(": ")[0] for fault in faults]
    assert places == [
        "health",
        "tables[2].poll_interval",
        "tables[2].engine",
        "tables[2].format_version",
        "tables[2].target",
        "tables[3].source",
        "tables[3].maintenance.snapshots_max",
        "health.port",
        "health.bogus",
        "_env_file",
        "catalogs.local.warehouse",
        "defaults.catalog",
        "tables[4].catalog",
        "tables[1].target",
        "tables[4].name",
        "tables[0].delete_files_location",
    ]


def test_readers_are_programs_that_are_known(load):
    """By default those that are tested; a table may have others than the defaults."""
    text = (
        ONE_CATALOG
        + "defaults: {readers: %s}\ntables: [{source: x, target: a.b, readers: %s}, {source: y, target: a.c}]"
    )
    first, second = load(text % ("[spark, trino]", "[duckdb]")).tables
    assert (first.readers, second.readers) == (("duckdb",), ("spark", "trino"))
    unknown, empty = faults_of(load, text % ("[spark, sparkk]", "[]"))
    assert unknown.startswith("defaults.readers[1]: input should be 'spark', 'pyiceberg', 'polars', 'duckdb', ")
    assert empty == "tables[0].readers: is an empty list: leave the key out, or write something into it"


def test_a_faulty_key_hides_no_other_fault_of_its_section(load):
    """Only the key itself is left out; what depends on it is not checked."""
    text = """
catalogs: {local: {type: sql, uri: "sqlite:///var/catalog.db"}}
defaults: {catalog: locl, poll_interval: soon}
health: {prot: 1, token: short}
hooks: [{url: "http://127.0.0.1/", events: [parkd]}]
tables:
- {source: x, target: a.b}
"""
    faults = faults_of(load, text)
    assert [fault.partition(": ")[0] for fault in faults] == [
        "defaults.poll_interval",
        "health.prot",
        "hooks[0].events[0]",
        "health.token",
        "defaults.catalog",
    ]
    assert faults[2].startswith("hooks[0].events[0]: input should be 'parked', ")


def test_a_faulty_entry_of_a_list_hides_no_fault_of_the_others(load):
    """And each keeps its own place."""
    text = ONE_CATALOG + (
        "hooks: [{url: 'https://h/', events: [parkd]}, {ulr: x}, {url: 'https://h/'}, {url: {env: NOWHERE}},\n"
        "  {url: 'ftp://h/'}, {url: 'https://h/', command: [x]}, {command: [x], format: openlineage, events: [gone]}]\n"
    )
    assert [fault.partition(": ")[0] for fault in faults_of(load, text)] == [
        "hooks[0].events[0]",
        "hooks[1].ulr",
        "hooks[5]",
        "hooks[6]",
        "hooks[3].url",
        "hooks[4].url",
    ]


def test_a_misspelt_key_is_told_with_the_nearest_one(load):
    """In sections, tables and lists, at every depth; a key that is like no other is just unknown."""
    text = ONE_CATALOG + (
        "maintainance: {}\nhealth: {prot: 1}\nhooks: [{ulr: x}]\n"
        "tables: [{source: x, target: a.b, poll_intervall: 1s, verify: {levle: rows}, zzz: 1}]\n"
    )
    assert sorted(fault for fault in faults_of(load, text) if "unknown key" in fault) == [
        "health.prot: unknown key, did you mean port?",
        "hooks[0].ulr: unknown key, did you mean url?",
        "maintainance: unknown key, did you mean maintenance?",
        "tables[0].poll_intervall: unknown key, did you mean poll_interval?",
        "tables[0].verify.levle: unknown key, did you mean level?",
        "tables[0].zzz: unknown key",
    ]


def test_a_token_that_could_be_guessed_is_a_fault(load):
    assert faults_of(load, ONE_CATALOG + "health: {token: short}") == [
        "health.token: is shorter than 16 characters; `openssl rand -hex 32` makes a good one"
    ]
    assert "12345" not in faults_of(load, ONE_CATALOG + "health: {token: 12345}")[0]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("health: {token: abcdefghijklmnopé}", "health.token"),
        ("hooks: [{url: 'https://h/secret x'}]", "hooks[0].url"),
        ("hooks: [{url: 'https://h/sécret'}]", "hooks[0].url"),
        ("hooks: [{url: 'https://'}]", "hooks[0].url"),
        ("hooks: [{url: 'https://user:secret@h/'}]", "hooks[0].url"),
        ("hooks: [{url: 'ftp://h/secret'}]", "hooks[0].url"),
        (
            'hooks: [{url: "https://h/", headers: {authorization: "Bearer secret\\n"}}]',
            "hooks[0].headers.authorization",
        ),
    ],
)
def test_what_http_cannot_send_is_told_without_showing_it(load, text, place):
    """At the first notice, the HTTP client would quote it in its error."""
    (fault,) = faults_of(load, ONE_CATALOG + text)
    assert fault.startswith(f"{place}: ") and "cret" not in fault


def test_a_missing_extra_is_named(load, monkeypatch):
    """Only if it is switched on, and without an import of it."""
    monkeypatch.setattr("daemon.config.checks.distributions", lambda name: [])
    assert faults_of(load, ONE_CATALOG + "hooks: [{url: 'http://h/'}, {url: 'http://h/', format: openlineage}]\n") == [
        "hooks[1].format: needs openlineage-python: install the extra `lineage` of dvsync's wheel"
    ]
    catalogs = "catalogs: {h: {type: hive, uri: 'host:9083'}, g: {type: glue}}\n"
    assert faults_of(load, catalogs) == [
        "catalogs.h.type: needs thrift: install the extra `hive` of dvsync's wheel",
        "catalogs.h.uri: does not begin with thrift://",
        "catalogs.g.type: needs boto3: install the extra `glue` of dvsync's wheel",
    ]


def test_secrets_of_hooks_are_masked(load):
    settings = load(ONE_CATALOG + "hooks: [{url: 'http://h/hidden-2', headers: {Authorization: hidden-3}}]\n")
    assert {"http://h/hidden-2", "hidden-3"} <= settings.secrets()


@pytest.mark.parametrize("who", ["10", "0.1", "ten%", "0%", "101%", "-1%", "true", "null", "both"])
def test_who_deletes_is_told_by_a_word_or_a_share(load, who):
    faults = faults_of(load, f"{ONE_CATALOG}defaults: {{deletes: {who}}}")
    assert [fault.partition(": ")[0] for fault in faults] == ["defaults.deletes"]


@pytest.mark.parametrize("duration", ["10", "10.5", "soon", "''", "-5s", "0s", "2d", "null"])
def test_a_duration_needs_a_unit_and_sane_bounds(load, duration):
    """A bare number is refused, since nobody can see its unit."""
    faults = faults_of(load, f"{ONE_CATALOG}defaults: {{poll_interval: {duration}}}")
    assert [fault.partition(": ")[0] for fault in faults] == ["defaults.poll_interval"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("health: {on: 1}", "health: has a key that is not a text. YAML reads on,"),
        ("catalogs: {2: x}", "catalogs"),
        ("catalogs: {local: {on: x}}", "catalogs.local: has a key that is not a text."),
        ("storage: {s3.access-key-id: AK, on: [hidden]}", "storage"),
        ("Health: {port: 9001}", "Health: unknown key, did you mean health?"),
        ("SHARE: 9/2", "SHARE: unknown key, did you mean share?"),
        ("health: {port: !!timestamp x}", "the file contains an invalid date, number or tag"),
    ],
)
def test_keys_that_are_no_keys(load, text, fault):
    """Each is a fault, of which no value is shown. Pydantic would take a capital letter for a small one."""
    faults = "\n".join(faults_of(load, text))
    assert fault in faults and "hidden" not in faults


def test_anchors_are_read_once(load):
    """However often they are used: eleven lines could stand for a billion nodes."""
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]
    assert "a8: unknown key" in faults_of(load, "\n".join(lines))


def test_variables_that_are_no_json_hide_no_other_fault(load, monkeypatch):
    monkeypatch.setenv("DVSYNC_SPARK__CONF", "{")
    monkeypatch.setenv("DVSYNC_LIMITS", "{")
    assert sorted(faults_of(load, "log: {level: loud}"))[0::2] == [
        "limits: the value of DVSYNC_LIMITS (environment) is not JSON",
        "spark: the value of DVSYNC_SPARK__CONF (environment) is not JSON",
    ]


def test_two_patterns_of_one_folder(load):
    """The first leaves nothing to the second, unless it excludes something."""
    text = (
        ONE_CATALOG + "tables:\n- {source: 'lake/*', target: 'a.{name}'%s}\n- {source: 'lake/*/', target: 'b.{name}'}\n"
    )
    load(text % ", exclude: [tmp]")
    assert faults_of(load, text % "") == [
        "tables[1].source: tables[0] has the same pattern, and leaves no table to this one"
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("- a\n- b\n", "must be a mapping"),
        ("a: [1, 2\nb: 3\n", "line 2, column 2: the '[' of line 1 is not closed before here, or a comma is missing"),
        ("tables: &x [*x]\n", "tables[0]: "),
        ("a: !!python/object/apply:os.system ['true']\n", "line 1, column 4"),
        ("a: \x00", "the file is not UTF-8 text"),
    ],
)
def test_a_document_that_is_none_is_told_apart(load, text, words):
    """Empty, not a mapping, or not YAML: the line and column where there is one."""
    assert words in "\n".join(faults_of(load, text))


def test_the_section_auth_of_a_catalog(load, monkeypatch, tmp_path):
    """PyIceberg gets it as a section again; in between, its keys have dots, as those of variables."""
    monkeypatch.setenv("NAMED", "hidden-1")
    monkeypatch.setenv("DVSYNC_CATALOGS__C__AUTH__OAUTH2__CLIENT_ID", "me")
    auth = "{type: oauth2, oauth2: {client_secret: {env: NAMED}, token_url: 'http://h/t', expires_in: 60}}"
    settings = load(f"catalogs: {{c: {{type: rest, uri: 'http://h', auth: {auth}}}}}")
    properties = settings.catalogs["c"]
    assert properties["auth.oauth2.client_id"] == "me"
    assert with_auth(properties)["auth"] == {
        "type": "oauth2",
        "oauth2": {"client_id": "me", "client_secret": "hidden-1", "token_url": "http://h/t", "expires_in": 60},
    }
    assert settings.secrets() == {"hidden-1"}
    monkeypatch.delenv("DVSYNC_CATALOGS__C__AUTH__OAUTH2__CLIENT_ID")
    scopes = load("catalogs: {d: {type: rest, uri: 'http://h', auth: {type: google, google: {scopes: [a, b]}}}}")
    assert with_auth(scopes.catalogs["d"])["auth"]["google"] == {"scopes": ["a", "b"]}


def test_an_auth_that_cannot_be_is_told(load):
    """PyIceberg knows which kinds there are and what each needs. It says so when the catalog is opened."""
    text = "catalogs: {c: {type: rest, uri: 'http://127.0.0.1:1', auth: %s}}"
    for auth, fault in {
        "basic": "auth: is not a section of keys, such as {type: basic, basic: {username: …}}",
        "": "auth: a property must be a text, a number, true or false",
        "{}": "auth: must be a text, {file: PATH} or {env: NAME}",
        "{type: google, google: {scopes: [{file: x}]}}": "auth.google.scopes: a property must be a text, a number, "
        "true or false",
        "{type: basic, basic: {username: a, password: {file: x, env: X}}}": "auth.basic.password: must be a text, "
        "{file: PATH} or {env: NAME}",
        "{type: basic, basic: {username: a, password: {env: NOWHERE}}}": "auth.basic.password: NOWHERE (environment): "
        "is not set",
    }.items():
        assert faults_of(load, text % auth) == [f"catalogs.c.{fault}"]
    for auth, fault in {
        "{basic: {username: a}}": "auth.type must be defined",
        "{type: basc}": "Could not load AuthManager class for 'basc'",
        "{type: basic, basic: {username: a}}": "missing 1 required positional argument: 'password'",
        "{type: oauth2, oauth2: {expires_in: soon}}": "'soon'",
    }.items():
        with pytest.raises(ConfigInvalid, match=r"catalogs\.c: PyIceberg cannot open it: ") as raised:
            Catalogs(load(text % auth).catalogs).open("c")
        assert fault in str(raised.value)


def test_a_catalog_that_cannot_be_is_told(load):
    """Without asking anybody: a kind that PyIceberg does not have, a misspelt property, no place for an SQL catalog."""
    text = "catalogs: {local: %s}\ntables: [{source: x, target: a.b}]"
    assert faults_of(load, text % '{type: sqll, uri: "sqlite:///c.db", warehose: wh}') == [
        "catalogs.local.type: PyIceberg has no such catalog type; it has "
        "rest, hive, glue, dynamodb, sql, in-memory, bigquery",
        "catalogs.local.warehose: unknown property, did you mean warehouse?",
    ]
    assert faults_of(load, text % "{type: sql}") == [
        "catalogs.local.uri: is missing; give the SQLAlchemy URL of the catalog's database",
        "catalogs.local.warehouse: is missing, and a.b has no location of its own",
    ]
    placed = "catalogs: {local: {type: SQL, uri: 'sqlite:///c.db'}}\ntables: [{source: x, target: a.b, location: y}]"
    assert load(placed).tables[0].catalog == "local"


def test_misspelt_properties_are_told(load):
    """PyIceberg would ignore them."""
    text = """
state: {url: "sqlite:///state.db"}
storage: {s3.acces-key-id: x, s3.endpoint: http://127.0.0.1}
catalogs:
  a: {type: sql, uri: "sqlite:///c.db", warehouse: wh, urii: x}
  b: {type: rest, uri: "htp://host"}
  d: {type: rest, uri: HTTPS://x, adls.sas-token.account: x}
  c: {type: glue, glue.access-key-id: x, glue.region: y, s3.path-style-access: "true"}
"""
    assert faults_of(load, text) == [
        "catalogs.b.uri: does not begin with http:// or https://",
        "storage.s3.acces-key-id: unknown property, did you mean s3.access-key-id?",
        "catalogs.a.urii: unknown property, did you mean uri?",
    ]
    assert faults_of(load, "state: {url: nonsense}") == [
        "state.url: is not an SQLAlchemy URL, such as sqlite:///var/dvsync.db"
    ]


def test_a_key_that_is_gone_is_told_with_what_replaces_it(load, monkeypatch):
    """In sections, `defaults`, tables and variables. Whatever replaces it is a key."""
    text = ONE_CATALOG + (
        "pipeline: {engine: spark}\nspark: {idle_timeout: 5m}\nlimits: {fold_when_busy: false}\nnotify: []\n"
        "defaults: {delete_granularity: file}\n"
        "tables: [{source: x, target: a.b, maintenance: {history: 7d}, pipeline: {engine: local}}]\n"
    )
    monkeypatch.setenv("DVSYNC_PIPELINE__ENGINE", "spark")
    monkeypatch.setenv("DVSYNC_TELEMETRY__ENDPOINT", "http://127.0.0.1:4318")
    faults = dict(fault.split(": ", 1) for fault in faults_of(load, text))
    engine = "is no longer a key: write `engine` under `defaults` or in the table; "
    assert faults["pipeline"].startswith(engine) and faults["tables[0].pipeline"].startswith(engine)
    assert faults["spark.idle_timeout"] == "is no longer a key: leave it out, dvsync chooses the value"
    assert faults["tables[0].maintenance.history"] == "is no longer a key: leave it out, dvsync chooses the value"
    assert "write.delete.granularity" in faults["defaults.delete_granularity"]
    assert "`one_snapshot_per_version: true`" in faults["limits.fold_when_busy"]
    assert "write `engine` under `defaults`" in faults["DVSYNC_PIPELINE__ENGINE (environment)"]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in faults["DVSYNC_TELEMETRY__ENDPOINT (environment)"]
    assert "`hooks`" in faults["notify"]


def test_there_are_hardly_more_than_fifty_keys():
    """Each is a decision that somebody can make: one more has to be worth another one."""
    sections = render_keys().split("### ")[1:]
    assert sum(max(1, section.count("\n- `")) for section in sections) <= 52


def test_a_missing_file_is_told_with_the_way_out(tmp_path):
    """The hint says how to name another file."""
    with pytest.raises(ConfigInvalid, match="no such file") as raised:
        load_settings(tmp_path / "absent.yaml")
    assert "--config" in raised.value.hint


def test_a_catalog_must_be_named_where_there_are_several(load):
    """With two catalogs and no default, a table has to choose."""
    faults = faults_of(load, "catalogs: {a: {}, b: {}}\ntables: [{source: x, target: a.b}]")
    assert faults == ["tables[0].catalog: is missing; name one of the catalogs (a, b), here or under defaults"]


@pytest.mark.parametrize(
    ("place", "is_cleaned"),
    [
        ("data/orders", True),
        ("data/orders/ice", True),
        ("data/orders/_delta_log/ice", True),
        ("data/orders/_change_data/ice", True),
        ("data/orders/_p=1/ice", True),
        ("data/orders/_ice", False),
        ("data/orders/ice/.hidden/x", False),
        ("data/orders_ice", False),
    ],
)
def test_places_that_vacuum_cleans_are_refused(load, place, is_cleaned):
    """A location, a delete files location or a warehouse inside a Delta table is refused unless VACUUM hides it."""
    tables = "tables: [{source: data/orders, target: a.b}, {source: other, target: a.c, location: %s}]"
    warehouse = 'catalogs: {local: {type: sql, uri: "sqlite:///c.db", warehouse: %s}}\n'
    for text, fault_place in (
        (ONE_CATALOG + tables % place, "tables[1].location"),
        (warehouse % place + tables % "elsewhere", "catalogs.local.warehouse"),
    ):
        if is_cleaned:
            assert [fault.partition(": ")[0] for fault in faults_of(load, text)] == [fault_place]
        else:
            load(text)


def test_locations_of_many_tables_are_not_compared_one_by_one(load, monkeypatch):
    """Each has to be resolved, which asks the disk: twice the tables are twice the questions."""
    asked, follow = [], os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: asked.append(path) or follow(path))
    numbers = []
    for tables in (10, 20):
        load(
            ONE_CATALOG
            + "tables:"
            + "".join(f"\n- {{source: data/{n}, target: a.t{n}, location: ice/{n}}}" for n in range(tables))
        )
        numbers.append(len(asked))
        asked.clear()
    assert 10 < numbers[1] <= 2 * numbers[0]


def test_format_version_3_is_no_fault_of_the_file(load):
    """It parks its table when that syncs; the other tables go on."""
    assert load(ONE_CATALOG + "tables: [{source: x, target: a.b, format_version: 3}]").tables[0].format_version == 3


def test_properties_are_texts(load):
    """YAML's true, 8 and 1.5 are spelled as PyIceberg and Spark expect; anything else is a fault."""
    settings = load("spark: {conf: {a: true, b: 8, c: 1.5, d: x}}")
    assert settings.spark.conf == {"a": "true", "b": "8", "c": "1.5", "d": "x"}
    assert faults_of(load, "storage: {a: [1], b: null}")[0].startswith("storage.a: a property must be")


def test_no_secret_is_printed(load):
    """Keys that name secrets, users in URLs and secret parameters are masked; Azure's containers are not."""
    settings = load(
        "state: {url: 'postgresql://me:pa/ss@host/db?sslpassword=hidden'}\n"
        "catalogs: {c: {uri: 'https://tok@host/x', credential: hidden, s3.secret-access-key: hidden}}\n"
        "storage: {adls.account-key: hidden, warehouse: 'abfss://container@account/x'}\n"
        "spark: {conf: {spark.hadoop.fs.s3a.secret.key: hidden}}\n"
        "tables: [{source: x, target: a.b}]"
    )
    assert settings.secrets() == {"hidden", "me:pa/ss", "pa/ss", "tok", ""}
    assert masked(settings.state.url) == "postgresql://***@host/db?sslpassword=***"
    assert masked(settings.storage["warehouse"]) == "abfss://container@account/x"


def test_a_fault_does_not_repeat_what_may_be_secret(load):
    """Sections that hold credentials are not quoted."""
    faults = faults_of(load, "catalogs: {c: s3cr3t}\nstorage: s3cr3t\nstate: {url: 'me:s3cr3t@host'}")
    assert len(faults) == 3
    assert "s3cr3t" not in "\n".join(faults)


REFERRING = """
state: {url: {file: secrets/url}}
catalogs: {c: {type: sql, uri: {env: CATALOG_URI}, warehouse: {file: secrets/warehouse}}}
storage: {s3.secret-access-key: {file: secrets/key}, s3.region: {env: REGION}}
spark: {conf: {spark.hadoop.x: {file: secrets/key}}}
tables: [{source: x, target: a.b}]
"""


def test_values_come_from_files_and_variables(load, tmp_path, monkeypatch):
    """`{file: …}` and `{env: …}` stand for a text wherever secrets go; the text is like one that was written there."""
    (tmp_path / "secrets").mkdir()
    for name, text in {"url": "sqlite:///own.db\n", "key": "s3cr3t\r\n", "warehouse": "lake"}.items():
        (tmp_path / "secrets" / name).write_bytes(text.encode())
    monkeypatch.setenv("CATALOG_URI", "sqlite:///catalog.db")
    monkeypatch.setenv("REGION", "eu-north-7")
    settings = load(REFERRING)
    assert settings.state.url == f"sqlite:///{tmp_path}/own.db"
    assert settings.catalogs["c"]["uri"] == f"sqlite:///{tmp_path}/catalog.db"
    assert settings.catalogs["c"]["warehouse"] == f"file://{tmp_path}/lake"
    assert settings.storage == {"s3.secret-access-key": "s3cr3t", "s3.region": "eu-north-7"}
    assert settings.spark.conf == {"spark.hadoop.x": "s3cr3t"}
    read = {settings.state.url, *settings.storage.values(), *settings.spark.conf.values()}
    read |= {settings.catalogs["c"]["uri"], settings.catalogs["c"]["warehouse"]}
    assert settings.secrets() == read and masked(settings.state.url) == "***"


def test_references_that_lead_nowhere_are_faults(load, tmp_path):
    """Each is told with its place, and the other faults with them; what was found is not."""
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "no-url").write_text("s3cr3t")
    faults = faults_of(
        load,
        "state: {url: {file: no-url}}\n"
        "catalogs: {c: {uri: {file: missing}, warehouse: {env: UNSET_HERE}, token: {file: empty}}}\n"
        "storage: {a: {file: x, env: y}, b: {path: x}, c: {file: [x]}, d: {}}\n"
        "tables: [{source: x, target: a.b, catalog: other}]",
    )
    assert [fault for fault in faults if not fault.startswith("storage")] == [
        "catalogs.c.uri: missing (file): no such file or directory",
        "catalogs.c.warehouse: UNSET_HERE (environment): is not set",
        "catalogs.c.token: empty (file): is empty",
        "state.url: the text in no-url (file) is not an SQLAlchemy URL",
        "tables[0].catalog: there is no catalog 'other' under catalogs (c)",
    ]
    # A fault of the table's own does not hide that its catalog is missing.
    text = "catalogs: {c: {type: rest, uri: 'http://x'}}\ntables: [{source: x, target: none, catalog: other}]"
    faulty = faults_of(load, text)
    assert len(faulty) == 2 and faulty[1] == "tables[0].catalog: there is no catalog 'other' under catalogs (c)"
    text = "tables: 5\nhealth: {port: abc}\ncatalogs: [c]\ndefaults: {version_hint: 7}"
    assert sorted(faults_of(load, text)) == [
        "catalogs: is not a section of keys",
        "defaults.version_hint: is neither true nor false: 7",
        "health.port: is not a whole number: 'abc'",
        "tables: is not a list: 5",
    ]
    wrong = "must be a text, {file: PATH} or {env: NAME}"
    assert faults[:4] == [f"storage.{key}: {wrong}" for key in "abcd"]


def test_variables_of_properties_can_be_set_in_a_shell(load, tmp_path, monkeypatch):
    """Their dots are `__` and their dashes `_`; they go before the file, and values are taken as they are."""
    (tmp_path / "secret").write_text("s3cr3t\n")
    monkeypatch.setenv("DVSYNC_STORAGE__S3__ACCESS_KEY_ID", "1.50")
    monkeypatch.setenv("DVSYNC_STORAGE__S3__SECRET_ACCESS_KEY__FILE", "secret")
    monkeypatch.setenv("DVSYNC_CATALOGS__LOCAL__S3__SESSION_TOKEN", "{}")
    monkeypatch.setenv("DVSYNC_CATALOGS__LOCAL__INIT_CATALOG_TABLES", "false")
    monkeypatch.setenv("DVSYNC_STATE__URL__FILE", str(tmp_path / "url"))
    (tmp_path / "url").write_text("sqlite:////elsewhere.db")
    settings = load(ONE_CATALOG + "storage: {s3.access-key-id: other, s3.region: r}")
    assert settings.storage == {"s3.access-key-id": "1.50", "s3.secret-access-key": "s3cr3t", "s3.region": "r"}
    assert settings.catalogs["local"]["s3.session-token"] == "{}"
    assert settings.catalogs["local"]["init_catalog_tables"] == "false"
    assert settings.catalogs["local"]["type"] == "sql"
    assert settings.state.url == "sqlite:////elsewhere.db"


def test_a_region_is_known_without_asking_aws(load, monkeypatch):
    """PyIceberg would ask AWS for that of each bucket, even of one that is elsewhere."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert load("storage: {s3.endpoint: http://x}").file_properties() == {
        "s3.endpoint": "http://x",
        "s3.region": "us-east-1",
    }
    assert load("storage: {s3.anonymous: true}").file_properties() == {"s3.anonymous": "true"}
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-7")
    assert load("storage: {s3.endpoint: http://x}").file_properties()["s3.region"] == "eu-north-7"
    assert load("storage: {client.region: r}").file_properties() == {"client.region": "r"}


def test_settings_are_frozen(load):
    """Nothing changes them after they were read."""
    settings = load(ONE_CATALOG + "tables: [{source: x, target: a.b}]")
    with pytest.raises(ValueError, match="frozen"):
        settings.health = HealthSettings(port=1)
    with pytest.raises(ValueError, match="frozen"):
        settings.tables[0].source = "y"
    assert isinstance(settings.tables[0], TableSettings)


def test_a_location_holds_no_credentials(load):
    """Locations are remembered and written into metadata: one with a user in it is refused, and not repeated."""
    faults = faults_of(load, "tables: [{source: 's3://me:hunter2@b/t', target: a.b, location: 's3://hunter2@b/t'}]\n")
    assert [fault.partition(":")[0] for fault in faults] == ["tables[0].source", "tables[0].location"]
    assert "hunter2" not in "".join(faults)


@pytest.mark.parametrize("text", ["*hunter2secret", "!hunter2secret x", "&hunter2secret", "2026-13-45"])
def test_a_text_that_yaml_cannot_read_is_not_repeated(load, text):
    """It may be a secret that was written without quotes, or a date that is none: told, and never a traceback."""
    with pytest.raises(ConfigInvalid) as raised:
        load(f"storage: {{s3.secret-access-key: {text}}}\n")
    assert "hunter2" not in f"{raised.value} {raised.value.hint}"


@pytest.mark.parametrize("path", ["~nobody-by-this-name/x", "a\\0b", "."])
def test_a_reference_to_no_file_is_a_fault(load, path):
    """Whatever the path is."""
    (fault,) = faults_of(load, f'storage: {{s3.secret-access-key: {{file: "{path}"}}}}\n')
    assert fault.startswith("storage.s3.secret-access-key: ")


def test_a_local_source_may_name_its_host(load):
    """`file://localhost/` is `file:///`: the log, the data files and the state know one spelling."""
    settings = load(ONE_CATALOG + "tables: [{source: 'file://localhost/data/a/', target: db.a}]\n")
    assert settings.tables[0].source == "file:///data/a"


def test_places_overlap_in_any_spelling(load):
    """`s3a` is `s3`; a folder inside of another one, and one around it."""
    text = "location: 's3a://b/x'}\n- {source: c, target: a.c, delete_files_location: 's3://b/x/y'}\n"
    (fault,) = faults_of(load, f"{ONE_CATALOG}tables:\n- {{source: s, target: a.s, {text}")
    assert fault == "tables[1]: its files would overlap those of tables[0] at s3://b/x; give each its own location"
