"""A Delta table changed by Spark, a daemon following it, and what must hold after each of its versions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from daemon.config.settings import TESTED_READERS
from daemon.delta.log import COMMIT_FILE
from daemon.sync.outcomes import SyncResult
from daemon.translate.definition import DELETE_GRANULARITY
from state import FileStatus
from tests.kit.handmade import Bench
from tests.kit.images import ADDED, DATA, DELETED, NOTHING, POSITION_DELETES, Entry, Image, image_of, vectors_of
from tests.kit.readers import READERS, Row, assert_readers_agree, rows_of
from tests.kit.service import InProcess, Served, Service
from tests.kit.writer import FILE_COLUMN, POSITION_COLUMN, read_delta_positions

WITHOUT_SPARK = READERS.keys() - {"Spark"}
# Summary key -> the files it counts, and what of each.
COUNTS = {
    "added-data-files": (DATA, ADDED, None),
    "deleted-data-files": (DATA, DELETED, None),
    "added-records": (DATA, ADDED, "records"),
    "deleted-records": (DATA, DELETED, "records"),
    "added-delete-files": (POSITION_DELETES, ADDED, None),
    "added-position-delete-files": (POSITION_DELETES, ADDED, None),
    "added-position-deletes": (POSITION_DELETES, ADDED, "records"),
    "removed-delete-files": (POSITION_DELETES, DELETED, None),
    "removed-position-delete-files": (POSITION_DELETES, DELETED, None),
    "removed-position-deletes": (POSITION_DELETES, DELETED, "records"),
}


@dataclass(frozen=True)
class DeltaTruth:
    """The Delta table as Delta on Spark and its log have it. `deleted` are the positions that Spark does not read."""

    version: int
    table_id: str
    rows: Sequence[Row]
    adds: Mapping[str, Mapping[str, Any]]
    deleted: Mapping[str, frozenset[int]]


# The path as it is written, and the deletion vector's path and offset.
LogicalFile = tuple[str, str | None, int | None]


@dataclass
class Followed:
    """A Delta table at `folder`/lake/t, which a running daemon follows. `{t}` in statements stands for the table.

    Every reader but Spark's reads each version; Spark's reads the last one, and those of steps that say so. `options`
    are keys of the table's entry in the configuration. `with_vectors` follows the table into an Iceberg table of format
    version 3, too.
    """

    service: Service | InProcess
    folder: Path
    granularity: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    with_vectors: bool = False
    read: Callable[..., pa.Table] = read_delta_positions

    def __post_init__(self) -> None:
        self.writer = self.service.writer
        self.source = self.folder / "lake" / "t"
        self.bench = self.new_bench("bench")
        self.vectors = self.new_bench("vectors", format_version=3) if self.with_vectors else None
        self.image = NOTHING
        # What Spark's reader is to show at the end, by the Iceberg table's location.
        self._unread: dict[str, tuple[Table, Sequence[Row], str]] = {}
        self.writer.at_end.append(self._read_by_spark)
        self.forget()

    def forget(self) -> None:
        """The log starts again: what was replayed of it does not count."""
        self._adds: dict[LogicalFile, dict[str, Any]] = {}
        self._deleted: Mapping[str, frozenset[int]] = {}
        self._replayed = -1
        self._table_id = ""

    def new_bench(self, name: str, **options: Any) -> Served | Bench:
        """The same Delta table followed into another Iceberg table, in a catalog of its own."""
        return self.service.serve(self.folder / name, f"file://{self.source}", **{**self.options, **options})

    def sync(self, *, full: bool = False) -> SyncResult:
        """Follow the log. A new Iceberg table then gets the granularity, as somebody would set it."""
        result = self.bench.sync(full=full)
        iceberg = self.bench.iceberg()
        if self.granularity not in (None, iceberg.properties[DELETE_GRANULARITY]):
            with iceberg.transaction() as transaction:
                transaction.set_properties({DELETE_GRANULARITY: self.granularity})
        return result

    def held(self) -> AbstractContextManager[None]:
        """Several versions come while nobody follows: `Served.held`."""
        assert isinstance(self.bench, Served)
        return self.bench.held()

    @property
    def log_folder(self) -> Path:
        return self.source / "_delta_log"

    @property
    def version(self) -> int:
        return max(int(name[1]) for path in self.log_folder.iterdir() if (name := COMMIT_FILE.fullmatch(path.name)))

    def sql(self, statement: str) -> None:
        self.writer.sql(statement, self.source)

    def commit_by_hand(self, *actions: Mapping[str, Any]) -> None:
        """The next version, written as another engine would."""
        lines = [{"commitInfo": {"operation": "BY HAND", "timestamp": 0}}, *actions]
        staged = self.log_folder / ".staged.tmp"
        staged.write_text("".join(json.dumps(line) + "\n" for line in lines))
        staged.rename(self.log_folder / f"{self.version + 1:020d}.json")

    def live_adds(self) -> dict[str, dict[str, Any]]:
        """The add actions of the newest version by plain path: a replay of the log's commit files, newest last.

        As Delta, by the path as it is written and the deletion vector.
        """
        last = self.version
        for version in range(self._replayed + 1, last + 1):
            lines = (self.log_folder / f"{version:020d}.json").read_text().splitlines()
            actions = [json.loads(line) for line in lines if line]
            for action in actions:
                if "remove" in action:
                    self._adds.pop(self._logical_file(action["remove"]), None)
                if "metaData" in action:
                    self._table_id = action["metaData"]["id"]
            for action in actions:
                if "add" in action:
                    self._adds[self._logical_file(action["add"])] = action["add"]
        self._replayed = last
        adds = {self._path(add["path"]): add for add in self._adds.values()}
        assert len(adds) == len(self._adds), "a file is live once"
        return adds

    def _logical_file(self, action: Mapping[str, Any]) -> LogicalFile:
        vector = action.get("deletionVector") or {}
        return self._spelled(action["path"]), vector.get("pathOrInlineDv"), vector.get("offset")

    def _spelled(self, encoded: str) -> str:
        return encoded

    def _path(self, encoded: str) -> str:
        return f"file://{self.source}/{unquote(encoded)}"

    def truth(self, table: Table) -> DeltaTruth:
        """One read of the Delta table: its rows, and from which position of which file each of them comes."""
        found = self.writer.do(self.read, self.source)
        has_positions = not pa.types.is_null(found.schema.field(POSITION_COLUMN).type)
        adds = self.live_adds()
        live: dict[str, set[int]] = {path: set() for path in adds}
        paths, positions = found.column(FILE_COLUMN).to_pylist(), found.column(POSITION_COLUMN).to_pylist()
        for uri, position in zip(paths, positions, strict=True):
            live[f"file://{unquote(urlsplit(uri).path)}"].add(position)
        return DeltaTruth(
            version=self.version,
            table_id=self._table_id,
            rows=rows_of(found.drop_columns([FILE_COLUMN, POSITION_COLUMN]), table.schema().fields),
            adds=adds,
            deleted={
                path: frozenset(range(json.loads(add["stats"])["numRecords"])) - live[path]
                if has_positions
                else frozenset()
                for path, add in adds.items()
            },
        )

    def step(
        self,
        statement: str | None = None,
        *,
        snapshots: int = 1,
        operation: str | None = None,
        versions: int = 1,
        spark: bool = False,
    ) -> SyncResult:
        """Run `statement`, sync it, and check everything that must hold after one version.

        Only a statement without a snapshot may make several `versions`. With `spark` its Iceberg reader reads this one.
        """
        if statement is not None:
            before = self.version if self.log_folder.exists() else -1
            self.sql(statement)
            assert self.version == before + versions, f"{statement} made versions up to {self.version}, from {before}"
        where = f"version {self.version} ({' '.join((statement or 'by hand').split())[:70]})"
        files_before = self._files()
        result = self.sync()
        assert self._files() == files_before, f"the Delta table's folder changed at {where}"
        assert result.snapshots == snapshots, f"{result.snapshots} snapshots for {where}, expected {snapshots}"
        assert result.to_version == self.version
        table = self.bench.iceberg()
        found = self.truth(table)
        truth = shown_by(found, self.bench)
        image = self.check(table, truth, where)
        if snapshots:
            assert result.positions_added == check_change(self.image, image, truth, operation, untold_specs(table))
            self._check_marker(image, table, truth)
        else:
            assert image.snapshot_id == self.image.snapshot_id, f"a snapshot was made for {where}"
            assert result.positions_added == 0
        self.image = image
        if self.vectors:
            self._check_vectors(found, where)
        if spark:
            self._read_by_spark()
        return result

    def _check_vectors(self, truth: DeltaTruth, where: str) -> None:
        """The table of format version 3 shows the same."""
        assert self.vectors
        assert self.vectors.sync().to_version == truth.version
        table, truth = self.vectors.iceberg(), shown_by(truth, self.vectors)
        self.check_readers(table, truth.rows, f"{where}, format version 3")
        assert vectors_of(table) == {path: deleted for path, deleted in truth.deleted.items() if deleted}
        before, self._deleted = self._deleted, truth.deleted
        if any(before.get(path, frozenset()) - deleted for path, deleted in truth.deleted.items()):
            snapshot = table.current_snapshot()
            # A consumer may skip snapshots that only delete.
            assert snapshot and snapshot.summary and snapshot.summary.operation is Operation.OVERWRITE, where

    def _files(self) -> set[str]:
        return {str(path) for path in self.source.rglob("*") if path.is_file()}

    def sync_and_check(self, where: str) -> SyncResult:
        """Sync whatever there is, and check all that must hold at any time."""
        result = self.sync()
        table = self.bench.iceberg()
        self.image = self.check(table, shown_by(self.truth(table), self.bench), where)
        return result

    def check(self, table: Table, truth: DeltaTruth, where: str = "") -> Image:
        """Delta's files are in place with Delta's deletions and nothing else, all readers agree, so does the memory."""
        image = self._check_files(table, truth)
        self.check_readers(table, truth.rows, where, without=unfit_readers(image))
        self._check_memory(image, truth)
        return image

    def check_readers(self, table: Table, rows: Sequence[Row], where: str, without: Container[str] = ()) -> None:
        """All readers show these rows; Spark's is asked at the end of the test, if this is the last version then."""
        named = self.options.get("readers", TESTED_READERS)
        unnamed = {name for name in READERS if name.split()[0].lower() not in named}
        assert_readers_agree(table, None, rows, where, without={*without, *unnamed})
        self._unread[table.location()] = (table, rows, where)

    def _read_by_spark(self) -> None:
        while self._unread:
            _, (table, rows, where) = self._unread.popitem()
            assert_readers_agree(table, self.writer.spark, rows, where, without=WITHOUT_SPARK)

    def _check_files(self, table: Table, truth: DeltaTruth) -> Image:
        image = image_of(table)
        assert image.data_files.keys() == truth.adds.keys(), "live data files"
        for path, entry in image.data_files.items():
            add = truth.adds[path]
            assert entry.size == add["size"] == Path(path.removeprefix("file://")).stat().st_size
            assert entry.records == json.loads(add["stats"])["numRecords"]
        assert image.positions == truth.deleted, "positions that are deleted"
        for total, kind, amount in (
            ("total-data-files", image.data_files, None),
            ("total-records", image.data_files, "records"),
            ("total-delete-files", image.delete_files, None),
            ("total-position-deletes", image.delete_files, "records"),
            ("total-files-size", {**image.data_files, **image.delete_files}, "size"),
            ("total-equality-deletes", {}, None),
        ):
            counted = sum(getattr(entry, amount) if amount else 1 for entry in kind.values())
            assert image.summary[total] == str(counted), total
        return image

    def _check_memory(self, image: Image, truth: DeltaTruth) -> None:
        store = self.bench.store
        record = store.open_table(self.bench.name, self.bench.source, self.bench.target)
        counts = store.count(record.id)
        assert (record.synced_version, record.delta_table_id) == (truth.version, truth.table_id)
        assert record.snapshot_id == image.snapshot_id
        assert counts.live_data_files == len(image.data_files)
        assert counts.live_rows == len(truth.rows)
        assert counts.live_delete_files == len(image.delete_files)
        assert counts.deleted_positions == sum(len(positions) for positions in truth.deleted.values())
        remembered = {file.path: file.manifest_path for file in store.read_live_files(record.id)}
        assert remembered == {path: entry.manifest for path, entry in image.data_files.items()}, "remembered manifests"

    def _check_marker(self, image: Image, table: Table, truth: DeltaTruth) -> None:
        summary = image.summary
        commit = self.log_folder / f"{truth.version:020d}.json"
        # Delta PROTOCOL.md, "In-Commit Timestamps": commitInfo is the first action then.
        info = json.loads(commit.read_text().split("\n", 1)[0]).get("commitInfo", {})
        committed_ms = info.get("inCommitTimestamp", commit.stat().st_mtime_ns // 1_000_000)
        assert summary["dvsync.delta.table-id"] == truth.table_id
        assert summary["dvsync.delta.version"] == str(truth.version)
        assert summary["dvsync.delta.timestamp-ms"] == str(committed_ms)
        assert "dvsync.delta.from-version" not in summary
        snapshot = table.current_snapshot()
        assert snapshot is not None
        # One that another type of a column has outdated leaves in the commit of its successor.
        is_there = table.snapshot_by_id(self.image.snapshot_id) is not None
        assert snapshot.parent_snapshot_id == (self.image.snapshot_id if is_there else None)

    def check_leftovers(self) -> None:
        """Each file below the Iceberg table is referenced by one of its snapshots, or known as an orphan."""
        table = self.bench.iceberg()
        known = {table.metadata_location, *(log.metadata_file for log in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            known.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                known.add(manifest.manifest_path)
                known |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
        record = self.bench.store.open_table(self.bench.name, self.bench.source, self.bench.target)
        known |= {file.path for file in self.bench.store.list_written(record.id, (FileStatus.ORPHANED,))}
        folder = Path(table.metadata.location.removeprefix("file://"))
        # Hadoop puts a checksum beside each file, where Spark committed.
        there = {f"file://{path}" for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"}
        # Hadoop's spelling of a local path.
        known = {f"file://{path.removeprefix('file:').removeprefix('//')}" for path in known}
        assert not there - known, f"files that nobody knows: {there - known}"


def shown_by(truth: DeltaTruth, bench: Served | Bench) -> DeltaTruth:
    """The same with the mirrors of some files in their place."""
    record = bench.store.open_table(bench.name, bench.source, bench.target)
    mirrors = {mirror.data_file: mirror for mirror in bench.store.list_live_mirrors(record.id)}
    places = {path: mirrors[path].path if path in mirrors else path for path in truth.adds}
    sizes = {path: mirror.size_bytes for path, mirror in mirrors.items()}
    return replace(
        truth,
        adds={places[path]: {**add, "size": sizes.get(path, add["size"])} for path, add in truth.adds.items()},
        deleted={places[path]: positions for path, positions in truth.deleted.items()},
    )


def unfit_readers(image: Image) -> set[str]:
    """Polars' native reader refuses a delete file for several data files, and says so."""
    shared = any(entry.referenced is None for entry in image.delete_files.values())
    return {"Polars native"} if shared else set()


def untold_specs(table: Table) -> set[int]:
    """The specs of which a partition column is gone: DuckDB dies of their manifests, so none tells of what left."""
    columns = table.schema().field_ids
    return {
        spec_id for spec_id, spec in table.specs().items() if any(each.source_id not in columns for each in spec.fields)
    }


def removed_entries(before: Image, after: Image, content: int, untold: Set[int]) -> dict[str, Entry]:
    """What the snapshot removed: its manifests say so, but for those of `untold` specs."""
    files = before.data_files if content == DATA else before.delete_files
    return after.changed(content, DELETED) | {
        path: entry
        for path, entry in files.items()
        if entry.spec_id in untold and path not in {**after.data_files, **after.delete_files}
    }


def check_change(before: Image, after: Image, truth: DeltaTruth, operation: str | None, untold: Set[int]) -> int:
    """The snapshot changed what the version changed and nothing more. Returns the new positions."""
    if operation is not None:
        assert after.operation == operation
    returned = {
        path
        for path in before.data_files.keys() & after.data_files.keys()
        if not before.positions[path] <= truth.deleted[path]
    }
    data_added, data_removed = after.changed(DATA, ADDED), removed_entries(before, after, DATA, untold)
    assert data_added.keys() == (after.data_files.keys() - before.data_files.keys()) | returned, "data files added"
    assert data_removed.keys() == (before.data_files.keys() - after.data_files.keys()) | returned, "data files removed"

    new = after.changed(POSITION_DELETES, ADDED)
    assert new.keys() == after.delete_files.keys() - before.delete_files.keys(), "delete files added"
    gone = removed_entries(before, after, POSITION_DELETES, untold)
    assert gone.keys() == before.delete_files.keys() - after.delete_files.keys(), "delete files removed"
    wanted = Counter(
        (path, position)
        for path, deleted in truth.deleted.items()
        for position in deleted - (frozenset() if path in returned else before.positions.get(path, frozenset()))
    )
    # A delete file that served a leaving file and staying ones is written again for those that stay.
    staying = before.data_files.keys() - data_removed.keys()
    taken_over = Counter(row for row in before.positions_in(gone) if row[0] in staying)
    assert after.positions_in(new) == wanted + taken_over, "only new positions are written, and all of them"

    touched = {entry.path for entry in (*data_removed.values(), *gone.values())}
    for manifest in before.manifests:
        touched_here = any(
            entry.manifest == manifest and entry.status != DELETED and entry.path in touched for entry in before.entries
        )
        live = any(entry.manifest == manifest and entry.status != DELETED for entry in before.entries)
        assert (manifest in after.manifests) == (live and not touched_here), f"{manifest} is carried over untouched"
    changes = {
        (DATA, ADDED): data_added,
        (DATA, DELETED): data_removed,
        (POSITION_DELETES, ADDED): new,
        (POSITION_DELETES, DELETED): gone,
    }
    for key, (content, status, amount) in COUNTS.items():
        entries = changes[content, status].values()
        counted = sum(getattr(entry, amount) if amount else 1 for entry in entries)
        assert after.summary.get(key, "0") == str(counted), key
    for key, files in (
        ("added-files-size", (*data_added.values(), *new.values())),
        ("removed-files-size", (*data_removed.values(), *gone.values())),
    ):
        assert after.summary.get(key, "0") == str(sum(entry.size for entry in files)), key
    return wanted.total()
