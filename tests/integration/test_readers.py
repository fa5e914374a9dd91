"""What only some readers misread: refused for them by name, and followed where `readers` leaves them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import polars
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from daemon.config.settings import TESTED_READERS, Reader
from daemon.doctor.diagnosis import diagnose
from daemon.errors import Unsupported
from daemon.status.snapshots import show_table
from daemon.translate.readers import KNOWN, Fault, others_misread
from tests.kit.handmade import Bench
from tests.kit.misread import CASES
from tests.kit.readers import READERS, Row, assert_same_rows, duckdb_connection, read_delta

NAMES = {
    Reader.SPARK: ("Spark",),
    Reader.PYICEBERG: ("PyIceberg",),
    Reader.POLARS: ("Polars native", "Polars pyiceberg"),
    Reader.DUCKDB: ("DuckDB",),
}


@contextmanager
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """Sessions in another time zone than UTC, as people have them."""
    duckdb_connection().execute("SET TimeZone = 'America/New_York'")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        yield
    finally:
        duckdb_connection().execute("SET TimeZone = 'UTC'")
        spark.conf.unset("spark.sql.session.timeZone")


# Readers change when their versions here do: then all are tried.
OFTEN = {Fault.ELEMENT_IDS, Fault.INT96_RANGE, Fault.LAYOUT, Fault.PARTITION_VALUE}


@pytest.mark.parametrize(
    "fault", [fault if fault in OFTEN else pytest.param(fault, marks=pytest.mark.long) for fault in Fault]
)
def test_a_fault_is_followed_for_those_who_read_it(spark: SparkSession, tmp_path: Path, fault: Fault) -> None:
    """In the format versions that have it, the listed readers show Delta's rows, and each of the others fails to.

    The day this fails, a refusal has had its time.
    """
    case = CASES[fault]
    table = case.make(tmp_path / "delta")
    read_by = [reader for reader in Reader if reader in KNOWN[fault].read_by]
    for_all = {"format_version": case.versions[0]}
    with closing(Bench(tmp_path / "all", table.location, table_options=for_all)) as bench:
        with pytest.raises(Unsupported, match=r"which .* would misread") as refused:
            bench.sync()
        assert f"readers: [{', '.join(read_by)}]" in refused.value.hint
        assert not diagnose(bench.settings, bench.context.log, bench.spark).is_followed
    for version in case.versions:
        options = {"readers": read_by, "format_version": version}
        with closing(Bench(tmp_path / f"v{version}", table.location, table_options=options)) as bench:
            bench.sync()
            iceberg = bench.iceberg()
            assert show_table(bench.settings, iceberg, ()).notes == (f"`readers` leaves out {others_misread(fault)}",)
            found = diagnose(bench.settings, bench.context.log, bench.spark)
            assert found.is_followed
            assert any(finding.text.endswith(others_misread(fault)) for finding in found.findings)
            assert sorted(read_delta(spark, table.location, iceberg)) == case.rows
            with elsewhere(spark) if fault is Fault.ZONE_FLAG else nullcontext():
                for reader in TESTED_READERS:
                    wrong = [text for name in NAMES[reader] if (text := difference(name, iceberg, spark, case.rows))]
                    assert bool(wrong) == (reader not in read_by), wrong
                for number, column in enumerate(iceberg.schema().fields):
                    value = case.rows[-1][number]
                    if column.field_type.is_primitive and value is not None:
                        expected = [row[0] for row in case.rows if row[number] == value]
                        for reader in read_by:
                            for name in NAMES[reader]:
                                assert sorted(where(name, iceberg, spark, column.name, value)) == expected, name


def difference(name: str, iceberg: Table, spark: SparkSession, rows: Sequence[Row]) -> str | None:
    """How a reader differs from these rows, or fails."""
    try:
        assert_same_rows(READERS[name](iceberg, spark), rows, name)
    except AssertionError as error:
        return str(error)
    except Exception as error:
        return f"{name}: {error}"
    return None


def where(name: str, iceberg: Table, spark: SparkSession, column: str, value: Any) -> list[int]:
    """The ids of the rows with this value, by a reader's filter."""
    if name == "Spark":
        frame = spark.read.format("iceberg").load(iceberg.metadata_location)
        # PySpark takes a time without a zone for an instant.
        is_naive = isinstance(value, datetime) and value.tzinfo is None
        condition = expr(f"`{column}` = TIMESTAMP_NTZ'{value}'") if is_naive else frame[column] == value
        return [row[0] for row in frame.where(condition).select("id").collect()]
    if name == "DuckDB":
        query = f'SELECT id FROM iceberg_scan(?) WHERE "{column}" = ?'
        found = duckdb_connection().execute(query, [iceberg.metadata_location, value]).fetchall()
        return [row[0] for row in found]
    if name == "PyIceberg":
        literal = value.isoformat() if isinstance(value, datetime) else value
        scan = iceberg.scan(row_filter=EqualTo(column, literal), selected_fields=("id", column))
        return scan.to_arrow()["id"].to_pylist()
    frame = polars.scan_iceberg(iceberg, reader_override=name.removeprefix("Polars "))  # type: ignore[arg-type]
    return frame.filter(polars.col(column) == value).select("id").collect()["id"].to_list()
