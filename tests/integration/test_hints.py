"""The hint of a table that is stopped by its own Delta table is followed, and the daemon goes on without a command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.daemons import command
from tests.kit.follow import Followed
from tests.kit.readers import assert_readers_agree, duckdb_connection, rows_of
from tests.kit.service import Service, newest_version
from tests.kit.writer import Writer

LIST = "ARRAY<INT>"
MAPPED = "'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name'"


def newest(table: Followed, pattern: str) -> Path:
    return max(table.source.glob(pattern), key=lambda each: each.stat().st_mtime_ns)


def damage(table: Followed) -> None:
    """Change a byte of the newest deletion vector."""
    path = newest(table, "*.bin")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def cut(table: Followed) -> None:
    path = newest(table, "*.parquet")
    path.write_bytes(path.read_bytes()[:-10])


@dataclass(frozen=True)
class Case:
    """`breaks` are statements that end in an error of this `kind`; the `mending` statements do what its hint says."""

    kind: str
    hint: str
    breaks: Sequence[str]
    mending: Sequence[str]
    harm: Callable[[Followed], None] = lambda _: None
    conf: Mapping[str, str] = field(default_factory=dict)
    mending_conf: Mapping[str, str] = field(default_factory=dict)
    value_type: str = LIST


CASES = {
    "a vector that is missing": Case(
        "ObjectMissing",
        "RESTORE",
        ["DELETE FROM {t} WHERE id = 3"],
        ["RESTORE TABLE {t} TO VERSION AS OF 1"],
        lambda table: newest(table, "*.bin").unlink(),
    ),
    "a vector that is damaged": Case(
        "CorruptInput", "RESTORE", ["DELETE FROM {t} WHERE id = 3"], ["RESTORE TABLE {t} TO VERSION AS OF 1"], damage
    ),
    "a data file that is cut short": Case(
        "CorruptInput",
        "RESTORE",
        ["INSERT INTO {t} VALUES (50, array(1))"],
        ["RESTORE TABLE {t} TO VERSION AS OF 1"],
        cut,
    ),
    "a void column": Case(
        "Unsupported",
        "Drop the column",
        [f"ALTER TABLE {{t}} SET TBLPROPERTIES ({MAPPED})", "ALTER TABLE {t} ADD COLUMN nothing VOID"],
        ["ALTER TABLE {t} DROP COLUMN nothing"],
        value_type="STRING",
    ),
    "a variant column": Case(
        "Unsupported",
        "Drop the column",
        [
            f"ALTER TABLE {{t}} SET TBLPROPERTIES ({MAPPED})",
            "ALTER TABLE {t} ADD COLUMN v VARIANT",
            "INSERT INTO {t} VALUES (50, 'x', parse_json('1'))",
        ],
        ["ALTER TABLE {t} DROP COLUMN v", "REORG TABLE {t} APPLY (PURGE)"],
        value_type="STRING",
    ),
    "lists under column mapping": Case(
        "Unsupported",
        "REORG",
        [f"ALTER TABLE {{t}} SET TBLPROPERTIES ({MAPPED})", "INSERT INTO {t} VALUES (50, array(1))"],
        ["REORG TABLE {t} APPLY (UPGRADE UNIFORM (ICEBERG_COMPAT_VERSION = 2))"],
    ),
    "a reserved name": Case(
        "Unsupported",
        "RENAME",
        ["ALTER TABLE {t} ADD COLUMN _pos INT"],
        [f"ALTER TABLE {{t}} SET TBLPROPERTIES ({MAPPED})", "ALTER TABLE {t} RENAME COLUMN _pos TO pos"],
        value_type="STRING",
    ),
    "the Julian calendar": Case(
        "Unsupported",
        "datetimeRebaseModeInWrite",
        ["ALTER TABLE {t} ADD COLUMN day DATE", "INSERT INTO {t} VALUES (50, array(1), DATE'1400-01-01')"],
        ["UPDATE {t} SET day = DATE'1400-01-01' WHERE id = 50"],
        conf={"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"},
    ),
    "the older layout of lists": Case(
        "Unsupported",
        "writeLegacyFormat",
        ["INSERT INTO {t} VALUES (50, array(1))"],
        ["UPDATE {t} SET value = array(2) WHERE id = 50"],
        conf={"spark.sql.parquet.writeLegacyFormat": "true"},
    ),
    "timestamps beyond INT96": Case(
        "Unsupported",
        "TIMESTAMP_MICROS",
        [
            "ALTER TABLE {t} ADD COLUMN at TIMESTAMP",
            "INSERT INTO {t} VALUES (50, array(1), TIMESTAMP'9999-12-31 00:00:00')",
        ],
        ["UPDATE {t} SET value = array(2)"],
        conf={"spark.sql.parquet.outputTimestampType": "INT96"},
        mending_conf={"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
    ),
}


# The others find the same files by the same inspection.
LONG = ("the Julian calendar", "the older layout of lists", "a variant column")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in CASES])
def test_a_hint_leads_out(service: Service, tmp_path: Path, name: str) -> None:
    """With Delta's statements alone: a newer version is tried at once."""
    case = CASES[name]
    table = Followed(service, tmp_path)
    table.sql(
        f"CREATE TABLE {{t}} (id INT, value {case.value_type}) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    value = "array(CAST(id AS INT))" if case.value_type == LIST else "'x'"
    table.sql(f"INSERT INTO {{t}} SELECT CAST(id AS INT), {value} FROM range(0, 9, 1, 1)")
    table.bench.sync()
    with table.held(), table.writer.confs(case.conf):
        for statement in case.breaks:
            table.sql(statement)
        case.harm(table)
    error = service.wait(lambda: table.bench.status()["error"], "the error")
    assert (error["kind"], case.hint in error["hint"]) == (case.kind, True), error
    with table.writer.confs(case.mending_conf):
        for statement in case.mending:
            table.sql(statement)
    version = newest_version(f"file://{table.source}")

    def is_synced() -> bool:
        status = table.bench.status()
        return (status["state"], status["synced_version"]) == ("synced", version)

    service.wait(is_synced, f"version {version}, by itself")
    iceberg = table.bench.iceberg()
    expected = rows_of(table.writer.delta(table.source), iceberg.schema().fields)
    assert_readers_agree(iceberg, table.writer.spark, expected, name)


def test_a_scheduled_sync_goes_on_as_well(writer: Writer, tmp_path: Path) -> None:
    """`dvsync sync`, by cron and without a daemon, passes the refused commits once a newer version lacks the cause."""
    source = tmp_path / "lake" / "t"
    (tmp_path / "config.yaml").write_text(
        f"""state: {{url: "sqlite:///state.db"}}
catalogs: {{local: {{type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}}}
tables: [{{source: {source}, target: lake.t}}]
"""
    )
    properties = f"TBLPROPERTIES ({MAPPED})"
    for statement in (f"CREATE TABLE {{t}} (id INT) USING delta {properties}", "INSERT INTO {t} VALUES (1), (2)"):
        writer.sql(statement, source)
    assert command(tmp_path / "config.yaml", "sync").returncode == 0
    writer.sql("ALTER TABLE {t} ADD COLUMN nothing VOID", source)
    refused = command(tmp_path / "config.yaml", "sync")
    assert (refused.returncode, "Drop the column" in refused.stdout) == (1, True), refused
    writer.sql("ALTER TABLE {t} DROP COLUMN nothing", source)
    writer.sql("DELETE FROM {t} WHERE id = 1", source)
    assert command(tmp_path / "config.yaml", "sync").returncode == 0
    shown = command(tmp_path / "config.yaml", "show", "lake.t", "--json")
    rows = duckdb_connection().execute("SELECT * FROM iceberg_scan(?)", [json.loads(shown.stdout)["metadata_location"]])
    assert rows.fetchall() == [(2,)]
