"""Credentials in every place that a configuration has for them: nothing that the process tells holds one."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from daemon.errors import CatalogAway
from daemon.masking import hide, scrub
from tests.kit.daemons import command, daemon, until
from tests.kit.handmade import HandmadeTable

# Nobody listens there, and each library says so in its own words.
NOBODY = "127.0.0.1:9"
SECRETS = {
    name: f"s3cr3t/{name}+1"
    for name in (
        *("rest_user", "rest_credential", "rest_token", "rest_header", "catalog_key", "sql_password", "url_parameter"),
        *(
            "storage_key",
            "storage_session",
            "spark_key",
            "from_file",
            "from_environment",
            "ambient",
            "otel_url",
            "otel_header",
        ),
    )
}
CONFIG = """
state: {{url: "sqlite:///state.db"}}
catalogs:
  rest:
    type: rest
    uri: "http://user:{rest_user_quoted}@{nobody}/api?token={url_parameter_quoted}"
    credential: "id:{rest_credential}"
    token: "{rest_token}"
    header.Authorization: "Bearer {rest_header}"
    s3.secret-access-key: "{catalog_key}"
    py-io-impl: pyiceberg.io.pyarrow.PyArrowFileIO
  sql:
    type: sql
    uri: "postgresql+psycopg://user:{sql_password_quoted}@{nobody}/catalog?connect_timeout=2"
    warehouse: warehouse
  local: {{type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
storage:
  s3.endpoint: "http://{nobody}"
  s3.region: us-east-1
  s3.access-key-id: {{env: OWN_ID}}
  s3.secret-access-key: "{storage_key}"
  s3.session-token: {{file: token.txt}}
  s3.connect-timeout: 1
  s3.request-timeout: 1
spark: {{conf: {{spark.hadoop.fs.s3a.secret.key: "{spark_key}"}}}}
health: {{port: 0}}
log: {{format: {log_format}, level: debug}}
defaults: {{poll_interval: 200ms}}
tables:
- {{source: delta, target: lake.rest, catalog: rest}}
- {{source: delta, target: lake.sql, catalog: sql}}
- {{source: "s3://bucket/delta", target: lake.s3, catalog: local}}
"""
ENVIRONMENT = {
    "OWN_ID": SECRETS["from_environment"],
    "AWS_SECRET_ACCESS_KEY": SECRETS["ambient"],
    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:{quote(SECRETS['otel_url'], safe='')}@{NOBODY}",
    # The SDK warns of the second one, and quotes it.
    "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={quote(SECRETS['otel_header'], safe='')},{SECRETS['otel_header']}",
    "OTEL_METRIC_EXPORT_INTERVAL": "500",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    table.commit([table.add(table.write_file([(1, "x", "v")]))])
    (tmp_path / "token.txt").write_text(SECRETS["from_file"])
    return tmp_path


def write_config(folder: Path, log_format: str) -> Path:
    quoted = {f"{name}_quoted": quote(secret, safe="") for name, secret in SECRETS.items()}
    path = folder / "config.yaml"
    path.write_text(CONFIG.format(nobody=NOBODY, log_format=log_format, **SECRETS, **quoted))
    return path


def assert_clean(text: str, where: str) -> None:
    for name, secret in SECRETS.items():
        for spelling in (secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1]):
            assert spelling not in text, f"{name} in {where}: {text[max(0, text.index(spelling) - 200) :][:400]}"


def test_a_daemon_that_fails_everywhere_tells_no_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log at debug level, probes, status, metrics, pages and the state database, with every catalog and store away."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with daemon(write_config(folder, "json")) as running:
        until(lambda: [bool(status["error"]) for status in running.tables().values()] == [True] * 3, "three failures")
        kinds = {name: status["error"]["kind"] for name, status in running.tables().items()}
        assert kinds["lake.rest"] == kinds["lake.sql"] == "CatalogAway"
        for path in ("/api/tables", "/metrics", "/", *(f"/tables/{name}" for name in running.tables())):
            assert_clean(running.fetch(path), path)
        for path in ("/readyz", *(f"/api/tables/{name}" for name in running.tables())):
            assert_clean(json.dumps(running.get(path)[1]), path)
        assert "Header format invalid! " in running.told("telemetry.failed")["reason"]
        running.signal(signal.SIGTERM)
        running.end()
    assert len(running.lines) > 8
    assert_clean(json.dumps(running.lines), "the log")
    with closing(sqlite3.connect(folder / "state.db")) as database:
        assert_clean("\n".join(database.iterdump()), "the state database")
        for (error,) in database.execute("select error from tables"):
            assert_clean(error.decode(), "the state database")


@pytest.mark.parametrize(
    "words", [("config", "check"), ("status",), ("status", "--json"), ("sync",), ("sync", "--full"), ("expire",)]
)
def test_commands_tell_no_secret(folder: Path, words: tuple[str, ...]) -> None:
    """What they print, and what they print when they fail, with the log for people."""
    config = write_config(folder, "console")
    ended = command(config, *words, environment={**os.environ, **ENVIRONMENT})
    assert "lake.rest" in ended.stdout + ended.stderr
    assert_clean(ended.stdout + ended.stderr, " ".join(words))


def test_what_is_hidden_is_hidden_in_errors_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest first, as written and as URLs spell it; short words are left alone."""
    monkeypatch.setattr("daemon.masking._hidden", ())
    hide(["abc", "p@ss word", "p@ss word and more"])
    assert scrub("abc p@ss word and more, p%40ss%20word") == "abc ***, ***"
    error = CatalogAway("refused p@ss word", hint="Not p@ss word.", path="s3://p@ss word/x")
    assert str(error) == "refused *** [file s3://***/x]"
    assert (error.hint, error.args) == ("Not ***.", ("refused ***",))
