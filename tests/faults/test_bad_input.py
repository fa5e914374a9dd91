"""Input that is broken, missing or unknown: a clear error, nothing committed, other tables untouched, and a way out."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table.metadata import TableMetadataV3

from daemon.clock import SystemClock
from daemon.config.settings import LimitsSettings
from daemon.delta import features as delta_features
from daemon.delta.features import Decision
from daemon.delta.table_state import TableState
from daemon.errors import (
    CatalogAway,
    CommitIncomplete,
    CommitOutcomeUnknown,
    CorruptInput,
    ObjectMissing,
    StateStoreAway,
    SyncError,
    Unsupported,
)
from daemon.pipeline import runner
from daemon.store.locations import FileMeta
from daemon.store.storage import FileIOStorage
from daemon.sync import news
from daemon.translate.definition import DELTA_FEATURES, DELTA_PROTOCOL
from state.sql import database
from tests.kit.checks import check, rows_of
from tests.kit.handmade import FEATURES, Bench, HandmadeTable
from tests.kit.readers import duckdb_connection

INT_PART = (("id", "long"), ("part", "integer"), ("value", "string"))


@dataclass
class Pair:
    """The table under test, synced at version 1 with one file of six rows, and another one of the same daemon."""

    table: HandmadeTable
    bench: Bench
    other_table: HandmadeTable
    other: Bench
    path: str

    def assert_refused(self, kind: type[SyncError], *, version: int | None, path: str | None, says: str) -> SyncError:
        """Two syncs fail with the same error, and nothing has changed; the other table goes on."""
        shown, synced = self.bench.iceberg().metadata_location, self.synced_version()
        for _ in range(2):
            with pytest.raises(SyncError) as caught:
                self.bench.follower.sync()
            error = caught.value
            assert type(error) is kind, repr(error)
            assert re.search(says, error.message), error.message
            assert (error.table, error.version) == ("t", version)
            assert (error.path or "").endswith(path or ""), error.path
            assert bool(error.path) == (path is not None), error.path
            assert error.hint.endswith(".")
            assert (self.bench.iceberg().metadata_location, self.synced_version()) == (shown, synced)
        self.assert_other_goes_on()
        return error

    def assert_other_goes_on(self) -> None:
        append(self.other_table)
        assert self.other.follower.sync().outcome == "advanced"
        assert rows_of(self.other.iceberg().scan().to_arrow()) == self.other_table.live_rows()

    def assert_goes_on(self, versions: Sequence[int]) -> None:
        """The next sync succeeds by itself, and so does the one of the commit after it."""
        self.bench.follower.sync()
        check(self.bench, self.table, versions)
        self.table.commit(self.table.delete({self.path: [5]}))
        self.bench.follower.sync()
        check(self.bench, self.table, [*versions, self.table.version])

    def synced_version(self) -> int | None:
        return self.bench.store.open_table("t", self.bench.source, self.bench.target).synced_version


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, tuple[HandmadeTable, HandmadeTable]]:
    """Both tables synced at version 1: the folder of the tests, a copy of it as it was, and the tables."""
    folder, copy = (tmp_path_factory.mktemp(name) for name in ("case", "base"))
    tables = tuple(HandmadeTable(folder / name, partitioned=True) for name in ("delta", "other"))
    for table, bench in zip(tables, open_benches(folder), strict=True):
        table.create()
        bench.follower.sync()
        append(table)
        bench.follower.sync()
        bench.close()
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    return folder, copy, (tables[0], tables[1])


def open_benches(folder: Path) -> tuple[Bench, Bench]:
    return (
        Bench(folder / "dvsync", f"file://{folder}/delta"),
        Bench(folder / "dvsync", f"file://{folder}/other", target="lake.u", name="u"),
    )


@pytest.fixture
def pair(bases: tuple[Path, Path, tuple[HandmadeTable, HandmadeTable]]) -> Iterator[Pair]:
    folder, copy, tables = bases
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    table, other_table = deepcopy(tables)
    bench, other = open_benches(folder)
    pair = Pair(table, bench, other_table, other, next(iter(table.live)))
    yield pair
    pair.bench.close()
    pair.other.close()


def append(table: HandmadeTable, part: str = "x", deleted: Sequence[int] = (0,)) -> str:
    first = 10 * len(table.rows)
    path = table.write_file([(first + n, part, f"v{n}") for n in range(6)])
    table.commit([table.add(path, deleted=deleted)])
    return path


# --- deletion vectors ---


def newest_dv_file(table: HandmadeTable) -> Path:
    return max(table.folder.glob("deletion_vector_*.bin"), key=lambda path: path.stat().st_mtime_ns)


def changed_byte(at: int, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([value]) + data[at + 1 :] if at >= 0 else data[:at] + bytes([value])


def with_magic(magic: int) -> Callable[[bytes], bytes]:
    """Another magic under a CRC that fits."""

    def change(data: bytes) -> bytes:
        payload = struct.pack("<i", magic) + data[9:-4]
        return data[:5] + payload + struct.pack(">I", zlib.crc32(payload))

    return change


def with_value_twice(data: bytes) -> bytes:
    """The last value of an array container is the one before it, under a CRC that fits."""
    payload = data[5:-6] + data[-8:-6]
    return data[:5] + payload + struct.pack(">I", zlib.crc32(payload))


def cut(data: bytes) -> bytes:
    return data[:-9]


def test_a_damaged_deletion_vector_is_refused(pair: Pair) -> None:
    """Each check of the file names it; nothing is committed; once the bytes are back the sync goes on."""
    version = pair.table.commit(pair.table.delete({pair.path: [2, 3]}))
    file = newest_dv_file(pair.table)
    data = file.read_bytes()
    damages: list[tuple[Callable[[bytes], bytes], str]] = [
        (changed_byte(0, 2), "version byte 1"),
        (changed_byte(4, 1), "size in its file is not"),
        (with_magic(77), "magic is 77"),
        (changed_byte(-1, 0), "CRC-32"),
        (changed_byte(12, 255), "CRC-32"),
        (cut, "ends"),
        (lambda data: b"", "version byte 1"),
    ]
    for change, says in damages:
        file.write_bytes(change(data))
        pair.assert_refused(CorruptInput, version=version, path=f"/delta/{file.name}", says=says)
    file.write_bytes(data)
    pair.assert_goes_on([0, 1, 2])


@pytest.mark.parametrize("full", [False, True], ids=["followed", "compared"])
def test_a_damaged_deletion_vector_that_delta_needs_no_more_stops_nothing(pair: Pair, *, full: bool) -> None:
    """Only the difference was to be taken from it: the file's deletions are written anew, neither lost nor doubled."""
    for change in (changed_byte(0, 2), with_magic(77), changed_byte(-1, 0), cut, with_value_twice):
        path = append(pair.table)
        pair.table.commit(pair.table.delete({path: [2, 3]}))
        pair.bench.follower.sync()
        older = newest_dv_file(pair.table)
        pair.table.commit(pair.table.delete({path: [4]}))
        older.write_bytes(change(older.read_bytes()))
        pair.bench.follower.sync(full=full)
        assert rows_of(pair.bench.iceberg().scan().to_arrow()) == pair.table.live_rows()
    pair.assert_goes_on(range(pair.table.version + 1))


def test_deletions_beyond_the_last_row_are_refused(pair: Pair) -> None:
    """A deletion vector with more positions than the data file has rows, or with a later one, is `CorruptInput`."""
    table = pair.table
    before = table.live[pair.path], table.deleted[pair.path]

    def undo() -> None:
        table.version -= 1
        table.live[pair.path], table.deleted[pair.path] = before

    version = table.commit(table.delete({pair.path: [6]}))
    file = newest_dv_file(table).name
    says = f"the deletion vector of .*{pair.path} has 7 rows .* 6 rows"
    pair.assert_refused(CorruptInput, version=version, path=f"/delta/{file}", says=says)
    undo()
    table.commit(table.delete({pair.path: range(1, 7)}))
    file = newest_dv_file(table).name
    pair.assert_refused(CorruptInput, version=version, path=f"/delta/{file}", says="7 deleted positions.* 6 rows")
    undo()
    table.commit([table.remove(pair.path), table.add(pair.path, deleted=[0, 3])])
    pair.assert_goes_on([0, 1, 2])


def test_a_missing_deletion_vector_is_waited_for(pair: Pair) -> None:
    """The `.bin` file is not there: `ObjectMissing`, tried again until it is."""
    version = pair.table.commit(pair.table.delete({pair.path: [2, 3]}))
    file = newest_dv_file(pair.table)
    data = file.read_bytes()
    file.unlink()
    pair.assert_refused(ObjectMissing, version=version, path=f"/delta/{file.name}", says="not there")
    file.write_bytes(data)
    pair.assert_goes_on([0, 1, 2])


# --- commit files ---

Actions = list[dict[str, Any]]


def add_of(actions: Actions) -> dict[str, Any]:
    add: dict[str, Any] = next(action["add"] for action in actions if "add" in action)
    return add


def edited(pair: Pair, version: int, edit: Callable[[Actions], object]) -> Callable[[], None]:
    """The commit with other actions; the result puts it back as it was."""
    file = pair.table.commit_path(version)
    text = file.read_text()
    actions = [json.loads(line) for line in text.splitlines()]
    edit(actions)
    file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return lambda: file.write_text(text) and None


def edit_dv(**fields: object) -> Callable[[Actions], None]:
    return lambda actions: add_of(actions)["deletionVector"].update(fields)


def test_a_wrong_descriptor_is_refused(pair: Pair) -> None:
    """What the log says of a deletion vector is checked against its bytes and its data file."""
    version = pair.table.commit(pair.table.delete({pair.path: [2, 3]}))
    for edit, kind, path, says in (
        (edit_dv(cardinality=4), CorruptInput, ".bin", "holds 3 positions, the log says 4"),
        (edit_dv(offset=10_000), CorruptInput, ".bin", "ends 0 bytes after"),
        (edit_dv(offset=-1), CorruptInput, ".bin", "offset -1"),
        (edit_dv(sizeInBytes=4), CorruptInput, ".bin", "not the 4 of the log"),
        (edit_dv(pathOrInlineDv="~" * 20), CorruptInput, "~", "Z85"),
        (edit_dv(storageType="x"), Unsupported, "", "storage type 'x'"),
        (edit_dv(storageType="i"), CorruptInput, "", "inline DV has 16 bytes"),
    ):
        repair = edited(pair, version, edit)
        pair.assert_refused(kind, version=version, path=path, says=says)
        repair()
    pair.assert_goes_on([0, 1, 2])


def edit_add(**fields: object) -> Callable[[Actions], None]:
    return lambda actions: add_of(actions).update(fields)


def test_a_size_in_the_log_that_is_not_the_files_is_refused(pair: Pair) -> None:
    """The hint leads out: another file with its rows takes its place."""
    path = append(pair.table)
    edited(pair, 2, edit_add(size=3))
    pair.assert_refused(CorruptInput, version=2, path=f"/delta/{path}", says="the Delta log says 3")
    pair.table.commit([pair.table.remove(path), pair.table.add(pair.table.write_file(pair.table.rows[path]))])
    pair.bench.sync(full=True)
    pair.assert_goes_on([0, 1, 3])


@contextmanager
def bench_of(table: HandmadeTable, **options: Any) -> Iterator[Bench]:
    bench = Bench(table.folder.parent / "dvsync", table.location, table_options=options)
    try:
        yield bench
    finally:
        bench.close()


def test_row_ids_near_the_end_of_64_bits_are_not_taken(tmp_path: Path) -> None:
    """Iceberg gives the file's rows other ids, and has enough for those to come."""
    table = HandmadeTable(tmp_path / "delta")
    (table.folder / "_delta_log").mkdir(parents=True)
    protocol, metadata = table.protocol(), table.metadata()
    protocol["writerFeatures"] += ["rowTracking", "domainMetadata"]
    names = ("RowId", "RowCommitVersion")
    tracked = {f"delta.rowTracking.materialized{name}ColumnName": f"_{name}" for name in names}
    tracking = {
        **metadata,
        "configuration": {**metadata["configuration"], "delta.enableRowTracking": "true", **tracked},
    }
    table.commit([{"protocol": protocol}, {"metaData": tracking}])
    with bench_of(table, format_version=3) as bench:
        bench.sync()
        path = table.write_file([(1, "a", "b"), (2, "a", "b")])
        add = table.add(path)
        add["add"] |= {"baseRowId": 2**63 - 2, "defaultRowCommitVersion": 1}
        table.commit([add])
        bench.sync()
        table.commit([table.add(table.write_file([(3, "a", "b")]))])
        bench.sync()
        metadata = bench.iceberg().metadata
        assert isinstance(metadata, TableMetadataV3)
        assert metadata.next_row_id == 3
        assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()


@pytest.mark.parametrize("mapped", [False, True], ids=["names", "mapped"])
def test_a_restore_across_a_type_widening_has_a_way_out(tmp_path: Path, mapped: bool) -> None:
    """The hints lead out: a resync, or with column mapping the same widening once more."""
    table = HandmadeTable(tmp_path / "delta")
    (table.folder / "_delta_log").mkdir(parents=True)

    def metadata(kind: str) -> dict[str, Any]:
        action = table.metadata((("id", "long"), ("v", kind)))
        if mapped:
            schema = json.loads(action["schemaString"])
            for number, column in enumerate(schema["fields"], 1):
                names = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": column["name"]}
                column["metadata"] = names
            action["schemaString"] = json.dumps(schema)
            action["configuration"] |= {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
        return {"metaData": action}

    def add(number: int, kind: pa.DataType) -> dict[str, Any]:
        columns = [("id", pa.int64(), b"1"), ("v", kind, b"2")]
        ids = [{"PARQUET:field_id": column_id} if mapped else None for _, _, column_id in columns]
        schema = pa.schema(
            [pa.field(name, kind, metadata=each) for (name, kind, _), each in zip(columns, ids, strict=True)]
        )
        path = f"f{number}.parquet"
        pq.write_table(pa.table([[number], [number]], schema), table.folder / path)
        table.rows[path] = [(number, "a", "b")]
        return table.add(path)

    features = [*FEATURES, "columnMapping", "typeWidening"]
    table.commit([{"protocol": table.protocol(features)}, metadata("integer")])
    table.commit([add(1, pa.int32())])
    with bench_of(table, format_version=3) as bench:
        bench.sync()
        table.commit([metadata("long"), add(2, pa.int64())])
        bench.sync()
        table.commit([metadata("integer"), table.remove("f2.parquet")], operation="RESTORE")
        with pytest.raises(Unsupported, match="from long to int") as caught:
            bench.sync()
        if mapped:
            assert "widen the column again in Delta" in caught.value.hint
            table.commit([metadata("long")])
            bench.follower.compare("a newer version")
            bench.sync()
        else:
            assert "`dvsync resync t` makes it a new column" in caught.value.hint
            bench.sync(full=True)
        assert bench.iceberg().scan().to_arrow().to_pylist() == [{"id": 1, "v": 1}]


def test_a_partition_in_a_year_that_readers_cannot_show_is_refused(tmp_path: Path) -> None:
    """The hint leads out: Delta deletes the partition."""
    table = HandmadeTable(tmp_path / "years", partitioned=True)
    table.create()
    dates = [("id", "long"), ("part", "date"), ("value", "string")]
    path = table.write_file([(1, "+12345-01-02", "a")])
    table.commit([{"metaData": table.metadata(dates)}, table.add(path)])
    with bench_of(table) as bench:
        with pytest.raises(
            Unsupported, match=r"'\+12345-01-02' of column part is not in the years 1 to 9999"
        ) as caught:
            bench.sync()
        assert (caught.value.path or "").endswith(path)
        table.commit([table.remove(path), table.add(table.write_file([(1, "2345-01-02", "a")]))], operation="UPDATE")
        bench.sync()
        assert bench.iceberg().scan().to_arrow()["part"].to_pylist() == [date(2345, 1, 2)]


SENSELESS = {"minValues": {"id": "a"}, "maxValues": [9], "nullCount": {"id": "no", "value": -1}}


def test_statistics_without_sense_are_left_out(pair: Pair) -> None:
    """As by Delta. Rows are counted by the footer."""
    counts = (6, "six", -6, 1.5, 0, None)
    for stats in ('{"numRecords": 6', "[]", *(json.dumps({"numRecords": n, **SENSELESS}) for n in counts)):
        append(pair.table)
        edited(pair, pair.table.version, edit_add(stats=stats))
    pair.assert_goes_on(range(pair.table.version + 1))


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        pytest.param(pa.array([0.7], pa.float32()), "0.7", id="a float, in a column of doubles now"),
        pytest.param(
            pa.array([Decimal("0.123456789012345678")], pa.decimal128(38, 18)),
            "0.12345678901234568",
            id="a decimal, told as a double",
        ),
    ],
)
def test_filters_find_what_statistics_tell_in_short(pair: Pair, tmp_path: Path, stored: pa.Array, told: str) -> None:
    """Bounds hold the value that the file has, not only the one that the log spells."""
    kind = "double" if stored.type == pa.float32() else "decimal(38,18)"
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    bench = Bench(pair.bench.folder, table.location, target="lake.told", name="told")
    bench.follower.sync()
    path = tmp_path / "delta" / "f.parquet"
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "part": ["p"], "value": stored}), path)
    stats = f'{{"numRecords": 1, "minValues": {{"value": {told}}}, "maxValues": {{"value": {told}}}}}'
    add = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size, "dataChange": True, "stats": stats}
    columns = (("id", "long"), ("part", "string"), ("value", kind))
    table.commit([{"metaData": table.metadata(columns)}, {"add": add}])
    bench.follower.sync()
    value = stored[0].as_py()
    assert bench.iceberg().scan(row_filter=EqualTo("value", value)).to_arrow().num_rows == 1
    found = duckdb_connection().execute(
        "SELECT count(*) FROM iceberg_scan(?) WHERE value = ?", [bench.iceberg().metadata_location, value]
    )
    assert found.fetchone() == (1,)
    bench.close()


def test_a_file_that_is_live_twice_is_refused_at_its_version(pair: Pair) -> None:
    """The versions before it are shown, however many are read at once; the hint leads out."""
    table, bench = pair.table, pair.bench
    append(table)
    shown = table.live_rows()
    again = {"path": f"{table.location}/{table.live[pair.path]['path']}"}
    table.commit([{"add": {**table.live[pair.path], **again}}])
    append(table)
    for is_busy in (True, False):
        with pytest.raises(CorruptInput, match=r"2 live adds for the one path .*: spelled file:") as caught:
            bench.follower.sync(others_wait=lambda is_busy=is_busy: is_busy)
        assert (caught.value.version, pair.synced_version()) == (3, 2)
        assert rows_of(bench.iceberg().scan().to_arrow()) == shown
    vector = table.live[pair.path]["deletionVector"]
    table.commit([{"remove": {**again, "deletionVector": vector, "deletionTimestamp": 1, "dataChange": True}}])
    bench.follower.sync()
    assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()


def test_a_missing_data_file_is_waited_for(pair: Pair) -> None:
    """A data file that is not there is never registered: `ObjectMissing` until it is."""
    path = append(pair.table)
    file = pair.table.folder / path
    file.rename(file.with_suffix(".away"))
    pair.assert_refused(ObjectMissing, version=2, path=f"/delta/{path}", says="not there")
    file.with_suffix(".away").rename(file)
    pair.assert_goes_on([0, 1, 2])


def test_a_data_file_of_another_size_is_refused(pair: Pair) -> None:
    """A cut data file is `CorruptInput` with both sizes."""
    path = append(pair.table)
    file = pair.table.folder / path
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    says = f"{len(data) - 1} bytes, but the Delta log says {len(data)}"
    pair.assert_refused(CorruptInput, version=2, path=f"/delta/{path}", says=says)
    file.write_bytes(data)
    pair.assert_goes_on([0, 1, 2])


def test_a_data_file_that_is_no_parquet_is_refused(pair: Pair) -> None:
    """Without statistics the rows are counted by the footer; a file without one is `CorruptInput`."""
    path = append(pair.table, deleted=())
    edited(pair, 2, lambda actions: add_of(actions).pop("stats"))
    file = pair.table.folder / path
    data = file.read_bytes()
    file.write_bytes(b"x" * len(data))
    pair.assert_refused(CorruptInput, version=2, path=f"/delta/{path}", says="Parquet")
    file.write_bytes(data)
    pair.assert_goes_on([0, 1, 2])


def cut_first_line(data: bytes) -> bytes:
    first, rest = data.split(b"\n", 1)
    return first[:-5] + b"\n" + rest


def repeated(name: str, data: bytes) -> bytes:
    (line,) = (line for line in data.splitlines() if line.startswith(f'{{"{name}"'.encode()))
    return data + line + b"\n"


def test_an_unfinished_commit_is_waited_for(pair: Pair) -> None:
    """A fresh cut commit file is `CommitIncomplete`; its writer completes it, and the sync goes on."""
    append(pair.table)
    file = pair.table.commit_path(2)
    data = file.read_bytes()
    for unfinished in (data[:-20], b"", data[: data.index(b"part-") + 1] + b"\xc3"):
        file.write_bytes(unfinished)
        pair.assert_refused(CommitIncomplete, version=2, path=f"/{file.name}", says="the commit file")
    file.write_bytes(data)
    pair.assert_goes_on([0, 1, 2])


def test_a_commit_that_grows_after_it_was_read_is_shown_whole(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was read when half of its lines were there: the next sync sees that it is another file now."""
    first, second = append(pair.table), append(pair.table, part="y", deleted=())
    file = pair.table.commit_path(2)
    whole = file.read_text() + pair.table.commit_path(3).read_text().splitlines(keepends=True)[1]
    pair.table.commit_path(3).unlink()
    pair.table.version = 2
    read_blocks = FileIOStorage.read_blocks

    def read_then_grow(storage: FileIOStorage, path: str) -> tuple[FileMeta, Iterator[bytes]]:
        meta, blocks = read_blocks(storage, path)
        read = list(blocks)
        if path.endswith(file.name):
            file.write_text(whole)
        return meta, iter(read)

    with monkeypatch.context() as patch:
        patch.setattr(FileIOStorage, "read_blocks", read_then_grow)
        assert pair.bench.follower.sync().data_files_added == 1
    assert {first, second} <= pair.table.live.keys()
    assert pair.bench.follower.sync().data_files_added == 1
    check(pair.bench, pair.table, [0, 1, 2, 2])


def test_a_commit_without_sense_is_corrupt(pair: Pair) -> None:
    """A commit that is not Delta's is refused whole, with the line or the path."""
    path = append(pair.table)
    file = pair.table.commit_path(2)
    data = file.read_bytes()
    for changed, says in (
        (cut_first_line(data), "line 1 is not JSON"),
        (b"\xff\n" + data, "line 1 is not JSON"),
        (data.replace(b"WRITE", b"\xff\xfe"), "line 1 is not"),
        (b"[1]\n" + data, "line 1 is not a Delta action"),
        (data.replace(b'"size": ', b'"size": "x", "s": '), "not a Delta action"),
        (data.replace(b'"path"', b'"paht"'), "not a Delta action.*path"),
        (repeated("add", data), "2 adds for the one path"),
    ):
        file.write_bytes(changed)
        pair.assert_refused(CorruptInput, version=2, path=f"/{file.name}", says=says)
    file.write_bytes(data.replace(b'"size": ', b'"size": -'))
    pair.assert_refused(CorruptInput, version=2, path=f"/{path}", says="-")
    file.write_bytes(data)
    pair.assert_goes_on([0, 1, 2])


def test_tombstones_of_files_that_are_not_live_mean_nothing(pair: Pair) -> None:
    """However many of one path."""
    path = append(pair.table)
    file = pair.table.commit_path(2)
    file.write_bytes(file.read_bytes().replace(b'{"add"', b'{"remove"', 1) * 2)
    del pair.table.live[path], pair.table.deleted[path]
    pair.assert_goes_on([0, 1])


def padded(table: HandmadeTable, size_bytes: int) -> str:
    """A commit of one file and so many bytes of provenance."""
    path = append(table)
    file = table.commit_path(table.version)
    file.write_text(json.dumps({"commitInfo": {"x": "y" * size_bytes}}) + "\n" + file.read_text())
    return path


def test_a_large_commit_is_refused_and_passed_by_comparing_states(pair: Pair) -> None:
    """Nothing of it is read; `--full` shows the newest state, and the commits after it are followed."""
    pair.bench.limits = LimitsSettings(commit_bytes_max=1 << 20)
    pair.bench.reopen()
    padded(pair.table, 1 << 20)
    pair.assert_refused(Unsupported, version=2, path="2.json", says=r"at most 1048576 are read \(limits\.commit_byte")
    pair.bench.follower.sync(full=True)
    pair.assert_goes_on([0, 1, 2])


def test_large_commits_do_not_share_a_snapshot(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their actions would be in memory together: the rest of them has the next snapshot."""
    pair.bench.limits = LimitsSettings(commit_bytes_max=1 << 20)
    monkeypatch.setattr("daemon.sync.news.FOLD_AFTER_VERSIONS", 1)
    pair.bench.reopen()
    for _ in range(5):
        padded(pair.table, 600 << 10)
    pair.bench.follower.sync()
    check(pair.bench, pair.table, [0, 1, 3, 5, 6])


# --- protocol and metadata ---


def test_an_unknown_reader_feature_in_the_middle_of_history_is_refused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything before it is shown, then `Unsupported` names the feature; a dvsync that knows it goes on."""
    append(pair.table)
    pair.table.commit([{"protocol": pair.table.protocol(["deletionVectors", "timeTravel"])}])
    append(pair.table)
    with pytest.raises(Unsupported):
        pair.bench.follower.sync()
    assert pair.synced_version() == 2
    file = pair.table.commit_path(3).name
    pair.assert_refused(Unsupported, version=3, path=f"/{file}", says="timeTravel")
    monkeypatch.setitem(delta_features.FEATURES, "timeTravel", delta_features.FEATURES["deletionVectors"])
    pair.assert_goes_on([0, 1, 2, 4])


def test_listed_features_are_followed(pair: Pair) -> None:
    """What a table does not use, its protocol may list: all that is not refused, while the table is followed."""
    names = [name for name, each in delta_features.FEATURES.items() if each.decision is not Decision.REFUSED]
    readers = [name for name in names if delta_features.is_readable(name)]
    listing = {**pair.table.protocol(readers), "writerFeatures": names}
    pair.table.commit([{"protocol": listing}, pair.table.add(pair.table.write_file([(60, "a", "x")]))])
    pair.assert_goes_on([0, 1, 2])


def test_a_feature_that_was_dropped_again_is_passed_by_comparing_states(pair: Pair) -> None:
    """Following stops at the version with the feature; `--full` compares with the newest state, which has none."""
    pair.table.commit([{"protocol": pair.table.protocol(["deletionVectors", "timeTravel"])}])
    append(pair.table)
    pair.table.commit([{"protocol": pair.table.protocol()}], operation="DROP FEATURE")
    pair.assert_refused(Unsupported, version=2, path="2.json", says="timeTravel")
    pair.bench.follower.sync(full=True)
    pair.assert_goes_on([0, 1, 4])


def test_a_newer_reader_version_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reader version 4 is `Unsupported` until dvsync knows it."""
    pair.table.commit([{"protocol": {**pair.table.protocol(), "minReaderVersion": 4}}])
    pair.assert_refused(Unsupported, version=2, path="2.json", says="reader version 4")
    monkeypatch.setattr(delta_features, "READER_VERSION_MAX", 4)
    pair.assert_goes_on([0, 1])


def test_metadata_without_sense_is_refused(pair: Pair) -> None:
    """Columns that are not there are refused with version and file; `tests/kit/broken_logs.py` has other faults."""
    pair.table.commit([{"metaData": pair.table.metadata()}])
    repair = edited(pair, 2, lambda actions: actions[1]["metaData"].update({"partitionColumns": ["nowhere"]}))
    pair.assert_refused(CorruptInput, version=2, path="2.json", says="nowhere")
    repair()
    pair.assert_goes_on([0, 1])


ROWS_TRACKED = {"configuration": {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}}


def test_a_feature_that_is_used_and_not_listed_is_refused(pair: Pair) -> None:
    """Also where one commit changes the protocol or the metadata alone: what the other one says is remembered."""

    def commit(metadata: dict[str, Any] | None, features: list[str] | None) -> None:
        actions: Actions = [] if metadata is None else [{"metaData": {**pair.table.metadata(), **metadata}}]
        protocol = {**pair.table.protocol(), "writerFeatures": features}
        pair.table.commit(actions if features is None else [*actions, {"protocol": protocol}])

    cases: tuple[tuple[dict[str, Any] | None, list[str] | None, str], ...] = (
        (ROWS_TRACKED, None, "uses domainMetadata, rowTracking, and its protocol does not"),
        (None, [], "uses deletionVectors, and its protocol does not"),
        (ROWS_TRACKED, ["deletionVectors", "rowTracking"], "uses domainMetadata, and"),
    )
    for metadata, features, says in cases:
        commit(metadata, features)
        pair.assert_refused(CorruptInput, version=2, path="2.json", says=says)
        pair.table.version -= 1
    commit(ROWS_TRACKED, ["deletionVectors", "domainMetadata", "rowTracking"])
    pair.assert_goes_on([0, 1])
    commit({}, None)
    pair.bench.follower.sync()
    commit(None, ["deletionVectors"])
    assert pair.bench.follower.sync().to_version == pair.table.version


def test_a_table_of_an_older_dvsync_has_no_features_to_fit(pair: Pair) -> None:
    """Nothing is remembered of its protocol: a metadata alone is taken as it is, and remembered from then on."""
    with pair.bench.iceberg().transaction() as transaction:
        transaction.remove_properties(DELTA_PROTOCOL, DELTA_FEATURES)
    pair.table.commit([{"metaData": {**pair.table.metadata(), **ROWS_TRACKED}}])
    assert pair.bench.follower.sync().to_version == 2
    properties = pair.bench.iceberg().properties
    assert (properties.get(DELTA_PROTOCOL), properties[DELTA_FEATURES]) == (None, "deletionVectors,rowTracking")
    pair.table.commit([{"protocol": pair.table.protocol()}])
    pair.assert_refused(CorruptInput, version=3, path="3.json", says="uses domainMetadata, rowTracking")


class IntParts(HandmadeTable):
    """Partitioned by a whole number."""

    def metadata(self, columns: Sequence[tuple[str, str]] = INT_PART) -> dict[str, Any]:
        return super().metadata(columns)

    def live_rows(self) -> list[Any]:
        return [(row_id, int(part), value) for row_id, part, value in super().live_rows()]


@pytest.mark.parametrize("deleted", [(), (1,)], ids=["plain", "with deletions"])
def test_a_malformed_partition_value_is_refused(pair: Pair, tmp_path: Path, deleted: Sequence[int]) -> None:
    """A value that is not of its column's type is `CorruptInput` with the data file and the column."""
    pair.bench.close()
    pair.table = IntParts(tmp_path / "numbered", partitioned=True)
    pair.table.create()
    pair.bench = Bench(tmp_path / "dvsync", pair.table.location)
    pair.bench.follower.sync()
    pair.path = append(pair.table, part="6")
    pair.bench.follower.sync()
    path = append(pair.table, part="7", deleted=deleted)
    for value in ("seven", "7.5", str(1 << 31)):
        repair = edited(pair, 2, edit_add(partitionValues={"part": value}))
        pair.assert_refused(CorruptInput, version=2, path=f"/numbered/{path}", says=f"'{value}' of column part")
        repair()
    pair.assert_goes_on([0, 1, 2])


# --- first sync ---


def test_a_first_sync_refuses_as_well(pair: Pair, tmp_path: Path) -> None:
    """A damaged deletion vector and a missing data file stop a first sync: no table is created until they are back."""
    table = HandmadeTable(tmp_path / "late")
    table.create()
    path = append(table, deleted=(1, 2))
    bench = Bench(tmp_path / "dvsync", table.location, target="lake.late", name="late")
    dv_file, data_file = newest_dv_file(table), table.folder / path
    data = dv_file.read_bytes()
    dv_file.write_bytes(changed_byte(-1, 0)(data))
    data_file.rename(data_file.with_suffix(".away"))
    for kind, file in ((ObjectMissing, data_file), (CorruptInput, dv_file)):
        with pytest.raises(kind) as caught:
            bench.follower.sync()
        assert (caught.value.table, caught.value.version, caught.value.path) == ("late", 1, f"file://{file}")
        assert not bench.catalogs.open("local").table_exists("lake.late")
        pair.assert_other_goes_on()
        if kind is ObjectMissing:
            data_file.with_suffix(".away").rename(data_file)
    dv_file.write_bytes(data)
    bench.follower.sync()
    check(bench, table, [1])
    bench.close()


# --- catalog, state and the source itself ---


@pytest.fixture
def apart(pair: Pair, tmp_path: Path) -> Iterator[Pair]:
    """The table under test with a catalog of its own, in the folder `catalogs`, that does not wait for locks."""
    (tmp_path / "catalogs").mkdir()
    pair.bench.close()
    pair.bench = Bench(
        tmp_path / "apart", pair.table.location, catalog_uri=f"sqlite:///{tmp_path}/catalogs/catalog.db?timeout=0"
    )
    pair.bench.follower.sync()
    return pair


def test_a_catalog_that_is_not_there_is_waited_for(apart: Pair, tmp_path: Path) -> None:
    """`CatalogAway` until it answers; then the sync goes on."""
    append(apart.table)
    (tmp_path / "catalogs").rename(tmp_path / "gone")
    apart.bench.reopen()
    for _ in range(2):
        with pytest.raises(CatalogAway, match="unable to open database file") as caught:
            apart.bench.follower.sync()
        assert (caught.value.table, apart.synced_version()) == ("t", 1)
    apart.assert_other_goes_on()
    (tmp_path / "gone").rename(tmp_path / "catalogs")
    apart.assert_goes_on([1, 2])


def test_a_corrupt_catalog_is_waited_for(apart: Pair, tmp_path: Path) -> None:
    """A catalog whose file is garbage is `CatalogAway` until it is restored."""
    append(apart.table)
    apart.bench.close()
    file = tmp_path / "catalogs" / "catalog.db"
    data = file.read_bytes()
    file.write_bytes(b"no database" * 1000)
    apart.bench.open()
    for _ in range(2):
        with pytest.raises(CatalogAway, match="not a database") as caught:
            apart.bench.follower.sync()
        assert (caught.value.table, apart.synced_version()) == ("t", 1)
    apart.assert_other_goes_on()
    file.write_bytes(data)
    apart.assert_goes_on([1, 2])


@pytest.mark.parametrize(("lock", "kind"), [("EXCLUSIVE", CatalogAway), ("IMMEDIATE", CommitOutcomeUnknown)])
def test_a_locked_catalog_is_waited_for(apart: Pair, tmp_path: Path, lock: str, kind: type[SyncError]) -> None:
    """A catalog that cannot be read is away; one that cannot be written leaves the outcome open until it can."""
    append(apart.table)
    shown = apart.bench.iceberg().metadata_location
    with closing(sqlite3.connect(tmp_path / "catalogs" / "catalog.db", isolation_level=None)) as locking:
        locking.execute(f"BEGIN {lock}")
        for _ in range(2):
            with pytest.raises(kind, match="database is locked") as caught:
                apart.bench.follower.sync()
            version = None if kind is CatalogAway else 2
            assert (caught.value.table, caught.value.version, apart.synced_version()) == ("t", version, 1)
        apart.assert_other_goes_on()
        locking.execute("ROLLBACK")
    assert apart.bench.iceberg().metadata_location == shown
    apart.assert_goes_on([1, 2])


def test_a_locked_state_database_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """`StateStoreAway` while another process holds the database; then the sync goes on."""
    monkeypatch.setattr(database, "SQLITE_BUSY_TIMEOUT_S", 0)
    pair.bench.reopen()
    append(pair.table)
    shown = pair.bench.iceberg().metadata_location
    with closing(sqlite3.connect(pair.bench.state_file, isolation_level=None)) as locking:
        locking.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateStoreAway, match="locked") as caught:
            pair.bench.follower.sync()
        assert caught.value.table == "t"
        locking.execute("ROLLBACK")
    assert (pair.bench.iceberg().metadata_location, pair.synced_version()) == (shown, 1)
    pair.assert_goes_on([0, 1, 2])


def test_a_missing_manifest_is_waited_for(pair: Pair) -> None:
    """An Iceberg manifest that cannot be read: `ObjectMissing`, and nothing is committed until it is back."""
    pair.table.commit([pair.table.remove(pair.path)])
    current = pair.bench.iceberg().current_snapshot()
    assert current is not None
    file = Path(current.manifests(pair.bench.iceberg().io)[0].manifest_path.removeprefix("file://"))
    file.rename(file.with_suffix(".away"))
    for _ in range(2):
        with pytest.raises(ObjectMissing) as caught:
            pair.bench.follower.sync()
        assert (caught.value.table, pair.synced_version()) == ("t", 1)
    file.with_suffix(".away").rename(file)
    pair.bench.follower.sync()
    check(pair.bench, pair.table, [0, 1, 2])


def test_a_delta_log_that_is_gone_is_an_error(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that was followed and whose log is not there any more is not called synced for more than a minute."""
    log = pair.table.folder / "_delta_log"
    monkeypatch.setattr(news, "UNFINISHED_COMMIT_MAX_S", 0)
    pair.bench.follower.sync()
    shutil.move(log, log.with_name("away"))
    assert not pair.bench.follower.has_news()
    with monkeypatch.context() as patch:
        later_s = pair.bench.clock.monotonic_s() + 60
        patch.setattr(SystemClock, "monotonic_s", lambda clock: later_s)
        with pytest.raises(ObjectMissing, match="the Delta log is gone"):
            pair.bench.follower.has_news()
    with pytest.raises(ObjectMissing, match="the Delta log is gone") as caught:
        pair.bench.follower.sync()
    assert caught.value.table == "t"
    shutil.move(log.with_name("away"), log)
    append(pair.table)
    pair.assert_goes_on([0, 1, 2])


def test_a_commit_that_changes_is_noticed_within_a_minute(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing newer is there, but the newest commit is another one than was synced: that is news."""
    monkeypatch.setattr(news, "UNFINISHED_COMMIT_MAX_S", 0)
    pair.bench.follower.sync()
    file = pair.table.commit_path(1)
    file.write_text(file.read_text() + '{"commitInfo": {}}\n')
    assert not pair.bench.follower.has_news()
    later_s = pair.bench.clock.monotonic_s() + 60
    monkeypatch.setattr(SystemClock, "monotonic_s", lambda clock: later_s)
    assert pair.bench.follower.has_news()
    pair.bench.follower.sync()
    assert not pair.bench.follower.has_news()


def test_an_older_state_is_gone_back_to_after_a_minute(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest commit is not there: perhaps for a moment only, so that Iceberg goes back when it stays away."""
    older = deepcopy(pair.table)
    pair.table.commit(pair.table.delete({pair.path: [2]}))
    pair.bench.follower.sync()
    away = pair.table.commit_path(2).rename(pair.table.folder / "away.json")
    says = "ends at version 1, but version 2 was synced already"
    pair.assert_refused(ObjectMissing, version=2, path="2.json", says=says)
    away.rename(pair.table.commit_path(2))
    assert pair.bench.follower.sync().outcome == "unchanged"
    pair.table.commit_path(2).rename(away)
    pair.assert_refused(ObjectMissing, version=2, path="2.json", says=says)
    later_ms = pair.bench.clock.now_ms() + 60_000
    monkeypatch.setattr(SystemClock, "now_ms", lambda clock: later_ms)
    assert pair.bench.follower.sync().to_version == 1
    check(pair.bench, older, [0, 1, 2, 1])


def test_a_person_takes_a_table_back_to_an_older_state_at_once(pair: Pair) -> None:
    """`dvsync resync` is told that the older state is meant."""
    older = deepcopy(pair.table)
    pair.table.commit(pair.table.delete({pair.path: [2]}))
    pair.bench.follower.sync()
    pair.table.commit_path(2).unlink()
    assert pair.bench.follower.sync(full=True).to_version == 1
    check(pair.bench, older, [0, 1, 2, 1])


def test_a_time_that_delta_tells_otherwise_is_compared_for_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta and the store differ by a millisecond about a version's time: no sync compares whole states for it."""
    replay, compared = runner.replay, 0

    def read_late(*args: Any) -> TableState:
        nonlocal compared
        compared += 1
        state = replay(*args)
        return replace(state, timestamp_ms=state.timestamp_ms + 1)

    monkeypatch.setattr(runner, "replay", read_late)
    bench = Bench(pair.bench.folder, pair.table.location, target="lake.late", name="late")
    bench.follower.sync()
    pair.bench.follower.sync(full=True)
    assert compared == 2, "the first sync of one and the resync of the other"
    for number in range(3):
        pair.table.commit(pair.table.delete({pair.path: [number + 1]}))
        for each in (bench, pair.bench):
            assert each.follower.sync().outcome == "advanced"
    bench.close()
    assert compared == 2
    check(pair.bench, pair.table, [0, 1, 1, 2, 3, 4])


@pytest.mark.parametrize("column", ["record_count", "dv_cardinality"])
def test_a_memory_that_does_not_add_up_is_noticed(pair: Pair, column: str) -> None:
    """What would be shown is held against Delta's sums before each commit: it is rebuilt, and states are compared."""
    pair.table.commit(pair.table.delete({pair.path: [2]}))
    pair.bench.follower.sync()
    with closing(sqlite3.connect(pair.bench.state_file)) as database, database:
        database.execute(f"UPDATE data_files SET {column} = {column} + 1")
    pair.table.commit([pair.table.remove(pair.path)])
    result = pair.bench.follower.sync()
    assert (result.outcome, result.operation, result.data_files_removed) == ("advanced", "compare", 1)
    assert pair.bench.iceberg().scan().to_arrow().num_rows == 0


def test_a_name_that_is_used_again_is_seen_by_a_comparison(pair: Pair) -> None:
    """Another file by the name of one that is shown, without a log that tells so: it is shown with its own counts."""
    table = pair.table
    table.commit([table.remove(pair.path)])
    rows = [(number, "x", f"after {number}") for number in range(500, 509)]
    assert table.write_file(rows, name=Path(pair.path).stem) == pair.path
    table.commit([table.add(pair.path, deleted=[0])])
    pair.bench.follower.sync(full=True)
    check(pair.bench, table, [0, 1, 3])
    pair.assert_goes_on([0, 1, 3])


def test_a_comparison_that_follows_what_was_shown_already(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of versions that are refused together the first is shown alone; the second is lost: the newest state is shown."""
    monkeypatch.setattr("daemon.sync.news.COMMITS_MAX", 3)
    table = pair.table
    table.commit(table.delete({pair.path: [2]}))
    lost = append(table)
    (table.folder / lost).unlink()
    table.commit([table.remove(lost), {"protocol": table.protocol([*FEATURES, "fancyFeature"])}])
    table.commit([{"protocol": table.protocol()}])
    result = pair.bench.follower.sync(others_wait=lambda: True)
    assert (result.outcome, result.from_version, result.to_version, result.snapshots) == ("advanced", 2, 5, 1)
    check(pair.bench, table, [0, 1, 2])
    assert pair.bench.follower.sync().outcome == "unchanged"
