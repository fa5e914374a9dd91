"""Files and schema meet in any order: a file before its columns, the columns before the file, both at a first sync.

Whatever the order, the table ends with the same rows, which are Delta's, or is refused for the same reason.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, datetime
from hashlib import sha256
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import StringType

from daemon.errors import CorruptInput, TargetChanged, Unsupported
from daemon.iceberg.catalogs import Catalogs
from daemon.pipeline import inspection
from daemon.translate import file_schema
from daemon.translate.existing_table import NAME_MAPPING, NAME_MAPPING_HASH
from daemon.verify.findings import Fault, Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.forking import run_forked
from tests.kit.handmade import COLUMNS, FEATURES, Bench, HandmadeTable, sql_catalog
from tests.kit.readers import READERS, assert_same_rows

BASE = {"id": pa.array([1, 2], pa.int64()), "part": ["a", "a"], "value": ["v1", "v2"]}
ROWS = [(1, "a", "v1"), (2, "a", "v2")]
WITH_IDS = {"id": 1, "part": 2, "value": 3}
TEXTS = pa.array(["h1", "h2"])
NUMBERS = pa.array([7, 8], pa.int64())
FAR = pa.array([datetime(3000, 1, 1)] * 2, pa.timestamp("us"))
IN_LISTS = pa.array([[1], [2]], pa.list_(pa.int64()))


def column(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def list_of(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


@dataclass(frozen=True)
class Case:
    """A file with the columns `stored` beside BASE, and the Delta columns that the table gets beside COLUMNS.

    They replace the columns `before`. `ids` are the field ids of the file's columns. The result is `rows` (what each
    row has in the new columns) or the reason `says`; `shown` if following finds ids for the new columns with which it
    can show what a first sync refuses.
    """

    stored: Mapping[str, Any]
    added: Sequence[dict[str, Any]] = ()
    says: str = ""
    rows: Sequence[tuple[Any, ...]] = ()
    shown: Sequence[tuple[Any, ...]] = ()
    before: Sequence[dict[str, Any]] = ()
    ids: Mapping[str, int] = field(default_factory=dict)
    mode: str = "none"
    partition: tuple[str, str, str] | None = None
    writer: Mapping[str, Any] = field(default_factory=dict)
    footer: Mapping[str, str] = field(default_factory=dict)
    patch: Callable[[bytes], bytes] = bytes


CASES = {
    "hidden": Case({"x": TEXTS}, [column("y", "string")], rows=[(None,), (None,)]),
    "equal name": Case({"x": TEXTS}, [column("x", "string")], rows=[("h1",), ("h2",)]),
    "other case": Case({"Extra": TEXTS}, [column("extra", "string")], rows=[("h1",), ("h2",)]),
    "other case inside": Case(
        {"S": pa.array([{"X": 1}, {"X": 2}])},
        [column("s", {"type": "struct", "fields": [column("x", "long"), column("y", "long")]})],
        rows=[((1, None),), ((2, None),)],
    ),
    "more inside": Case(
        {"s": pa.array([{"x": 1, "z": 5}, {"x": 2, "z": 6}])},
        [column("s", {"type": "struct", "fields": [column("x", "long")]})],
        rows=[((1,),), ((2,),)],
    ),
    "another case": Case(
        {"Extra": TEXTS}, [column("extra", "string")], rows=[("h1",), ("h2",)], before=[column("Extra", "string")]
    ),
    "another case inside": Case(
        {"S": pa.array([[{"X": 1}], [{"X": 2}]])},
        [column("s", list_of({"type": "struct", "fields": [column("x", "long")]}))],
        rows=[(((1,),),), (((2,),),)],
        before=[column("S", list_of({"type": "struct", "fields": [column("X", "long")]}))],
    ),
    "another case in lists of lists": Case(
        {"s": pa.array([[[{"X": 1}]], [[{"X": 2}]]])},
        [column("s", list_of(list_of({"type": "struct", "fields": [column("x", "long")]})))],
        "column s of the file has the field s.element.element.X, which the table spells otherwise",
        before=[column("s", list_of(list_of({"type": "struct", "fields": [column("X", "long")]})))],
    ),
    "two cases": Case(
        {"Extra": TEXTS, "EXTRA": TEXTS},
        [column("extra", "string")],
        "columns Extra and EXTRA of the file differ only in upper and lower case: Delta on Spark does not read such a "
        "column, and DuckDB not the columns after it",
    ),
    "two cases and ids": Case(
        {"Y": TEXTS, "y": TEXTS, "x": TEXTS},
        [column("x", "string")],
        rows=[("h1",), ("h2",)],
        ids={**WITH_IDS, "Y": 5, "y": 6, "x": 4},
    ),
    "two cases and ids of a column": Case(
        {"Y": TEXTS, "y": TEXTS},
        [column("y", "string")],
        "columns Y and y of the file differ only in",
        ids={**WITH_IDS, "Y": 5, "y": 4},
    ),
    "another type": Case(
        {"x": NUMBERS},
        [column("x", "string")],
        "column x of the file is stored as int64, but the column's type is string: readers of the Iceberg table "
        "would not "
        "show what Delta shows",
    ),
    "another type inside": Case(
        {"s": pa.array([{"x": 1}, {"x": 2}])},
        [column("s", {"type": "struct", "fields": [column("x", "string")]})],
        "column s.x of the file is stored as int64",
    ),
    "own id": Case({"x": TEXTS}, [column("x", "string")], rows=[("h1",), ("h2",)], ids={**WITH_IDS, "x": 4}),
    "id of a hidden column": Case(
        {"internal": TEXTS},
        [column("x", "string")],
        "column internal of the file carries the field id 4 of another column",
        shown=[(None,), (None,)],
        ids={**WITH_IDS, "internal": 4},
    ),
    "id inside a hidden column": Case(
        {"internal": pa.array([{"x": 1}, {"x": 2}])},
        [column("x", "long")],
        "column internal of the file carries the field id 4 of another column",
        shown=[(None,), (None,)],
        ids={**WITH_IDS, "internal": 9, "internal.x": 4},
    ),
    "id by column mapping": Case(
        {"internal": TEXTS},
        [column("x", "string")],
        "column internal of the file carries the field id 4 of another column",
        ids={**WITH_IDS, "internal": 4},
        mode="name",
    ),
    "another id": Case(
        {"x": TEXTS, "y": TEXTS},
        [column("x", "string"), column("y", "string")],
        "column x of the file carries the field id 5, but the column's is 4",
        ids={**WITH_IDS, "x": 5, "y": 4},
        mode="name",
    ),
    "no id": Case({"x": TEXTS}, [column("x", "string")], "carries no field id, but the column's is 4", ids=WITH_IDS),
    "no ids at all": Case(
        {},
        [column("x", "string")],
        "the file has no field ids, but the table's column mapping is by id: Delta on Spark does not read it",
        mode="id",
    ),
    "default": Case(
        {},
        [column("x", "long", EXISTS_DEFAULT="5")],
        "column x is missing in the file, and Delta fills it with a default (EXISTS_DEFAULT): Iceberg readers "
        "would show nulls",
    ),
    "default that is there": Case({"X": NUMBERS}, [column("x", "long", EXISTS_DEFAULT="5")], rows=[(7,), (8,)]),
    "int96": Case(
        {"X": FAR},
        [column("x", "timestamp")],
        "column x of the file has INT96 timestamps before 1677 or after 2262, which PyIceberg and Polars would misread",
        writer={"use_deprecated_int96_timestamps": True},
    ),
    "julian days": Case(
        {"x": pa.array([date(1500, 1, 1)] * 2)},
        [column("x", "date")],
        "column x of the file has or may have values before 1582-10-15, stored in the Julian calendar: Iceberg "
        "readers would show wrong days",
        footer={"org.apache.spark.version": "2.4.0"},
    ),
    "older lists": Case(
        {"x": IN_LISTS},
        [column("x", {"type": "array", "elementType": "long", "containsNull": True})],
        "column x.bags.element of the file has the layout of lists or maps in older Parquet files, which DuckDB "
        "would misread",
        patch=lambda data: data.replace(b"\x04list", b"\x04bags"),
    ),
    "durations": Case(
        {"x": NUMBERS.cast(pa.duration("us"))},
        [column("y", "long")],
        "the file has an Arrow schema that Iceberg cannot have (",
    ),
    "widened partition": Case(
        {},
        [],
        "partition column p, which the file lacks, is 0.1 and no float, which PyIceberg and Polars would misread",
        partition=("float", "double", "0.1"),
    ),
    "widened partition that is exact": Case({}, [], rows=[(0.5,), (0.5,)], partition=("float", "double", "0.5")),
    "partition in the file": Case(
        {"P": pa.array([5, 6], pa.int32())},
        [],
        "partition column p is '5' in the Delta log and something else in the file, which PyIceberg, "
        "Polars and DuckDB would misread",
        partition=("integer", "long", "5"),
    ),
}


class Source:
    """A handmade table of a case."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.case, self.table = case, HandmadeTable(folder)
        (folder / "_delta_log").mkdir(parents=True)

    def commit_schema(self, *, is_new: bool) -> None:
        case, table = self.case, self.table
        fields = [column(name, kind) for name, kind in COLUMNS] + list(case.added if is_new else case.before)
        if case.partition:
            fields.append(column("p", case.partition[is_new]))
        mode = case.mode if is_new or case.mode != "id" else "none"
        for number, each in enumerate(fields if mode != "none" else (), start=1):
            each["metadata"] = {
                **each["metadata"],
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": each["name"],
            }
        metadata = table.metadata()
        metadata["schemaString"] = json.dumps({"type": "struct", "fields": fields})
        metadata["partitionColumns"] = ["p"] if case.partition else []
        metadata["configuration"] |= {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "9"}
        features = [*FEATURES, "columnMapping", "typeWidening", "allowColumnDefaults"]
        protocol = {**table.protocol(features[:-1]), "writerFeatures": features}
        table.commit([{"protocol": protocol}, {"metaData": metadata}])

    def commit_file(self) -> None:
        case, table = self.case, self.table
        path = table.folder / "file.parquet"
        arrow = pa.table({**BASE, **case.stored})
        arrow = pa.table(arrow.columns, schema=pa.schema([_with_ids(each, case.ids) for each in arrow.schema]))
        pq.write_table(arrow.replace_schema_metadata(dict(case.footer)), path, **case.writer)
        path.write_bytes(case.patch(path.read_bytes()))
        table.rows[path.name] = ROWS
        action = table.add(path.name)
        if case.partition:
            action["add"]["partitionValues"] = {"p": case.partition[2]}
        table.commit([action])


def _with_ids(each: pa.Field, ids: Mapping[str, int], parent: str = "") -> pa.Field:
    name = parent + each.name
    if pa.types.is_struct(each.type):
        each = each.with_type(pa.struct([_with_ids(inner, ids, f"{name}.") for inner in each.type]))
    return each.with_metadata({"PARQUET:field_id": str(ids[name])}) if name in ids else each


Step = Callable[[Source], None]
OLD_SCHEMA: Step = lambda source: source.commit_schema(is_new=False)  # noqa: E731
NEW_SCHEMA: Step = lambda source: source.commit_schema(is_new=True)  # noqa: E731
FILE_FIRST, SCHEMA_FIRST, FIRST_SYNC = "file first", "schema first", "first sync"
# What Delta does before each of three syncs.
ORDERS: Mapping[str, Sequence[Sequence[Step]]] = {
    FILE_FIRST: ([OLD_SCHEMA], [Source.commit_file], [NEW_SCHEMA]),
    SCHEMA_FIRST: ([], [NEW_SCHEMA], [Source.commit_file]),
    FIRST_SYNC: ([], [], [NEW_SCHEMA, Source.commit_file]),
}


def sync(folder: Path, tables: Sequence[Mapping[str, Any]]) -> str:
    """Run the command once for these tables, on a catalog in the folder: its exit code and what it prints."""
    config = {
        "state": {"url": f"sqlite:///{folder}/state.db"},
        "catalogs": {"local": sql_catalog(folder)},
        "defaults": {"engine": "local"},
        "tables": tables,
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    ended = run_forked(["sync", "--config", str(folder / "config.yaml")])
    return f"{ended.returncode} {ended.stdout}{ended.stderr}"


@dataclass(frozen=True)
class Grid:
    """All cases in all orders, as `dvsync sync` left them. `said` has the last line of it on each table."""

    folder: Path
    said: Mapping[str, str]

    def result(self, name: str) -> str:
        """The reason of a refusal, or the rows that readers show."""
        said = self.said[name]
        if not said.startswith(f"{name}: advanced, version "):
            assert re.search(r"^[^ ]+: Unsupported: .*\.parquet\]$", said), said
            return said
        with closing(Catalogs({"local": sql_catalog(self.folder)})) as catalogs:
            table = catalogs.open("local").load_table(name)
            rows = READERS["PyIceberg"](table, None)
            for reader in ("DuckDB", "Polars native"):
                assert_same_rows(READERS[reader](table, None), rows, reader)
        return repr(sorted(rows, key=repr))


def target_of(case: str, order: str) -> str:
    return f"lake.{case} {order}".replace(" ", "_")


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.long)])
def grid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """One process follows all tables at each of the three syncs."""
    folder = tmp_path_factory.mktemp("grid")
    sources = {
        target_of(name, order): (Source(folder / target_of(name, order), case), rounds)
        for name, case in CASES.items()
        for order, rounds in ORDERS.items()
    }
    tables = [
        {"source": str(source.table.folder), "target": target, "format_version": request.param}
        for target, (source, _) in sources.items()
    ]
    said = ""
    for number in range(3):
        for source, rounds in sources.values():
            for step in rounds[number]:
                step(source)
        said = sync(folder, tables)
    lines = said.partition(" ")[2].splitlines()
    return Grid(folder, {target: next(line for line in lines if line.startswith(f"{target}: ")) for target in sources})


@pytest.mark.parametrize("name", CASES)
def test_files_and_schema_meet_in_any_order(grid: Grid, name: str) -> None:
    """The same rows or the same reason, in both orders and at a first sync."""
    case = CASES[name]
    for order in ORDERS:
        result = grid.result(target_of(name, order))
        told = case.shown if order == FILE_FIRST and case.shown else case.rows
        if told:
            assert result == repr([(*row, *more) for row, more in zip(ROWS, told, strict=True)]), order
        else:
            assert case.says in result, order


def reasons(module: ModuleType) -> Iterator[str]:
    """For each refusal in a module, and each fault that some reader would misread, a pattern of its text."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Call(func=ast.Name(id="Unsupported" | "_unreadable") | ast.Attribute(attr="add"), args=texts):
                pass
            case ast.Assign(targets=[ast.Name(id="what" | "why")], value=value):
                texts = [value]
            case _:
                continue
        for text in texts:
            if isinstance(text, ast.JoinedStr):
                yield "".join(
                    re.escape(str(each.value)) if isinstance(each, ast.Constant) else ".*" for each in text.values
                )
            elif isinstance(text, ast.Constant) and " " in str(text.value):
                yield re.escape(str(text.value))


def test_each_reason_has_a_case() -> None:
    """A new rule about files gets a case above."""
    found = {reason for module in (file_schema, inspection) for reason in reasons(module)}
    assert len(found) > 10
    missing = {reason for reason in found if not any(re.search(reason, f"{case.says})") for case in CASES.values())}
    missing -= {re.escape("lacks Parquet's annotation of variants")}  # In unit/translate.
    assert not missing


def read(bench: Bench, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
    rows = bench.iceberg().scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A table with a file that also has the texts `Extra`, of which the schema says nothing."""
    source = Source(tmp_path / "delta", Case({"Extra": TEXTS}, ids={**WITH_IDS, "Extra": 4}))
    source.commit_schema(is_new=False)
    source.commit_file()
    return source


@pytest.fixture
def bench(tmp_path: Path, source: Source) -> Iterator[Bench]:
    bench = Bench(tmp_path / "dvsync", source.table.location)
    bench.sync()
    yield bench
    bench.close()


def add_column(source: Source, name: str, kind: str = "string") -> None:
    source.table.commit([{"metaData": source.table.metadata((*COLUMNS, (name, kind)))}], operation="ADD COLUMNS")


def test_a_column_that_no_file_has_opens_none(source: Source, bench: Bench) -> None:
    """Adding a column costs what it did: no file is opened, although one has a hidden column."""
    (source.table.folder / "file.parquet").rename(source.table.folder / "away")
    add_column(source, "other")
    bench.sync()
    (source.table.folder / "away").rename(source.table.folder / "file.parquet")
    assert read(bench) == [(*row, None) for row in ROWS]


def test_hidden_columns_outlive_the_state_store(source: Source, bench: Bench) -> None:
    """What is known of them is in the Iceberg table: a new column gets no id of theirs."""
    bench.close()
    bench.state_file.unlink()
    bench.open()
    add_column(source, "other")
    bench.sync()
    assert read(bench) == [(*row, None) for row in ROWS]
    assert bench.iceberg().schema().find_field("other").field_id == 5


def test_older_snapshots_keep_hidden_columns(tmp_path: Path) -> None:
    """Their files' names stay in the name mapping when a later column takes them, although no live file has them."""
    source = Source(tmp_path / "delta", Case({"Extra": TEXTS}))
    source.commit_schema(is_new=False)
    source.commit_file()
    bench = Bench(tmp_path / "dvsync", source.table.location)
    bench.sync()
    snapshot_id = bench.iceberg().metadata.current_snapshot_id
    rewritten = source.table.write_file(ROWS)
    source.table.commit([source.table.remove("file.parquet"), source.table.add(rewritten)])
    add_column(source, "extra")
    bench.sync()
    assert (read(bench), read(bench, snapshot_id)) == ([(*row, None) for row in ROWS], ROWS)
    bench.close()


def test_a_resync_keeps_the_names_of_older_snapshots(tmp_path: Path) -> None:
    """Somebody else adds a column, and with it changes the name mapping, which has `Extra` for files that are gone."""
    source = Source(tmp_path / "delta", CASES["other case"])
    source.commit_schema(is_new=True)
    source.commit_file()
    bench = Bench(tmp_path / "dvsync", source.table.location)
    bench.sync()
    snapshot_id, rows = bench.iceberg().metadata.current_snapshot_id, read(bench)
    source.table.commit([source.table.remove("file.parquet"), source.table.add(source.table.write_file(ROWS))])
    bench.sync()
    with bench.iceberg().update_schema() as update:
        update.add_column("more", StringType())
    with pytest.raises(TargetChanged, match=r"schema and its property schema\.name-mapping"):
        bench.reopen()
        bench.sync()
    bench.sync(full=True)
    assert (read(bench), read(bench, snapshot_id)) == ([(*row, None) for row in ROWS], rows)
    bench.close()


@pytest.mark.parametrize("mode", ["none", "name"])
def test_a_resync_after_somebody_took_names(tmp_path: Path, mode: str) -> None:
    """Spark's DROP COLUMN and ADD COLUMN leave fields without names in the name mapping: none of them is kept."""
    source = Source(tmp_path / "delta", Case({"x": TEXTS}, [column("y", "string")], mode=mode))
    source.commit_schema(is_new=False)
    source.commit_file()
    bench = Bench(tmp_path / "dvsync", source.table.location)
    bench.sync()
    with bench.iceberg().transaction() as transaction:
        ids = json.loads(bench.iceberg().properties[NAME_MAPPING])
        taken = [{**each, "names": []} for each in ids]
        new = [{**each, "field-id": number} for number, each in enumerate(ids, 11)]
        transaction.set_properties({NAME_MAPPING: json.dumps([*taken, *new])})
    bench.sync(full=True)
    assert read(bench) == ROWS
    assert all(each.names for each in bench.iceberg().name_mapping())
    source.commit_schema(is_new=True)
    bench.sync()
    assert read(bench) == [(*row, None) for row in ROWS]
    bench.close()


def test_a_dropped_column_comes_back(tmp_path: Path) -> None:
    """Without column mapping, older files still have it: shown where the type fits, refused where it does not."""
    source = Source(tmp_path / "delta", Case({"x": NUMBERS}))
    bench = Bench(tmp_path / "dvsync", source.table.location)
    source.commit_schema(is_new=False)
    add_column(source, "x", "long")
    source.commit_file()
    bench.sync()
    for kind, says in (("long", ""), ("string", "is stored as int64")):
        source.table.commit([{"metaData": source.table.metadata()}])
        bench.sync()
        assert read(bench) == ROWS
        add_column(source, "x", kind)
        if says:
            with pytest.raises(Unsupported, match=says):
                bench.sync()
        else:
            bench.sync()
            assert read(bench) == [(*row, number) for row, number in zip(ROWS, (7, 8), strict=True)]
    bench.close()


def test_older_snapshots_keep_a_column_of_another_case(tmp_path: Path) -> None:
    """A case that changes is a new name of the same column, so no snapshot is misread."""
    source = Source(tmp_path / "delta", CASES["another case"])
    bench = Bench(tmp_path / "dvsync", source.table.location)
    for (step,) in ORDERS[FILE_FIRST]:
        step(source)
        bench.sync()
    shown = [read(bench, snapshot.snapshot_id) for snapshot in bench.iceberg().snapshots()]
    assert shown == [[], [(*row, text) for row, text in zip(ROWS, TEXTS.to_pylist(), strict=True)]]
    bench.close()


def test_a_partition_column_of_another_case(tmp_path: Path) -> None:
    """Delta on Spark finds no partition value by another case, and shows null: so does a resync."""
    table = HandmadeTable(tmp_path / "delta", partitioned=True)
    table.create()
    table.commit([table.add(table.write_file(ROWS))])
    bench = Bench(tmp_path / "dvsync", table.location)
    bench.sync()
    other = table.metadata([("id", "long"), ("PART", "string"), ("value", "string")])
    table.commit([{"metaData": {**other, "partitionColumns": ["PART"]}}])
    with pytest.raises(Unsupported, match=r"column PART \(spelled part before\) changed while 1 older") as refused:
        bench.sync()
    assert refused.value.hint.startswith("`dvsync resync t` makes it a new column")
    assert read(bench) == ROWS
    bench.sync(full=True)
    assert read(bench) == [(number, None, value) for number, _, value in ROWS]
    bench.close()


def test_columns_of_one_name(source: Source, bench: Bench, tmp_path: Path) -> None:
    """Iceberg keeps every schema, so none has two columns for one of Delta; a table without them is followed again."""
    add_column(source, "VALUE")
    first = Bench(tmp_path / "first", source.table.location)
    for each in (bench, first):
        with pytest.raises(CorruptInput, match="columns value and VALUE have one name") as refused:
            each.sync()
        assert refused.value.hint.endswith("dvsync then continues by itself.")
    source.table.commit([{"metaData": source.table.metadata()}])
    # As the daemon does at a newer version.
    bench.follower.compare("there is a newer version")
    for each in (bench, first):
        each.sync()
        assert (read(each), len(each.iceberg().schemas())) == (ROWS, 1)
    first.close()


def test_the_command_refuses_and_goes_on(tmp_path: Path) -> None:
    """A float partition that is widened is refused by file, and followed as soon as Delta has no such file."""
    source = Source(tmp_path / "delta", CASES["widened partition"])
    tables = [{"source": str(source.table.folder), "target": "lake.t"}]
    source.commit_schema(is_new=False)
    source.commit_file()
    other = source.table.write_file(ROWS, name="a")
    add = source.table.add(other)
    add["add"]["partitionValues"] = {"p": "0.5"}
    source.table.commit([add])
    assert sync(tmp_path, tables).startswith("0 lake.t: advanced, version 2")
    refused = re.compile(r"1 lake\.t: Unsupported: partition column p, which the file lacks, is 0\.1 .*file\.parquet")
    source.commit_schema(is_new=True)
    assert refused.match(sync(tmp_path, tables))
    # While the file that was refused is live, no other one is opened.
    source.table.folder.joinpath(other).rename(source.table.folder / "away")
    source.table.commit([])
    assert refused.match(sync(tmp_path, tables))
    source.table.commit([source.table.remove("file.parquet")])
    source.table.folder.joinpath("away").rename(source.table.folder / other)
    assert sync(tmp_path, tables).startswith("0 lake.t: ")


def test_a_refused_table_goes_on_when_delta_writes_the_file_anew(source: Source, bench: Bench) -> None:
    """The way out that the error names."""
    add_column(source, "extra", "long")
    with pytest.raises(Unsupported, match="column extra of the file is stored as string") as refused:
        bench.sync()
    assert refused.value.hint and "Rewrite the file in Delta" in refused.value.hint
    assert read(bench) == ROWS
    rewritten = source.table.write_file(ROWS)
    version = source.table.commit([source.table.remove("file.parquet"), source.table.add(rewritten)])
    # As the daemon does at a newer version.
    bench.follower.compare("there is a newer version")
    assert bench.sync().to_version == version
    assert read(bench) == [(*row, None) for row in ROWS]


@pytest.mark.parametrize("kind", ["string", "long"])
def test_verify_sees_what_an_older_dvsync_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It looked at live files no more, and `Extra` stayed a hidden name. A resync mends it, or says what to do."""
    source = Source(tmp_path / "delta", Case({"Extra": TEXTS}))
    source.commit_schema(is_new=False)
    source.commit_file()
    bench = Bench(tmp_path / "dvsync", source.table.location)
    bench.sync()
    assert differences(bench) == []
    hidden = bench.iceberg().name_mapping()
    monkeypatch.setattr("daemon.sync.advance.may_reach_files", lambda *_: False)
    add_column(source, "extra", kind)
    bench.sync()
    if kind == "long":
        assert differences(bench) == ["column extra of the file is stored as string, but the column's type is long"]
        with pytest.raises(Unsupported, match="is stored as string"):
            bench.sync(full=True)
    else:
        assert differences(bench) == []
        columns = [MappedField(field_id=4, names=["extra"], fields=[]), *hidden.root]
        mapping = NameMapping(columns).model_dump_json()
        with bench.iceberg().transaction() as transaction:
            transaction.set_properties({NAME_MAPPING: mapping, NAME_MAPPING_HASH: sha256(mapping.encode()).hexdigest()})
        assert differences(bench) == ["the name mapping lacks Extra"]
        bench.sync(full=True)
        assert differences(bench) == []
        assert read(bench) == [(*row, text) for row, text in zip(ROWS, TEXTS.to_pylist(), strict=True)]
    bench.close()


def differences(bench: Bench) -> list[str]:
    """What a verification of the metadata says of the table's files."""
    proof = Verifier(bench.context).verify(Scope(Level.METADATA), Event())
    assert proof
    assert proof.findings.counts.keys() <= {Fault.FILE_SCHEMA}
    return [each.detail.partition(": ")[0] for each in proof.findings.named]
