"""What stands in the log of a daemon that does all of its work: no library says more than docs/monitoring.md tells."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from daemon.observe.log import REMARKS
from tests.kit.daemons import Daemon, set_constants
from tests.kit.follow import Followed
from tests.kit.servers import ObjectStore
from tests.kit.service import InProcess
from tests.kit.writer import Writer

CONFIG = """
state: {{url: "sqlite:///state.db"}}
catalogs:
  local: {{type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
  store: {{type: sql, uri: "sqlite:///store.db", warehouse: "s3://warehouse/logs", {properties}}}
health: {{port: 0}}
log: {{format: json, level: debug}}
defaults: {{poll_interval: 500ms}}
maintenance: {{interval: 1s, snapshots_max: 2}}
tables:
  - {{source: "{source}", target: lake.t, name: t, catalog: local}}
  - {{source: "{source}", target: lake.s, name: s, catalog: store}}
"""
STATEMENTS = (
    "UPDATE {t} SET moment = TIMESTAMP'2021-01-01 00:00:00' WHERE id % 4 = 0",
    "MERGE INTO {t} t USING (SELECT CAST(id AS INT) AS id FROM range(8, 30)) s ON t.id = s.id"
    " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, moment) VALUES (s.id, TIMESTAMP'2022-01-01 00:00:00')",
    "RESTORE TABLE {t} TO VERSION AS OF 2",
    "OPTIMIZE {t}",
    "ALTER TABLE {t} ADD COLUMN more STRING",
    "DELETE FROM {t} WHERE id > 10",
    "DELETE FROM {t} WHERE id > 8",
)
FIRST_SYNC_MAX_S = 300.0


def test_libraries_say_nothing_that_no_operator_needs(
    writer: Writer, tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First syncs with Spark, following, maintenance and the end, of files with INT96 timestamps, to disk and to S3."""
    table = Followed(InProcess(writer), tmp_path)
    with writer.confs({"spark.sql.parquet.outputTimestampType": "INT96"}):
        table.sql(
            "CREATE TABLE {t} (id INT, moment TIMESTAMP) USING delta"
            " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )
        table.sql("INSERT INTO {t} SELECT CAST(id AS INT), TIMESTAMP'2020-01-01 00:00:00' FROM range(0, 20, 1, 2)")
        table.sql("DELETE FROM {t} WHERE id = 3")
        config = tmp_path / "config.yaml"
        properties = ", ".join(f'"{key}": "{value}"' for key, value in store.properties.items())
        config.write_text(CONFIG.format(source=table.source, properties=properties))
        set_constants(monkeypatch, {"daemon.maintenance.compaction.DELETE_FILES_MAX": 1})
        daemon = Daemon(config, module="tests.kit.daemon_process")
        try:
            daemon.launch()
            daemon.started()
            for name in ("t", "s"):
                daemon.told("sync.advanced", table=name, to_version=2, wait_s=FIRST_SYNC_MAX_S)
            for statement in STATEMENTS:
                table.sql(statement)
                for name in ("t", "s"):
                    daemon.synced_to(name, table.version)
            for event in ("maintenance.compacted", "maintenance.expired"):
                daemon.told(event)
            daemon.signal(signal.SIGTERM)
            assert daemon.end() == 0
        finally:
            daemon.kill()
    assert [line for line in daemon.lines if line["event"] == "output"] == [], "lines that are no log"
    said = [line for line in daemon.lines if "logger" in line]
    assert [line for line in said if line["level"] != "debug"] == [], "what libraries say at info and above"
    assert {line["logger"] for line in said} <= {logger for logger, _ in REMARKS}
    assert said, "the test has been where they say it"
