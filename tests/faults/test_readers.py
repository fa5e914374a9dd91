"""`readers` changes for a table that is followed: who comes back must not misread what is there already."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from daemon.errors import Unsupported
from daemon.maintenance.cleanup import clean_up
from daemon.maintenance.compaction import Compactor
from daemon.maintenance.expiry import Expirer
from daemon.status.deletions import inspect_file, inspect_table
from daemon.translate.definition import DELTA_FAULTS
from daemon.translate.readers import Fault
from daemon.verify.findings import Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.misread import CASES
from tests.kit.readers import READERS, assert_readers_agree

CASE = CASES[Fault.LAYOUT]
WITHOUT_DUCKDB = ["spark", "pyiceberg", "polars"]


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    return CASE.make(tmp_path / "delta")


def following(table: HandmadeTable, **options: object) -> Bench:
    return Bench(table.folder.parent / "dvsync", table.location, table_options=options)


def test_a_reader_that_comes_back_refuses_what_is_there(table: HandmadeTable) -> None:
    """At once, by a file, with what lifts it; verify names each; when Delta has other files, the table goes on."""
    with closing(following(table, readers=WITHOUT_DUCKDB)) as bench:
        bench.sync()
        shown = bench.iceberg().metadata_location
    with closing(following(table)) as bench:
        for _ in range(2):
            with pytest.raises(Unsupported, match="which DuckDB would misread") as refused:
                bench.sync()
            assert str(refused.value.path).endswith("0.parquet")
        assert "mirrors: footer" in refused.value.hint
        assert f"readers: [{', '.join(WITHOUT_DUCKDB)}]" in refused.value.hint
        assert bench.iceberg().metadata_location == shown
        proof = Verifier(bench.context).verify(Scope(Level.METADATA), Event())
        assert proof is not None and not proof.is_right
        assert "which DuckDB would misread" in proof.findings.named[0].detail
    with closing(following(table, readers=WITHOUT_DUCKDB)) as bench:
        assert bench.sync().outcome == "unchanged"
    table.commit([table.remove("0.parquet")])
    with closing(following(table)) as bench:
        bench.sync()
        assert bench.iceberg().properties[DELTA_FAULTS] == ""
        assert bench.sync().outcome == "unchanged"
        table.commit([CASE.add(table)])
        with pytest.raises(Unsupported, match="which DuckDB would misread"):
            bench.sync()


@pytest.mark.parametrize("version", [2, 3])
def test_a_reader_that_comes_back_gets_mirrors(table: HandmadeTable, version: int) -> None:
    """Without a new version of Delta; who is left out afterwards changes nothing."""
    with closing(following(table, readers=WITHOUT_DUCKDB, format_version=version)) as bench:
        bench.sync()
        assert bench.store.list_live_mirrors(1) == []
        assert bench.iceberg().properties[DELTA_FAULTS] == Fault.LAYOUT
    with closing(following(table, mirrors="footer", format_version=version)) as bench:
        bench.sync()
        assert len(bench.store.list_live_mirrors(1)) == 1
        assert_readers_agree(bench.iceberg(), None, CASE.rows)
        assert bench.iceberg().properties[DELTA_FAULTS] == ""
        assert bench.sync().outcome == "unchanged"
    with closing(following(table, readers=WITHOUT_DUCKDB, mirrors="footer", format_version=version)) as bench:
        table.commit([CASE.add(table)])
        bench.sync()
        assert len(bench.store.list_live_mirrors(1)) == 1
        assert bench.iceberg().properties[DELTA_FAULTS] == Fault.LAYOUT
        assert_readers_agree(bench.iceberg(), None, [*CASE.rows, *CASE.rows], without={"DuckDB"})


def test_a_table_with_variants_is_looked_after(tmp_path: Path) -> None:
    """Inspected, compacted, expired and cleaned up like another one, although PyIceberg knows no variants."""
    case = CASES[Fault.VARIANT]
    table = case.make(tmp_path / "delta")
    options = {"readers": ["spark", "duckdb"], "format_version": 3, "maintenance": {"snapshots_max": 1}}
    with closing(following(table, **options)) as bench:
        bench.sync()
        table.commit([case.add(table) for _ in range(3)])
        bench.sync()
        table.commit(table.delete({"1.parquet": [0], "2.parquet": [0]}))
        bench.sync()
        assert inspect_table(bench.context, bench.iceberg(), rows_max=9).deleted == 6
        assert inspect_file(bench.context, bench.iceberg(), "1.parquet", ranges_max=9).ranges == [(0, 1)]
        assert Compactor(bench.context).compact(Event()).snapshots == 1, "two of three vectors are dead"
        assert len(Expirer(bench.context).expire().expired) == 3
        assert not clean_up(bench.context, Event(), scan=True).found
        rows = [*case.rows, case.rows[1], case.rows[1], *case.rows]
        assert_readers_agree(bench.iceberg(), None, rows, without=READERS.keys() - {"DuckDB"})


def test_positions_are_verified_only_if_spark_reads_the_table(tmp_path: Path) -> None:
    """Its reader is what positions and rows are compared by."""
    table = CASES[Fault.MAP_IDS].make(tmp_path / "delta")
    with closing(following(table, readers=["pyiceberg"])) as bench:
        bench.sync()
        proof = Verifier(bench.context).verify(Scope(Level.METADATA), Event())
        assert proof and proof.is_right, proof
        for level in (Level.BITMAPS, Level.ROWS):
            with pytest.raises(Unsupported, match="Spark cannot verify positions and rows") as refused:
                Verifier(bench.context).verify(Scope(level), Event())
            assert "--metadata" in refused.value.hint


def test_a_reader_that_is_not_tested_misreads_what_is_not_known_of_it(table: HandmadeTable) -> None:
    """Whoever lists it is told so."""
    with (
        closing(following(table, readers=[*WITHOUT_DUCKDB, "trino"])) as bench,
        pytest.raises(Unsupported, match=r"which Trino \(not tested\) would misread"),
    ):
        bench.sync()
