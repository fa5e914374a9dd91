"""Each refusal of docs/compatibility.md names the settings that lift it, in its hint and on the page, if one does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import DateType

from daemon.config.settings import Reader
from daemon.delta.actions import AddFile, Protocol
from daemon.delta.features import check_protocol
from daemon.errors import MirrorKind, Unsupported
from daemon.pipeline.inspection import Inspector
from daemon.store.storage import FileIOStorage, check_path
from daemon.translate.delta_types import SCHEMA_CHARACTERS_MAX, parse_struct
from daemon.translate.partition_values import parse_partition_value
from daemon.translate.readers import KNOWN, Fault
from daemon.translate.schema import TableSchema
from tests.kit.mirror_files import column, struct_of, table_of
from tests.kit.mirror_files import field as stored
from tests.kit.misread import CASES, Misread

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
Check = Callable[[Path], object]


def of_case(case: Misread, folder: Path) -> None:
    """Raise why a file is refused, by its schema or itself."""
    mode = "name" if case.is_mapped else None
    table = table_of(*case.columns, partitions=case.partition, mode=mode)
    path = folder / "f.parquet"
    case.write(path)
    inspect(path, table, dict(case.partition))


def inspect(path: Path, table: TableSchema, values: dict[str, str]) -> None:
    add = AddFile(f"file://{path}", True, partition_values=values, size=path.stat().st_size)
    Inspector(FileIOStorage(), table).inspect([add])


def of_file(file: pa.Table, *columns: dict[str, Any], name: str = "f", mode: str | None = None) -> Check:
    def check(folder: Path) -> None:
        path = folder / f"{name}.parquet"
        pq.write_table(file, path)
        inspect(path, table_of(*columns, mode=mode), {})

    return check


def with_default(folder: Path) -> None:
    filled = column("a", "long")
    filled["metadata"] = {"EXISTS_DEFAULT": "5"}
    of_file(pa.table({"b": [1]}), filled, column("b", "long"))(folder)


LONGS = [stored("a", pa.int64(), 2), stored("b", pa.int64(), 1)]
SWAPPED = pa.table([[1], [2]], schema=pa.schema(LONGS))
OLD = pa.table({"d": [None]}, pa.schema({"d": pa.date32()}, {"org.apache.spark.version": "2.4.0"}))
BYTES = pa.table({"b": pa.array([b"ab"], pa.binary(2))})
# What a row of the page begins with, what is refused by it, and the kind of mirror that lifts that.
REFUSED: list[tuple[str, Check, MirrorKind | None]] = [
    ("the Julian calendar", of_file(OLD, column("d", "date")), "rewrite"),
    ("files with other field ids", of_file(SWAPPED, column("a", "long"), column("b", "long")), "footer"),
    ("files with other field ids", of_file(SWAPPED, column("a", "long", 1), column("b", "long", 2), mode="id"), None),
    ("files with durations", of_file(BYTES, column("b", "binary")), "rewrite"),
    ("strings stored as bytes", of_file(pa.table({"s": [b"a"]}), column("s", "string")), "footer"),
    ("strings stored as bytes", of_file(pa.table({"b": ["a"]}), column("b", "binary")), "footer"),
    ("strings stored as bytes", of_file(pa.table({"d": pa.array([0], pa.int32())}), column("d", "date")), "footer"),
    ("a column `a.b`", lambda _: table_of(column("a.b", "long"), column("a", struct_of(column("b", "long")))), None),
    ("files whose columns are spelled", of_file(pa.table({"A": [1], "a": [2]}), column("a", "long")), None),
    ("widening int to long", of_file(pa.table({"d": pa.array([1], pa.int32())}), column("d", "double")), "rewrite"),
    ("widening int to long", of_file(pa.table({"d": pa.array([1], pa.int64())}), column("d", "integer")), None),
    ("paths with `#`", of_file(pa.table({"a": [1]}), column("a", "long"), name="a#b"), "copy"),
    ("`s3://b//t`", lambda _: check_path("s3://b//t"), None),
    ("values in a year", lambda _: parse_partition_value("10000-01-01", DateType(), "p"), None),
    ("`allowColumnDefaults`", with_default, "rewrite"),
    ("any other for readers", lambda _: check_protocol(Protocol(3, 7, ["other"], ["other"])), None),
    ("schemas above 4 MiB", lambda _: parse_struct(" " * (SCHEMA_CHARACTERS_MAX + 1)), None),
]
# The same for what only some readers misread.
MISREAD: dict[Fault, tuple[str, MirrorKind | None]] = {
    Fault.ARROW_TYPE: ("files with durations", "footer"),
    Fault.ELEMENT_IDS: ("arrays and maps under", "footer"),
    Fault.INT96_RANGE: ("timestamp in INT96", "rewrite"),
    Fault.LAYOUT: ("older Parquet layouts", "footer"),
    Fault.MAP_IDS: ("arrays and maps under", "footer"),
    Fault.PARTITION_DOUBLE: ("doubles that are not exact", "rewrite"),
    Fault.PARTITION_VALUE: ("partition columns in the files", "rewrite"),
    Fault.RENAMED_CONTENTS: ("the same with structs", None),
    Fault.RESERVED_NAME: ("columns `_file`", None),
    Fault.UNSIGNED: ("unsigned numbers", "footer"),
    Fault.VARIANT: ("variant", None),
    Fault.VOID: ("void", None),
    Fault.ZONE_FLAG: ("timestamps with the wrong flag", "footer"),
}


def row_of(beginning: str) -> str:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {beginning}")]
    return row


COSTS = {"mirrors": "which copies their bytes|which reads their rows and writes them", "readers": "would misread it"}


def settings_in(hint: str) -> Iterator[str]:
    """Yield the settings that a hint names, each with what it costs."""
    for key, value, cost in re.findall(r"\b(mirrors|readers): (\w+|\[[^]]*\])([^.]*)", hint):
        assert re.search(COSTS[key], cost), hint
        yield f"{key}: {value}"


@pytest.mark.parametrize(("row", "check", "kind"), REFUSED)
def test_what_all_readers_misread(row: str, check: Check, kind: MirrorKind | None, tmp_path: Path) -> None:
    """No readers lift it."""
    with pytest.raises(Unsupported) as raised:
        check(tmp_path)
    assert list(settings_in(raised.value.hint)) == ([f"mirrors: {kind}"] if kind else [])
    assert kind is None or f"*{kind}*" in row_of(row)


@pytest.mark.parametrize("fault", Fault)
def test_what_some_readers_misread(fault: Fault, tmp_path: Path) -> None:
    """Those who read it are named, and the mirror that all read."""
    row, kind = MISREAD[fault]
    with pytest.raises(Unsupported) as raised:
        of_case(CASES[fault], tmp_path)
    names = ", ".join(sorted(KNOWN[fault].read_by, key=list(Reader).index))
    told = [f"readers: [{names}]", *([f"mirrors: {kind}"] if kind else [])]
    assert list(settings_in(raised.value.hint)) == told
    assert f"*{names}*" in row_of(row)
    assert kind is None or f"*{kind}*" in row_of(row)
