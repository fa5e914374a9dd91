"""The life of tables of format version 3 in a daemon: all readers show Delta's rows after every commit.

Rounds of maintenance go on every second meanwhile, the daemon is killed now and then, and a table is upgraded half-way.
Seeded by `FAULT_SEED`; `LIFE_COMMITS` makes it longer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from daemon import log as events
from tests.kit.faults import fault_seed
from tests.kit.handmade import HandmadeTable
from tests.kit.handmade_histories import History
from tests.kit.readers import assert_readers_agree
from tests.kit.service import Served, Service

COMMITS = int(os.environ.get("LIFE_COMMITS", "16"))
KILLED_EVERY = 6
MAINTENANCE = {
    "compact": True,
    "expire": True,
    "cleanup": True,
    "interval": "1s",
    "delete_files_max": 1,
    "deleted_share": 0.2,
    "dead_share": 0.2,
    "snapshots_max": 4,
    "orphan_grace": "1m",
}


@dataclass
class Life:
    """A table, and the row id of each row that was shown in format version 3, by the row's `id`."""

    history: History
    served: Served
    row_ids: dict[int, int] = field(default_factory=dict)

    def check_row_ids(self, spark: SparkSession, iceberg: Table) -> None:
        """No two rows have had the same id, and no row has had two. Iceberg spec, "Row Lineage".

        In a snapshot from before the upgrade, rows have no ids yet.
        """
        shown = spark.read.format("iceberg").load(iceberg.metadata_location).select("id", "_row_id")
        now = {row["id"]: row["_row_id"] for row in shown.collect()}
        snapshot = iceberg.current_snapshot()
        assert snapshot is not None
        if snapshot.first_row_id is None:
            assert self.row_ids == {} and set(now.values()) <= {None}
            return
        assert None not in now.values()
        assert {row: self.row_ids.get(row, row_id) for row, row_id in now.items()} == now
        self.row_ids |= now
        assert len(set(self.row_ids.values())) == len(self.row_ids)


def begin(service: Service, folder: Path, random: Random, *, format_version: int, partitioned: bool = False) -> Life:
    table = HandmadeTable(folder / "delta", partitioned=partitioned)
    table.create()
    options = {"format_version": format_version, "maintenance": MAINTENANCE, "verify": {"period": "5s"}}
    served = service.serve(folder / "iceberg", table.location, **options)
    return Life(History(table, random), served)


def wait_until_shown(service: Service, lives: list[Life]) -> None:
    for life in lives:
        version = life.history.table.version

        def is_shown(life: Life = life, version: int = version) -> bool:
            status = life.served.status()
            assert status["state"] not in ("parked", "retrying"), status
            return status["synced_version"] == version

        service.wait(is_shown, f"{life.served.name} at version {version}")


def test_all_readers_after_every_commit(service: Service, spark: SparkSession, tmp_path: Path) -> None:
    """Appends, deletes, RESTORE, removals and new columns, beside compaction, expiry, cleanup and verification."""
    seed = fault_seed()
    plain = begin(service, tmp_path / "plain", Random(f"{seed} plain"), format_version=3)
    partitioned = begin(
        service, tmp_path / "partitioned", Random(f"{seed} partitioned"), format_version=3, partitioned=True
    )
    upgraded = begin(service, tmp_path / "upgraded", Random(f"{seed} upgraded"), format_version=2)
    lives = [plain, partitioned, upgraded]
    service.take_up(*(life.served for life in lives))
    happened: set[str] = set()
    for commit in range(1, COMMITS + 1):
        for life in lives:
            life.history.play()
        happened |= {line["event"] for line in service.daemon.lines}
        if commit % KILLED_EVERY == 0:
            service.store.close()
            service.daemon.kill()
            service.start()
        if commit == COMMITS // 2:
            options = {**upgraded.served.options, "format_version": 3}
            upgraded.served = replace(upgraded.served, options=options)
            service.take_up(upgraded.served)
        wait_until_shown(service, lives)
        for life in lives:
            where = f"{life.served.source} at version {life.history.table.version}"
            iceberg = life.served.iceberg()
            assert_readers_agree(iceberg, spark, life.history.table.live_rows_in(iceberg.schema()), where)
            if iceberg.metadata.format_version == 3:
                life.check_row_ids(spark, iceberg)
    assert [life.served.iceberg().metadata.format_version for life in lives] == [3, 3, 3]
    happened |= {line["event"] for line in service.daemon.lines}
    assert {events.MAINTENANCE_EXPIRED, events.VERIFY_RIGHT} <= happened
    # A short life may end before there is something to compact.
    assert events.MAINTENANCE_COMPACTED in happened or COMMITS < 100
    assert {events.MAINTENANCE_FAILED, events.VERIFY_WRONG, events.VERIFY_FAILED}.isdisjoint(happened)
    service.command("verify", "--rows", *(life.served.name for life in lives))
