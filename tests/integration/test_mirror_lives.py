"""Each reason for a mirror: through all that Delta does with the file, the readers show Delta's rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from daemon.errors import MirrorKind
from daemon.verify.findings import Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.misread import BY_ALL, CASES, Misread, with_vector
from tests.kit.readers import assert_readers_agree, read_delta
from tests.kit.servers import ObjectStore
from tests.unit.test_lifted_by import MISREAD

REASONS: dict[str, tuple[Misread, MirrorKind]] = {
    **{fault.value: (CASES[fault], kind) for fault, (_, kind) in MISREAD.items() if kind},
    **BY_ALL,
}


def live(
    folder: Path,
    case: Misread,
    kind: MirrorKind,
    version: int,
    agree: Callable[[Table, HandmadeTable, str], None],
    *,
    s3: ObjectStore | None = None,
) -> None:
    """INSERT, DELETE, OPTIMIZE, RESTORE and VACUUM. Of a file's rows, the first and the last are in `case.rows`.

    `agree` is given the Delta table's location, too: a folder below `folder` or, with `s3`, in a bucket.
    """
    table = case.make(folder / "delta")
    a, b, c = (f"{number}{case.ending}" for number in range(3))
    location, client = table.location, s3.client("s3") if s3 else None
    options: dict[str, Any] = {"table_options": {"mirrors": kind, "format_version": version}}
    if s3:
        location = f"s3://lake/{table.table_id}"
        options |= {"properties": s3.properties, "catalog": {"warehouse": f"s3://warehouse/{table.table_id}"}}
    with closing(Bench(folder / "dvsync", location, **options)) as bench:

        def synced(mirrors: int) -> None:
            for path in table.take_new_files() if client else ():
                client.upload_file(str(path), "lake", f"{table.table_id}/{path.relative_to(table.folder)}")
            bench.sync()
            found = bench.store.list_live_mirrors(1)
            assert [each.kind for each in found] == [kind] * mirrors
            agree(bench.iceberg(), table, location)

        synced(1)
        table.commit([case.add(table)])
        synced(2)
        before = dict(table.live), dict(table.deleted)
        table.commit(with_vector(table, a, {0, 1}), operation="DELETE")
        synced(2)
        table.commit([table.remove(a), table.remove(b), case.add(table)], operation="OPTIMIZE")
        synced(1)
        gone = table.remove(c)
        table.live, table.deleted = before
        table.commit([gone, *({"add": action} for action in table.live.values())], operation="RESTORE")
        synced(2)
        (table.folder / c).unlink()
        if client:
            client.delete_object(Bucket="lake", Key=f"{table.table_id}/{c}")
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
    live(tmp_path, case, kind, 3, lambda iceberg, table, _: assert_readers_agree(iceberg, None, rows_of(case, table)))


@pytest.mark.long
@pytest.mark.parametrize("place", ["local", "s3"])
@pytest.mark.parametrize("reason", REASONS)
def test_a_life_that_spark_reads(
    reason: str, place: str, s3_spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """In both format versions; Delta on Spark says what is Delta's."""
    case, kind = REASONS[reason]

    def agree(iceberg: Table, table: HandmadeTable, location: str) -> None:
        rows = read_delta(s3_spark, location.replace("s3:", "s3a:"), iceberg)
        assert sorted(rows) == sorted(rows_of(case, table))
        assert_readers_agree(iceberg, s3_spark, rows)

    for version in (2, 3):
        live(tmp_path / f"v{version}", case, kind, version, agree, s3=store if place == "s3" else None)
