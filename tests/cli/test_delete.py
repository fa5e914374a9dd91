"""`dvsync delete`: who may, what it says, and that the Iceberg table follows. No JVM."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from deltalake import DeltaTable, QueryBuilder

from daemon.delta_writer import commit, vectors
from daemon.delta_writer.deletion import delete_rows
from daemon.errors import CommitOutcomeUnknown
from tests.kit.forking import run_forked
from tests.kit.handmade import HandmadeTable
from tests.kit.invoke import invoke

if TYPE_CHECKING:
    from tests.kit.servers import ObjectStore

CONFIG = """
catalogs: {{local: {{type: sql, uri: "sqlite:///{folder}/catalog.db", warehouse: "{folder}/warehouse"}}}}
state: {{url: "sqlite:///{folder}/state.db"}}
defaults: {{engine: local}}
tables: [{{source: "{folder}/t", target: db.t, deletes: {allowed}}}]
hooks: [{{command: [tee, "{folder}/notice.json"], events: [rows_deleted]}}]
"""


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    made = HandmadeTable(tmp_path / "t")
    made.create()
    made.commit([made.add(made.write_file([(100 * file + row, "p", "v") for row in range(100)])) for file in range(3)])
    return made


def command(table: HandmadeTable, *words: str, allowed: str = "command") -> CompletedProcess[str]:
    folder = table.folder.parent
    (folder / "config.yaml").write_text(CONFIG.format(folder=folder, allowed=allowed))
    return run_forked([*words], folder=folder)


def test_a_deletion(table: HandmadeTable) -> None:
    """First dry, then done; who audits hears of it, without the predicate; then nothing is left to do."""
    assert command(table, "sync").returncode == 0
    words = ("delete", "db.t", "--where", "id IN (7, 8) OR id >= 200")
    dry = command(table, *words, "--dry-run")
    assert dry.returncode == 0
    assert dry.stdout.startswith("db.t: would delete 102 rows in 2 files of version 1: ")
    assert not table.commit_path(2).exists()
    refused = command(table, *words, "--at-most", "101")
    assert (refused.returncode, "more than 101 rows would be deleted" in refused.stderr) == (2, True)
    done = command(table, *words, "--at-most", "102")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("db.t: deleted 102 rows in 2 files, version 2: ")
    (info, *_) = map(json.loads, table.commit_path(2).read_text().splitlines())
    assert info["commitInfo"]["operationParameters"] == {"predicate": '["id IN (7, 8) OR id >= 200"]'}
    history = command(table, "history", "db.t").stdout.splitlines()
    assert "deleted, version 2 (DELETE)" in history[0]
    assert f", by {info['commitInfo']['userName']}" in history[0]
    notice = json.loads((table.folder.parent / "notice.json").read_text())
    assert notice["event"] == "rows_deleted"
    assert history[0].endswith(notice["text"].removeprefix("db.t:"))
    assert "IN (7" not in history[0]
    assert "nothing was written" in command(table, *words).stdout
    synced = command(table, "sync")
    assert synced.returncode == 0
    assert "version 2" in synced.stdout and "positions +2" in synced.stdout


@pytest.mark.parametrize(
    "step", ["before the file", "after the file", "before the commit", "after the commit", "unknown"]
)
def test_killed(table: HandmadeTable, step: str) -> None:
    """Cleanup removes what no commit names, an hour later, and nothing else; the table is as it was, or done."""
    folder = table.folder.parent
    assert command(table, "sync").returncode == 0
    child = os.fork()
    if child == 0:
        _delete_until(step, folder)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (1 if step == "unknown" else -signal.SIGKILL)
    written = set(table.folder.glob("deletion_vector_*.bin"))
    assert len(written) == (step != "before the file")
    young = command(table, "cleanup").stdout
    assert "left 1: its grace period is not over" in young and set(table.folder.glob("*.bin")) == written
    with closing(sqlite3.connect(folder / "state.db")) as database, database:
        assert database.execute("UPDATE vector_files SET since_ms = since_ms - 90000000").rowcount == 1
    cleaned = command(table, "cleanup")
    is_done = step == "after the commit"
    assert cleaned.returncode == 0
    assert set(table.folder.glob("*.bin")) == (written if is_done else set())
    assert ("(vectors 1)" in cleaned.stdout) == (not is_done)
    with closing(sqlite3.connect(folder / "state.db")) as database:
        assert database.execute("SELECT path FROM vector_files").fetchall() == []
    found = QueryBuilder().register("t", DeltaTable(str(table.folder))).execute("SELECT id FROM t").read_all()
    assert len(found) == (299 if is_done else 300)


def _delete_until(step: str, folder: Path) -> NoReturn:
    """Delete a row, and be killed before or after a file is written; or never hear whether the commit is there."""
    when, _, what = step.partition(" the ")
    module = vectors if what == "file" else commit
    put = module.put_if_absent

    def killed(*arguments: Any) -> bool:
        if step == "unknown":
            raise CommitOutcomeUnknown("the store did not say", path=arguments[0], hint="")
        if when == "after":
            put(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    module.put_if_absent = killed  # type: ignore[attr-defined]
    code = 3
    try:
        code = invoke(["--config", str(folder / "config.yaml"), "delete", "db.t", "--where", "id = 7"]).exit_code
    finally:
        os._exit(code)


@pytest.mark.parametrize(
    ("allowed", "words", "said"),
    [
        ("none", ("db.t", "--where", "id = 1"), "dvsync may not write to the Delta table"),
        ("command", ("db.other", "--where", "id = 1"), "no such table"),
        ("command", ("db.t", "--where", "id = "), "the predicate cannot be used"),
        ("command", ("db.t",), "Missing option '--where'"),
    ],
)
def test_what_is_refused(table: HandmadeTable, allowed: str, words: tuple[str, ...], said: str) -> None:
    before = sorted(table.folder.rglob("*"))
    done = command(table, "delete", *words, allowed=allowed)
    assert (done.returncode, said in done.stderr) == (2, True)
    assert sorted(table.folder.rglob("*")) == before


def test_on_s3(table: HandmadeTable, store: ObjectStore) -> None:
    """Two deletions, of which delta-rs reads the result; what the store was asked to find out is gone."""
    client = store.client("s3")
    for path in table.take_new_files():
        client.upload_file(str(path), "lake", f"deleted/{path.relative_to(table.folder)}")
    before = store.keys("lake", "deleted/")
    for number, predicate in enumerate(("id = 5 OR id >= 200", "id IN (6, 150)"), 2):
        assert delete_rows("s3://lake/deleted", predicate, properties=store.properties).version == number
    added = {key.removeprefix("deleted/") for key in store.keys("lake", "deleted/") - before}
    commits = {f"_delta_log/{number:020d}.json" for number in (2, 3)}
    assert commits < added
    assert {name.partition("_")[0] for name in added - commits} == {"deletion"}
    # Delta-rs would wait for this process, which is the store.
    for key in store.keys("lake", "deleted/"):
        client.download_file("lake", key, str(table.folder / key.removeprefix("deleted/")))
    rows = QueryBuilder().register("t", DeltaTable(str(table.folder))).execute("SELECT id FROM t").read_all()
    left = [number for number in range(200) if number not in (5, 6, 150)]
    assert sorted(rows["id"].to_pylist()) == left
