"""Handmade tables that only some readers misread: a file for each fault that `readers` may lift."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from daemon.errors import MirrorKind
from daemon.mirror import parquet
from daemon.mirror.compact import BINARY, BYTE, STRUCT
from daemon.mirror.footer import SPECIFICATION_VERSION, VARIANT
from daemon.mirror.parquet import encode_footer, load_footer, parse_schema, with_schema
from daemon.store.storage import FileIOStorage
from daemon.translate.readers import Fault
from tests.kit.handmade import HandmadeTable
from tests.kit.mirror_files import column, list_of, map_of, struct_of
from tests.kit.mirror_files import field as stored

FEATURES = ("deletionVectors", "timestampNtz", "columnMapping", "variantType")
FAR = datetime(1600, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Misread:
    """A file of three rows, the second one deleted. `rows` are what Delta shows. A file's name ends with `ending`."""

    columns: Sequence[dict[str, Any]]
    file: pa.Table
    rows: Sequence[tuple[Any, ...]]
    partition: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    is_mapped: bool = False
    versions: Sequence[int] = (2, 3)
    ending: str = ".parquet"

    def write(self, path: Path) -> None:
        pq.write_table(self.file, path, **self.options)
        if self.names:
            rename_elements(path, lambda node: self.names.get(node.name, node.name))
        if self is CASES[Fault.VARIANT]:
            annotate_variants(path)

    def make(self, folder: Path) -> HandmadeTable:
        """The Delta table, at version 1."""
        table = HandmadeTable(folder)
        table.create()
        configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "99"}
        metadata = table.metadata()
        metadata["schemaString"] = json.dumps(struct_of(*self.columns))
        metadata["partitionColumns"] = list(self.partition)
        metadata["configuration"] |= configuration if self.is_mapped else {}
        protocol = table.protocol(FEATURES)
        protocol["writerFeatures"] = [*FEATURES, "allowColumnDefaults"]
        table.commit([{"protocol": protocol}, {"metaData": metadata}, self.add(table)])
        return table

    def add(self, table: HandmadeTable) -> dict[str, Any]:
        """An add action of one more file."""
        path = f"{len(table.rows)}{self.ending}"
        self.write(table.folder / path)
        table.rows[path] = [(number, "", "") for number in range(self.file.num_rows)]
        action = table.add(path, deleted=[1])
        action["add"] |= {
            "partitionValues": dict(self.partition),
            "stats": json.dumps({"numRecords": self.file.num_rows, "tightBounds": False}),
        }
        return action


def with_vector(table: HandmadeTable, path: str, deleted: set[int]) -> list[dict[str, Any]]:
    """The actions that give a live file another deletion vector, and nothing else."""
    action = {**table.live[path], "deletionVector": table.write_dvs({path: deleted})[path]}
    actions = [table.remove(path), {"add": action}]
    table.live[path], table.deleted[path] = action, deleted
    return actions


def rename_elements(path: Path, name_of: Callable[[parquet.Node], str]) -> None:
    """Give the elements of a file's schema other names, as other writers do."""
    footer = load_footer(FileIOStorage(), str(path))
    root = parse_schema(footer.metadata)

    def walk(node: parquet.Node) -> None:
        for each in node.children:
            walk(each)
            each.put(parquet.NAME, BINARY, name_of(each).encode())

    walk(root)
    path.write_bytes(path.read_bytes()[: footer.start] + encode_footer(with_schema(footer.metadata, root)))


def annotate_variants(path: Path) -> None:
    """Say of each group of metadata and value that it is a variant, as Spark does from 4.1 on."""
    footer = load_footer(FileIOStorage(), str(path))
    root = parse_schema(footer.metadata)

    def walk(node: parquet.Node) -> None:
        if {each.name for each in node.children} == {"metadata", "value"}:
            node.put(parquet.LOGICAL, STRUCT, {VARIANT: (STRUCT, {SPECIFICATION_VERSION: (BYTE, 1)})})
        for each in node.children:
            walk(each)

    walk(root)
    path.write_bytes(path.read_bytes()[: footer.start] + encode_footer(with_schema(footer.metadata, root)))


def _table(**columns: Any) -> pa.Table:
    return pa.table({"id": pa.array([1, 2, 3], pa.int64()), **columns})


def _with_ids(*fields: pa.Field, **columns: Any) -> pa.Table:
    table = _table(
        **{name: pa.array(values, each.type) for each, (name, values) in zip(fields, columns.items(), strict=True)}
    )
    return table.cast(pa.schema([stored("id", pa.int64(), 1), *fields]))


ID, MAPPED_ID = column("id", "long"), column("id", "long", 1)
LISTS, MAPS = [[1, None], [], [3]], [[("a", 1)], [], [("b", None)]]
STRUCTS = [[{"x": 1}, None], [], [{"x": 3}]]
X, PHYSICAL_X = pa.struct([stored("x", pa.int64(), 4)]), pa.struct([stored("px", pa.int64(), 4)])
IN_LISTS = pa.list_(stored("element", pa.list_(stored("element", PHYSICAL_X, 12)), 11))
RENAMED = {
    **column("x", "long", 4),
    "metadata": {"delta.columnMapping.id": 4, "delta.columnMapping.physicalName": "px"},
}
MOMENTS, MICROS = [datetime(2020, 1, day, 12, tzinfo=UTC) for day in (1, 2, 3)], pa.timestamp("us")
VARIANTS = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
SEVEN = {"metadata": b"\1\0\0", "value": b"\x0c\x07"}
NAIVE = [moment.replace(tzinfo=None) for moment in MOMENTS]

CASES: Mapping[Fault, Misread] = {
    Fault.ARROW_TYPE: Misread(
        [ID, column("at", "timestamp"), column("l", list_of("long"))],
        _table(
            at=pa.array(MOMENTS, pa.timestamp("us", "Europe/Paris")),
            l=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
            hidden=pa.array([1, 2, 3], pa.duration("us")),
        ),
        [(1, MOMENTS[0], (1, 2)), (3, MOMENTS[2], (5, 6))],
    ),
    Fault.ELEMENT_IDS: Misread(
        [MAPPED_ID, column("l", list_of("long"), 2), column("s", list_of(struct_of(column("x", "long", 4))), 3)],
        _with_ids(stored("l", pa.list_(pa.int64()), 2), stored("s", pa.list_(X), 3), l=LISTS, s=STRUCTS),
        [(1, (1, None), ((1,), None)), (3, (3,), ((3,),))],
        is_mapped=True,
    ),
    Fault.INT96_RANGE: Misread(
        [ID, column("at", "timestamp"), column("l", list_of("timestamp"))],
        _table(
            at=pa.array([FAR] * 3, pa.timestamp("us", "UTC")),
            l=pa.array([[FAR, None]] * 3, pa.list_(pa.timestamp("us", "UTC"))),
        ),
        [(1, FAR, (FAR, None)), (3, FAR, (FAR, None))],
        options={"use_deprecated_int96_timestamps": True},
    ),
    Fault.LAYOUT: Misread(
        [ID, column("l", list_of("long")), column("m", map_of("string", "long"))],
        _table(l=pa.array(LISTS, pa.list_(pa.int64())), m=pa.array(MAPS, pa.map_(pa.string(), pa.int64()))),
        [(1, (1, None), (("a", 1),)), (3, (3,), (("b", None),))],
        names={"list": "bag", "element": "array", "key_value": "entries", "key": "keys", "value": "values"},
    ),
    Fault.MAP_IDS: Misread(
        [MAPPED_ID, column("m", map_of("string", "long"), 2)],
        _with_ids(stored("m", pa.map_(pa.string(), pa.int64()), 2), m=MAPS),
        [(1, (("a", 1),)), (3, (("b", None),))],
        is_mapped=True,
    ),
    Fault.PARTITION_DOUBLE: Misread(
        [ID, column("p", "double")], _table(), [(1, 0.1), (3, 0.1)], partition={"p": "0.1"}
    ),
    Fault.PARTITION_VALUE: Misread(
        [ID, column("p", "string"), column("n", "long")],
        _table(p=["b"] * 3, n=["7"] * 3),
        [(1, "a", 7), (3, "a", 7)],
        partition={"p": "a", "n": "7"},
    ),
    Fault.RENAMED_CONTENTS: Misread(
        [MAPPED_ID, column("l", list_of(list_of(struct_of(RENAMED))), 2, {"l.element": 11, "l.element.element": 12})],
        _with_ids(stored("l", IN_LISTS, 2), l=[[[{"px": 1}]], [], [[{"px": 3}]]]),
        [(1, (((1,),),)), (3, (((3,),),))],
        is_mapped=True,
    ),
    Fault.RESERVED_NAME: Misread(
        [ID, column("_file", "string"), column("_pos", "long"), column("_row_id", "long")],
        _table(_file=["a", "b", "c"], _pos=[7, 8, 9], _row_id=[70, 80, 90]),
        [(1, "a", 7, 70), (3, "c", 9, 90)],
    ),
    Fault.UNSIGNED: Misread(
        [ID, column("i", "integer"), column("n", "long")],
        _table(i=pa.array([1, 2, 65535], pa.uint16()), n=pa.array([1, 2, 255], pa.uint8())),
        [(1, 1, 1), (3, 65535, 255)],
    ),
    Fault.VARIANT: Misread(
        [ID, column("v", "variant"), column("s", struct_of(column("l", list_of("variant"))))],
        _table(
            v=pa.array([SEVEN] * 3, VARIANTS), s=pa.array([{"l": [SEVEN]}] * 3, pa.struct([("l", pa.list_(VARIANTS))]))
        ),
        [(1, "7", (("7",),)), (3, "7", (("7",),))],
        versions=(3,),
    ),
    Fault.VOID: Misread(
        [ID, column("n", "void"), column("s", struct_of(column("x", "long"), column("n", "void")))],
        _table(s=pa.array([{"x": 1}, {"x": 2}, None], pa.struct([("x", pa.int64())]))),
        [(1, None, (1, None)), (3, None, None)],
        versions=(3,),
    ),
    Fault.ZONE_FLAG: Misread(
        [ID, column("at", "timestamp"), column("naive", "timestamp_ntz"), column("l", list_of("timestamp"))],
        _table(
            at=pa.array(NAIVE, MICROS),
            naive=pa.array(MOMENTS, pa.timestamp("us", "UTC")),
            l=pa.array([[each] for each in NAIVE], pa.list_(MICROS)),
        ),
        [(1, MOMENTS[0], NAIVE[0], (MOMENTS[0],)), (3, MOMENTS[2], NAIVE[2], (MOMENTS[2],))],
    ),
}

FILLED = {**column("filled", "long"), "metadata": {"CURRENT_DEFAULT": "7", "EXISTS_DEFAULT": "5"}}
SPARK_2 = {"org.apache.spark.version": "2.4.0"}
# What all readers misread, by the beginning of its row in docs/compatibility.md, and the mirror that they read.
BY_ALL: Mapping[str, tuple[Misread, MirrorKind]] = {
    "the Julian calendar": (
        Misread(
            [ID, column("d", "date"), column("l", list_of("date"))],
            _table(d=[date(1500, 1, 1)] * 3, l=[[date(1500, 1, 1)], None, [None]]).replace_schema_metadata(SPARK_2),
            [(1, date(1499, 12, 23), (date(1499, 12, 23),)), (3, date(1499, 12, 23), (None,))],
        ),
        "rewrite",
    ),
    "files with other field ids": (
        Misread(
            [ID, column("a", "long"), column("b", "long")],
            _with_ids(stored("a", pa.int64(), 3), stored("b", pa.int64(), 2), a=[4, 5, 6], b=[7, 8, 9]),
            [(1, 4, 7), (3, 6, 9)],
        ),
        "footer",
    ),
    "files with durations": (
        Misread([ID, column("b", "binary")], _table(b=pa.array([b"ab"] * 3, pa.binary(2))), [(1, b"ab"), (3, b"ab")]),
        "rewrite",
    ),
    "strings stored as bytes": (
        Misread(
            [ID, column("s", "string"), column("b", "binary"), column("d", "date")],
            _table(s=[b"a"] * 3, b=["c"] * 3, d=pa.array([0] * 3, pa.int32())),
            [(1, "a", b"c", date(1970, 1, 1)), (3, "a", b"c", date(1970, 1, 1))],
        ),
        "footer",
    ),
    "files whose columns are spelled": (
        Misread(
            [ID, column("l", list_of(list_of(struct_of(column("x", "long")))))],
            _table(l=[[[{"X": 1}]]] * 3),
            [(1, (((1,),),)), (3, (((1,),),))],
        ),
        "footer",
    ),
    "paths with `#`": (Misread([ID], _table(), [(1,), (3,)], ending="#?.parquet"), "copy"),
    "`allowColumnDefaults`": (Misread([ID, FILLED], _table(), [(1, 5), (3, 5)]), "rewrite"),
    "widening int to long": (
        Misread(
            [ID, column("d", "double"), column("n", "decimal(12,2)")],
            _table(d=pa.array([1, 2, 3], pa.int32()), n=pa.array([1, 2, 3], pa.int32())),
            [(1, 1.0, Decimal("1.00")), (3, 3.0, Decimal("3.00"))],
        ),
        "rewrite",
    ),
}

# Of 2 kB; its mirror, which is rewritten without the encoding, has 400 kB.
GROWING = Misread(
    [column("id", "long"), column("d", "double")],
    pa.table({"id": pa.array(range(25_000), pa.int64()), "d": pa.array(range(25_000), pa.int32())}),
    [],
    options={
        "use_dictionary": False,
        "compression": "none",
        "column_encoding": dict.fromkeys(("id", "d"), "DELTA_BINARY_PACKED"),
    },
)
