"""Each reason for a mirror: through all that Delta does with the file, the readers show Delta's rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from daemon.errors import MirrorKind
from daemon.verify.findings import Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.misread import BY_ALL, CASES, Misread, with_vector
from tests.kit.readers import assert_readers_agree, read_delta
from tests.unit.test_lifted_by import MISREAD

REASONS: dict[str, tuple[Misread, MirrorKind]] = {
    **{fault.value: (CASES[fault], kind) for fault, (_, kind) in MISREAD.items() if kind},
    **BY_ALL,
}


def live(
    folder: Path, case: Misread, kind: MirrorKind, version: int, agree: Callable[[Table, HandmadeTable], None]
) -> None:
    """INSERT, DELETE, OPTIMIZE, RESTORE and VACUUM. Of a file's rows, the first and the last are in `case.rows`."""
    table = case.make(folder / "delta")
    options = {"mirrors": kind, "format_version": version}
    with closing(Bench(folder / "dvsync", table.location, table_options=options)) as bench:

        def synced(mirrors: int) -> None:
            bench.sync()
            found = bench.store.list_live_mirrors(1)
            assert [each.kind for each in found] == [kind] * mirrors
            agree(bench.iceberg(), table)

        synced(1)
        table.commit([case.add(table)])
        synced(2)
        before = dict(table.live), dict(table.deleted)
        table.commit(with_vector(table, "0.parquet", {0, 1}), operation="DELETE")
        synced(2)
        table.commit([table.remove("0.parquet"), table.remove("1.parquet"), case.add(table)], operation="OPTIMIZE")
        synced(1)
        gone = table.remove("2.parquet")
        table.live, table.deleted = before
        table.commit([gone, *({"add": action} for action in table.live.values())], operation="RESTORE")
        synced(2)
        (table.folder / "2.parquet").unlink()
        table.commit([], operation="VACUUM END")
        synced(2)
        proof = Verifier(bench.context).verify(Scope(Level.METADATA), Event())
        assert proof and proof.is_right, proof


def rows_of(case: Misread, table: HandmadeTable) -> list[tuple[object, ...]]:
    return [
        case.rows[position // 2] for path in table.live for position in (0, 2) if position not in table.deleted[path]
    ]


@pytest.mark.parametrize("reason", REASONS)
def test_a_life_with_each_reason(reason: str, tmp_path: Path) -> None:
    """All readers but Spark, in format version 3."""
    case, kind = REASONS[reason]
    live(tmp_path, case, kind, 3, lambda iceberg, table: assert_readers_agree(iceberg, None, rows_of(case, table)))


@pytest.mark.long
@pytest.mark.parametrize("reason", REASONS)
def test_a_life_that_spark_reads(reason: str, spark: SparkSession, tmp_path: Path) -> None:
    """In both format versions; Delta on Spark says what is Delta's."""
    case, kind = REASONS[reason]

    def agree(iceberg: Table, table: HandmadeTable) -> None:
        rows = read_delta(spark, table.location, iceberg)
        assert sorted(rows) == sorted(rows_of(case, table))
        assert_readers_agree(iceberg, spark, rows)

    for version in (2, 3):
        live(tmp_path / f"v{version}", case, kind, version, agree)
