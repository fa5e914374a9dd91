"""`version_hint`: readers that know only the table's folder show what the catalog shows, whatever happened before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import polars
import pytest
from pyiceberg.table import StaticTable
from structlog.testing import capture_logs

from daemon.config.settings import MaintenanceSettings
from daemon.iceberg.target import Target
from daemon.maintenance.maintainer import Maintainer
from daemon.status.snapshots import read_lines_of
from state import LeaseLost
from tests.kit.handmade import COLUMNS, Bench, HandmadeTable
from tests.kit.readers import Row, ask_clickhouse, duckdb_connection, read_duckdb
from tests.kit.servers import ObjectStore

BY_FOLDER: dict[str, Callable[[str], list[Any]]] = {
    "DuckDB": lambda folder: duckdb_connection().execute("SELECT * FROM iceberg_scan(?)", [folder]).fetchall(),
    "PyIceberg": lambda folder: [
        each.values() for each in StaticTable.from_metadata(folder).scan().to_arrow().to_pylist()
    ],
    "Polars": lambda folder: polars.scan_iceberg(folder).collect().rows(),
    "ClickHouse": lambda folder: ask_clickhouse(
        f"SELECT * FROM icebergLocal('{folder}', SETTINGS iceberg_use_version_hint = 1)"
    ),
}


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    table = HandmadeTable(tmp_path / "delta", partitioned=True)
    table.create()
    table.commit([table.add(table.write_file([(row, part, f"{row}") for row in range(20)])) for part in ("x", "y é")])
    return table


@pytest.fixture
def bench(tmp_path: Path, table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    settings = MaintenanceSettings(snapshots_max=1)
    monkeypatch.setattr("daemon.maintenance.compaction.DELETE_FILES_MAX", 1)
    options = {"version_hint": True, "maintenance": settings}
    bench = Bench(tmp_path / "dvsync", table.location, table_options=options)
    bench.sync()
    yield bench
    bench.close()


def folder_of(bench: Bench) -> Path:
    return Path(bench.iceberg().metadata.location.removeprefix("file://"))


def hint_of(bench: Bench) -> Path:
    return folder_of(bench) / "metadata" / "version-hint.text"


def is_current(bench: Bench) -> bool:
    return bench.iceberg().metadata_location.endswith(f"/metadata/{hint_of(bench).read_text()}.metadata.json")


def delete(table: HandmadeTable, position: int) -> None:
    table.commit(table.delete({min(table.live): [position]}))


def rows_by(reader: str, folder: Path | str) -> list[Row]:
    return sorted(tuple(row) for row in BY_FOLDER[reader](str(folder)))


def test_readers_by_folder(table: HandmadeTable, bench: Bench) -> None:
    """After several commits, a change without a snapshot, a compaction and an expiry, all show Delta's rows."""
    for position in (3, 7):
        delete(table, position)
        bench.sync()
        assert is_current(bench)
    for reader in BY_FOLDER:
        assert rows_by(reader, folder_of(bench)) == table.live_rows(), reader
    table.commit([{"metaData": table.metadata((*COLUMNS, ("more", "string")))}])
    bench.sync()
    maintainer = Maintainer(bench.context)
    for change in (lambda: maintainer.compact(Event()), maintainer.expire):
        before = bench.iceberg().metadata_location
        change()
        assert bench.iceberg().metadata_location != before
        assert is_current(bench)
    assert [row[:3] for row in rows_by("DuckDB", folder_of(bench))] == table.live_rows()


def test_there_is_no_hint_unless_it_is_wanted(tmp_path: Path, table: HandmadeTable) -> None:
    """It is off by default."""
    bench = Bench(tmp_path / "other", table.location)
    bench.sync()
    assert not hint_of(bench).exists()
    bench.close()


def test_a_hint_that_cannot_be_written(table: HandmadeTable, bench: Bench) -> None:
    """The syncs go on, with one warning; the next commit mends it, and so does a sync without news."""
    hint_of(bench).unlink()
    hint_of(bench).mkdir()
    with capture_logs() as logs:
        for position in (3, 7):
            delete(table, position)
            assert bench.sync().to_version == table.version
    failures = [log for log in logs if log["event"] == "hint.unwritten"]
    assert [log["log_level"] for log in failures] == ["warning"]
    assert "Is a directory" in failures[0]["reason"] and failures[0]["hint"]
    hint_of(bench).rmdir()
    delete(table, 8)
    bench.sync()
    assert is_current(bench)
    # As after a kill between the commit and the hint.
    hint_of(bench).write_text("00000-older")
    bench.reopen()
    assert bench.sync().snapshots == 0
    assert is_current(bench)
    assert {path.name for path in hint_of(bench).parent.iterdir() if "hint" in path.name} == {"version-hint.text"}


def test_metadata_files_in_another_folder(table: HandmadeTable, bench: Bench, tmp_path: Path) -> None:
    """No hint names them, because readers look only into the table's own folder; the reason is logged."""
    with bench.iceberg().transaction() as change:
        change.set_properties({"write.metadata.path": f"file://{tmp_path}/elsewhere"})
    delete(table, 3)
    with capture_logs() as logs:
        bench.sync()
        assert bench.iceberg().metadata_location.startswith(f"file://{tmp_path}/elsewhere/")
    (failure,) = (log for log in logs if log["event"] == "hint.unwritten")
    assert "unset `version_hint`" in failure["hint"]
    assert not (tmp_path / "elsewhere" / "version-hint.text").exists()


def test_the_hint_belongs_to_the_holder_of_the_lease(bench: Bench) -> None:
    """A daemon that lost its lease between its commit and the hint leaves the next holder's hint alone."""

    def lost() -> None:
        raise LeaseLost("another process holds the lease")

    hint_of(bench).write_text("the next holder's")
    former = Target(
        "local", lambda: bench.catalogs.open("local"), "lake.t", None, bench.clock, check_lease=lost, version_hint=True
    )
    former.update_hint(bench.iceberg())
    assert hint_of(bench).read_text() == "the next holder's"


def test_cleanup_leaves_the_hint(table: HandmadeTable, bench: Bench) -> None:
    """It is neither an orphan nor unknown to a scan, and the file that it names stays."""
    delete(table, 3)
    bench.sync()
    done = Maintainer(bench.context).clean_up(Event(), scan=True, remove_found=True)
    assert (done.found, done.removed, done.left.total()) == ([], [], 0)
    assert rows_by("DuckDB", folder_of(bench)) == table.live_rows()


def test_on_s3_it_is_one_request(
    tmp_path: Path, table: HandmadeTable, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One PUT for each commit; DuckDB reads by folder, the others by what `dvsync show` names, from two buckets."""
    client = store.client("s3")
    for bucket in ("hints-lake", "hints"):
        client.create_bucket(Bucket=bucket)

    def send() -> None:
        for path in table.take_new_files():
            client.upload_file(str(path), "hints-lake", f"t/{path.relative_to(table.folder)}")

    send()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://hints/w"}
    options = {"version_hint": True}
    bench = Bench(
        tmp_path / "s3", "s3://hints-lake/t", catalog=catalog, properties=store.properties, table_options=options
    )
    bench.sync()
    store.requests.clear()
    for position in (3, 7):
        delete(table, position)
        send()
        bench.sync()
    asked = [request for request in store.requests if "version-hint" in request]
    assert len(asked) == 2 and all(request.startswith("PUT /hints/w/lake/t/metadata/") for request in asked)
    iceberg = bench.iceberg()
    read_duckdb(iceberg)  # Tells DuckDB the store.
    assert rows_by("DuckDB", iceberg.metadata.location) == table.live_rows()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret)
    lines = read_lines_of(iceberg)
    assert sorted(map(tuple, ask_clickhouse(lines["ClickHouse"]))) == table.live_rows()
    for reader in ("PyIceberg", "Polars"):
        *before, last = lines[reader].split("; ")
        names: dict[str, Any] = {}
        exec("; ".join(before), names)
        assert len(eval(last, names)) == len(table.live_rows()), reader
    bench.close()
