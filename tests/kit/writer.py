"""Spark as the writer of Delta tables and as the judge of their rows, between a test and its session.

A test is the script of its history: it calls functions of a session through a `Writer`, and nothing else of Spark.
Here Spark runs them; `archive.py` has writers that record what it did, and that replay it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from daemon.delta.log import COMMIT_FILE
from tests.kit.spark_process import SparkProcess

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

# When version 0 was committed, and each other one a second after its predecessor: see `date_commits`.
COMMITTED_S = 1_577_836_800
FILE_COLUMN, POSITION_COLUMN = "_test_file", "_test_position"


class Writer:
    """Spark itself: `spark` runs a function of a session. A test asks it for what no archive has: Iceberg tables."""

    def __init__(self, spark: SparkProcess) -> None:
        self.spark = spark
        self.settings: dict[str, str] = {}
        # What is left to do when a test has passed so far.
        self.at_end: list[Callable[[], None]] = []

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What `function(session, *arguments)` gives. It changes files only below folders among the arguments."""
        return self.spark(function, *arguments, settings=self.settings)

    @contextmanager
    def confs(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Spark has these settings in all calls of the block."""
        before = self.settings
        self.settings = {**before, **settings}
        try:
            yield
        finally:
            self.settings = before

    def sql(self, statement: str, folder: Path) -> None:
        """Run a statement, in which `{t}` is the Delta table in `folder`."""
        self.do(run_sql, statement, folder)

    def rows(self, query: str, folder: Path) -> pa.Table:
        """What a query gives, in which `{t}` is the Delta table in `folder`."""
        found: pa.Table = self.do(rows_of_query, query, folder)
        return found

    def delta(self, folder: Path, version: int | None = None) -> pa.Table:
        """The rows of the Delta table in `folder`, at its newest version or another one."""
        found: pa.Table = self.do(read_delta_rows, folder, version)
        return found

    def finish(self) -> None:
        """The test has passed so far."""
        while self.at_end:
            self.at_end.pop()()


def date_commits(folder: Path) -> None:
    """Delta goes by the times of commit files, which no archive has: give them times that are always the same."""
    for path in (folder / "_delta_log").iterdir():
        if COMMIT_FILE.fullmatch(path.name):
            committed_s = COMMITTED_S + int(path.stem)
            os.utime(path, (committed_s, committed_s))


def run_sql(session: SparkSession, statement: str, folder: Path) -> None:
    session.sql(statement.replace("{t}", f"delta.`{folder}`"))


def rows_of_query(session: SparkSession, query: str, folder: Path) -> pa.Table:
    return session.sql(query.replace("{t}", f"delta.`{folder}`")).toArrow()


def read_delta_rows(session: SparkSession, folder: Path, version: int | None) -> pa.Table:
    reader = session.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(str(folder)).toArrow()


def read_delta_positions(session: SparkSession, folder: Path) -> pa.Table:
    """The rows of a Delta table, with the file and the position in it from which each of them comes."""
    from pyspark.sql.functions import lit  # noqa: PLC0415 - replayed tests do without it

    frame = session.read.format("delta").load(str(folder))
    # Delta tells positions only of tables that may have deletion vectors.
    has_positions = "row_index" in frame.select("_metadata.*").columns
    return frame.select(
        "*",
        frame["_metadata.file_path"].alias(FILE_COLUMN),
        (frame["_metadata.row_index"] if has_positions else lit(None)).alias(POSITION_COLUMN),
    ).toArrow()


def read_delta_json(session: SparkSession, folder: Path) -> pa.Table:
    """As `read_delta_positions`, with variants as JSON."""
    frame = session.read.format("delta").load(str(folder))
    places = (frame["_metadata.file_path"].alias(FILE_COLUMN), frame["_metadata.row_index"].alias(POSITION_COLUMN))
    return with_json(frame.select("*", *places)).toArrow()


def with_json(frame: DataFrame) -> DataFrame:
    """The same with JSON in the place of variants: PySpark 4.1 turns no null variant into Arrow."""
    return frame.select(*(_json(frame[field.name], field.dataType).alias(field.name) for field in frame.schema))


def _json(value: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType  # noqa: PLC0415

    match kind:
        case VariantType():
            return f.to_json(value)
        case ArrayType():
            return f.transform(value, lambda each: _json(each, kind.elementType))
        case MapType():
            return f.transform_values(value, lambda _, each: _json(each, kind.valueType))
        case StructType():
            inside = [_json(value[field.name], field.dataType).alias(field.name) for field in kind.fields]
            return f.when(value.isNotNull(), f.struct(*inside))
    return value


def overwrite(session: SparkSession, query: str, folder: Path, options: Mapping[str, str]) -> None:
    """What `DataFrame.write` does with these options."""
    session.sql(query).write.format("delta").mode("overwrite").options(**options).save(str(folder))


def reread_log(session: SparkSession, folder: Path) -> None:
    """Delta forgets what it knows of the log, which a test has changed by hand, and reads it."""
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, str(folder))


def checkpoint(session: SparkSession, folder: Path) -> None:
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, str(folder)).checkpoint()


def forget_logs(session: SparkSession) -> None:
    """What Delta knows of tables that a test has removed."""
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
