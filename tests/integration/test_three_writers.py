"""Spark on Delta, `dvsync delete` and Spark on the Iceberg table write at once, and the daemon is killed."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Lock
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from daemon.iceberg.marker import shown_by
from state.sql.store import StateStore
from tests.kit.daemons import Daemon, until, write_config
from tests.kit.faults import fault_seed
from tests.kit.forking import Forked, run_forked
from tests.kit.handmade import sql_catalog
from tests.kit.readers import duckdb_connection
from tests.kit.service import newest_version
from tests.kit.spark_process import SparkProcess, SparkRefused
from tests.kit.spark_session import on_catalog

# New histories begin for so long; so many are played at once, of which each second tracks rows.
SECONDS = float(os.environ.get("FAULT_SECONDS", "100"))
AT_ONCE = 4
# Foreign commits and dead delete files are looked for all the time.
CONSTANTS = {"daemon.sync.news.CONTINUITY_INTERVAL_S": 0.3, "daemon.maintenance.compaction.DELETE_FILES_MAX": 2}
# What Delta and Iceberg say to a writer who was overtaken: nothing was changed.
OVERTAKEN = re.compile(r"DELTA_CONCURRENT|Concurrent\w+Exception|ValidationException|CommitFailed|conflicting|locked")
BACK = re.compile(r"([\d,]+) rows? of .* in Iceberg are back")


def create(session: SparkSession, delta: str, rows: str, properties: str) -> None:
    session.sql(f"CREATE TABLE {delta} (id LONG, name STRING) USING delta TBLPROPERTIES ({properties})")
    session.sql(f"INSERT INTO {delta} {rows}")


def run(session: SparkSession, statement: str) -> None:
    session.sql(statement).collect()


def run_in_iceberg(session: SparkSession, folder: Path, statement: str) -> None:
    on_catalog(session, folder).sql(statement).collect()


def delete_shown(session: SparkSession, folder: Path, target: str, seed: int) -> tuple[list[int], str]:
    """Delete some of the rows that the Iceberg table shows; returns them, and why that was refused."""
    own, random = on_catalog(session, folder), Random(seed)
    shown = sorted(row.id for row in own.sql(f"SELECT id FROM local.{target}").collect())
    chosen = random.sample(shown, min(len(shown), random.randrange(1, 12)))
    if not chosen:
        return [], ""
    try:
        own.sql(f"DELETE FROM local.{target} WHERE id IN ({', '.join(map(str, chosen))})").collect()
    except Exception as error:
        return chosen, str(error)
    return chosen, ""


class History:
    """One table. `names` are those of all rows that it ever had, by id; `gone` are deleted in Delta.

    Rows in `foreign` are deleted in Iceberg, unless that was taken back; of those in `perhaps`, nobody knows.
    """

    def __init__(self, spark: SparkProcess, folder: Path, number: int, seed: int) -> None:
        self.spark, self.folder, self.seed = spark, folder, seed
        self.tracks_rows, self.format_version = number % 2 == 0, 2 + number // 2 % 2
        self.name, self.target, self.place = f"t{number}", f"lake.t{number}", folder / f"t{number}"
        self.delta = f"delta.`{self.place}`"
        self.lock = Lock()
        self.names = dict.fromkeys(range(60), "first")
        self.gone, self.foreign, self.perhaps = set[int](), set[int](), set[int]()

    @property
    def configuration(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": str(self.place),
            "target": self.target,
            "deletes": "100%",
            "format_version": self.format_version,
            "engine": "local",
        }

    def create(self) -> None:
        tracks = str(self.tracks_rows).lower()
        told = f"'delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = '{tracks}'"
        self.spark(create, self.delta, "SELECT id, 'first' FROM range(0, 60, 1, 3)", told)

    def allow_merge_on_read(self) -> None:
        granularity = Random(self.seed).choice(("file", "partition"))
        told = f"'write.delete.mode' = 'merge-on-read', 'write.delete.granularity' = '{granularity}'"
        self.spark(run_in_iceberg, self.folder, f"ALTER TABLE local.{self.target} SET TBLPROPERTIES ({told})")

    # --- the writers ---

    def writers(self) -> list[Callable[[], None]]:
        return [self.write_delta, self.delete_by_dvsync, self.delete_in_iceberg]

    def write_delta(self) -> None:
        random = Random(self.seed + 1)
        for step in range(5):
            match random.choice(("INSERT", "DELETE", "UPDATE", "UPDATE", "OPTIMIZE")):
                case "INSERT":
                    first = 1000 * (step + 1)
                    count = random.randrange(5, 20)
                    rows = f"SELECT id, 'insert {step}' FROM range({first}, {first + count}, 1, 1)"
                    assert self.is_done(f"INSERT INTO {self.delta} {rows}"), "an append conflicts with nothing"
                    with self.lock:
                        self.names |= dict.fromkeys(range(first, first + count), f"insert {step}")
                case "DELETE":
                    ids = self.some(random)
                    if self.is_done(f"DELETE FROM {self.delta} WHERE id IN ({_listed(ids)})"):
                        with self.lock:
                            self.gone |= ids
                case "UPDATE":
                    ids = self.some(random)
                    if self.is_done(f"UPDATE {self.delta} SET name = 'update {step}' WHERE id IN ({_listed(ids)})"):
                        with self.lock:
                            self.names |= dict.fromkeys(ids, f"update {step}")
                case _:
                    self.is_done(f"OPTIMIZE {self.delta}")

    def is_done(self, statement: str) -> bool:
        """Whether Delta has not found that somebody else was first."""
        try:
            self.spark(run, statement)
        except SparkRefused as refused:
            assert OVERTAKEN.search(str(refused)), f"{statement}: {refused}"
            return False
        return True

    def delete_by_dvsync(self) -> None:
        random = Random(self.seed + 2)
        for _ in range(3):
            ids = self.some(random)
            words = ["delete", self.name, "--where", f"id IN ({_listed(ids)})", "--engine", "local"]
            if random.random() < 0.5:
                with (self.folder / "killed").open("a") as output:
                    process = Forked(words, stdout=output, stderr=output, folder=self.folder)
                    time.sleep(random.uniform(0, 0.5))
                    process.kill()
                    process.wait()
            done = run_forked(words, folder=self.folder)
            assert done.returncode == 0, done.stdout + done.stderr
            with self.lock:
                self.gone |= ids

    def delete_in_iceberg(self) -> None:
        random = Random(self.seed + 3)
        for _ in range(4):
            chosen, refused = self.spark(delete_shown, self.folder, self.target, random.randrange(1 << 30))
            assert not refused or OVERTAKEN.search(refused), refused
            with self.lock:
                (self.perhaps if refused else self.foreign).update(chosen)

    def some(self, random: Random) -> set[int]:
        with self.lock:
            ids = sorted(self.names)
        return {*random.sample(ids, random.randrange(1, 12))}

    # --- the end ---

    def is_in_step(self, catalog: SqlCatalog) -> bool:
        marker = shown_by(catalog.load_table(self.target))
        return marker is not None and marker.version == newest_version(str(self.place))

    def check(self, catalog: SqlCatalog, store: StateStore) -> None:
        """Both sides have the rows of the model; only what was taken back with a word is there again."""
        opened = QueryBuilder().register("t", DeltaTable(str(self.place)))
        delta = _sorted(pa.table(opened.execute("SELECT id, name FROM t").read_all()))
        table = catalog.load_table(self.target)
        assert _sorted(table.scan().to_arrow()) == delta
        query = f"SELECT id, name FROM iceberg_scan('{table.metadata_location}')"
        assert sorted(duckdb_connection().execute(query).fetchall()) == delta
        ids = {row_id for row_id, _ in delta}
        assert len(ids) == len(delta), "no row is there twice"
        assert delta == sorted((row_id, self.names[row_id]) for row_id in ids)
        assert self.names.keys() - self.gone - self.foreign - self.perhaps <= ids <= self.names.keys() - self.gone
        (record,) = (each for each in store.list_tables() if each.name == self.name)
        told = [BACK.search(each.message or "") for each in store.list_runs(record.id, runs_max=1000)]
        taken_back = sum(int(found[1].replace(",", "")) for found in told if found)
        assert len(ids & (self.foreign - self.perhaps)) <= taken_back
        assert not (taken_back and self.tracks_rows), "row ids say where all rows are"


def _listed(ids: set[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


def _sorted(rows: pa.Table) -> list[tuple[int, str]]:
    return sorted((row["id"], row["name"]) for row in rows.to_pylist())


class Killed:
    """`dvsync run`, killed and started again at random moments while it is `harassed`."""

    def __init__(self, config: Path, random: Random) -> None:
        self._config, self._random = config, random
        self._environment = {**os.environ, "CONSTANTS": json.dumps(CONSTANTS)}
        self.daemons = [self._launch()]

    def _launch(self) -> Daemon:
        daemon = Daemon(self._config, self._environment)
        daemon.launch()
        return daemon

    @property
    def daemon(self) -> Daemon:
        return self.daemons[-1]

    @contextmanager
    def harassed(self) -> Iterator[None]:
        stop = Event()

        def harass() -> None:
            while not stop.wait(self._random.uniform(0.2, 3)):
                self.daemon.kill()
                self.daemons.append(self._launch())

        with ThreadPoolExecutor(1) as pool:
            harassing = pool.submit(harass)
            try:
                yield
            finally:
                stop.set()
                harassing.result()

    def lines(self) -> list[dict[str, Any]]:
        return [line for daemon in self.daemons for line in daemon.lines]


def play(spark: SparkProcess, folder: Path, seed: int) -> int:
    """Play AT_ONCE histories of the seeds from `seed` on; returns how often the daemon was killed."""
    random = Random(seed)
    histories = [History(spark, folder, number, seed + number) for number in range(AT_ONCE)]
    steps = random.choice(([], ["compact"]))
    write_config(
        folder / "config.yaml",
        tables=[each.configuration for each in histories],
        maintenance={"steps": steps, "interval": "1s"},
    )
    with ThreadPoolExecutor(3 * AT_ONCE) as pool:
        list(pool.map(History.create, histories))
        killed = Killed(folder / "config.yaml", random)
        catalog = SqlCatalog("local", **sql_catalog(folder))
        try:
            killed.daemon.started()
            for each in histories:
                killed.daemon.synced_to(each.name, 1)
            list(pool.map(History.allow_merge_on_read, histories))
            with killed.harassed():
                writing = [pool.submit(writer) for each in histories for writer in each.writers()]
                for each in writing:
                    each.result()
            killed.daemon.started()
            for each in histories:
                until(partial(each.is_in_step, catalog), f"{each.name} in step")
            with closing(StateStore.open(f"sqlite:///{folder}/state.db")) as store:
                for each in histories:
                    each.check(catalog, store)
            assert not [line for line in killed.lines() if line.get("kind") == "InternalError"]
        except BaseException:
            print(*(line for line in killed.lines() if "kind" in line), sep="\n")
            raise
        finally:
            killed.daemon.kill()
            catalog.close()
    return len(killed.daemons) - 1


@pytest.mark.long
def test_three_writers(spark_process: SparkProcess, tmp_path: Path) -> None:
    """Seeded by `FAULT_SEED`; `FAULT_SECONDS` makes it longer."""
    seed, begun_s, played, kills = fault_seed(), time.monotonic(), 0, 0
    while time.monotonic() - begun_s < SECONDS:
        folder = tmp_path / f"{played}"
        folder.mkdir()
        try:
            kills += play(spark_process, folder, seed + played)
        except BaseException:
            print(f"the histories of FAULT_SEED={seed + played}, in {folder}")
            raise
        played += AT_ONCE
    print(f"{played} seeds in {time.monotonic() - begun_s:.0f} s, {kills} kills")
