"""Processes to kill: imports the product, follows a table, then forks one for each order.

An order is one line, `build`, `kill CASE EVENT`, `cut CASE EVENT` or `follow CASE` in JSON, and so is the answer. Run
as `python -m tests.kit.kill_server FOLDER FLAVOUR:ORDERS:ANSWERS…`, with the descriptors from which the server of each
flavour reads and to which it writes. Every case is played at the one path FOLDER/FLAVOUR/case, since Iceberg metadata
holds absolute paths; `build` keeps copies of what it was before each sync, at FOLDER/FLAVOUR/bases.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pyiceberg.io.pyarrow  # noqa: F401 - otherwise each process imports it for its first commit
import structlog
from coverage import Coverage
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog

from daemon.delta_writer import commit as deletion_commit
from daemon.delta_writer import vectors
from daemon.iceberg import row_delta, target
from daemon.iceberg.position_deletes import PositionDeleteWriter
from daemon.iceberg.puffin import PuffinWriter
from daemon.iceberg.target import Target
from daemon.mirror import making
from daemon.pipeline import data_manifests, runner
from daemon.pipeline.runner import Runner
from daemon.store.storage import FileIOStorage
from daemon.sync import news
from daemon.translate import definition
from state.sql.database import Database
from state.sql.store import StateStore
from tests.kit.checks import check, check_vectors, duckdb_rows
from tests.kit.foreign import delete_in_iceberg, expect
from tests.kit.handmade import COLUMNS, Bench, HandmadeTable
from tests.kit.handmade_managed import Managed
from tests.kit.handmade_mirrored import Mirrored
from tests.kit.power import Disk
from tests.kit.warm import follow_once, prepare_once

# Every step that leaves something behind. A file that is opened and not closed is one: its bytes are lost with us.
STEPS: tuple[tuple[Any, str], ...] = (
    *(
        (StateStore, f"record_{verb}")
        for verb in (
            *("intent", "pending", "mirrors", "prepared", "synced", "rebuilt", "abandoned", "orphans"),
            *("unreferenced", "sizes", "deleted", "vectors", "run"),
        )
    ),
    (StateStore, "forget_before"),
    # A verb of several transactions may end between two of them.
    (Database, "write"),
    (FileIOStorage, "delete"),
    (Runner, "write_delete_files"),
    (making, "copy_bytes"),
    (PositionDeleteWriter, "__init__"),
    (PositionDeleteWriter, "finish"),
    (PuffinWriter, "finish"),
    (AvroOutputFile, "__enter__"),
    (row_delta, "write_manifest"),
    (data_manifests, "write_manifest"),
    (target, "write_manifest_list"),
    (MetastoreCatalog, "_write_metadata"),
    (SqlCatalog, "commit_table"),
    (Target, "commit"),
    (Target, "define"),
    (vectors, "put_if_absent"),
    (deletion_commit, "put_if_absent"),
)


# How the deletions are shown: a delete file for each data file or partition, or deletion vectors. Or a table that its
# catalog manages, or one with mirrors.
FLAVOURS = ("file", "partition", "vectors", "managed", "mirrored")
KINDS = {"managed": Managed, "mirrored": Mirrored}
WITH_FOREIGN = ("file", "partition", "vectors", "mirrored")
# What becomes of the commits that the catalog has ratified, between the kill and the next start.
PUBLISHINGS = ("no", "published", "published and forgotten")


@dataclass
class Case:
    """A table with news for its follower, and the Delta versions whose snapshots are there once it has followed."""

    table: HandmadeTable
    flavour: str
    versions: list[int]
    fold_after_versions: int = 200
    # Rows that somebody has deleted in Iceberg, by data file: dvsync is to delete them in Delta by one more version.
    foreign: dict[str, list[int]] = field(default_factory=dict)

    def bench(self) -> Bench:
        definition.DELETE_GRANULARITY_DEFAULT = "partition" if self.flavour == "partition" else "file"
        news.FOLD_AFTER_VERSIONS = self.fold_after_versions
        options: dict[str, Any] = {"format_version": 3 if self.flavour == "vectors" else 2, "deletes": "50%"}
        if self.flavour == "mirrored":
            options["mirrors"] = "copy"
        of_catalog: dict[str, Any] = {}
        if isinstance(self.table, Managed):
            of_catalog = {"entry": self.table.entry, "storage": self.table.storage()}
        return Bench(self.table.folder.parent / "dvsync", self.table.location, table_options=options, **of_catalog)

    def check(self, bench: Bench) -> None:
        """What must hold once the table was followed. Called once."""
        if self.foreign:
            expect(self.table, self.foreign)
            assert not self.table.commit_path(self.table.version + 1).exists(), "the deletes come to Delta once"
            check_vectors(bench, self.table)
        check(bench, self.table, self.versions)


@dataclass
class Builder:
    """Plays one history, keeping before each sync a copy of all that is on disk: one case to be killed in."""

    folder: Path
    flavour: str
    table: HandmadeTable = field(init=False)
    trace: Trace = field(init=False)
    versions: list[int] = field(default_factory=list)
    traces: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = KINDS.get(self.flavour, HandmadeTable)(self.folder / "case" / "delta", partitioned=True)
        self.trace = Trace(self.folder / "case")

    def play(self) -> None:
        table = self.table
        table.create()
        self.follow("empty first sync")
        a, b = (table.write_file([(10 * n + i, "x", f"v{i}") for i in range(6)]) for n in range(2))
        c = table.write_file([(30 + i, "y", f"v{i}") for i in range(6)])
        table.commit([table.add(a), table.add(b, deleted=[5]), table.add(c)])
        self.follow("append")
        table.commit(table.delete({a: [0, 1], b: [0], c: [2]}), operation="DELETE")
        self.follow("dv growth")
        table.commit(
            [table.remove(a), table.remove(b), table.add(a, deleted=[1, 4]), table.add(b, deleted=[5])],
            operation="RESTORE",
        )
        self.follow("shrunk dv")
        table.commit([{"metaData": table.metadata((*COLUMNS, ("extra", "long")))}], operation="ADD COLUMNS")
        self.follow("schema only", changes_rows=False)
        d = table.write_file([(40 + i, "x", f"v{i}") for i in range(6)])
        table.commit([table.remove(b), table.add(d, deleted=[3]), *table.delete({c: [3]})], operation="MERGE")
        self.follow("removal")
        self.follow_again("first sync", versions=[table.version])
        # What was live when the append was synced, with all later versions still to be followed.
        self.follow_again("several pending", after="dv growth", versions=list(self.versions))
        self.follow_again("several folded", after="dv growth", versions=[0, 1, table.version], fold_after_versions=1)
        if self.flavour in ("file", "partition"):
            self.follow_again("upgrade", after="removal", versions=list(self.versions), flavour="vectors")
        if self.flavour in WITH_FOREIGN:
            self.follow_foreign(a, c)

    def follow_foreign(self, a: str, c: str) -> None:
        """Somebody deletes rows in Iceberg while Delta deletes others, and one of them, too."""
        table, dvsync = self.table, self.folder / "case" / "dvsync"
        shutil.rmtree(dvsync)
        shutil.copytree(self.folder / "bases" / "removal" / "dvsync", dvsync)
        bench = Case(table, self.flavour, []).bench()
        bench.follower.sync()
        rows, record = {a: [0, 2], c: [0, 1]}, bench.context.find_record()
        assert record is not None
        mirrors = {each.data_file: each.path for each in bench.store.list_live_mirrors(record.id)}
        places = {path: f"{table.location}/{path}" for path in rows}
        shown = {mirrors.get(place, place): rows[path] for path, place in places.items()}
        delete_in_iceberg(bench, shown)
        bench.close()
        table.commit(table.delete({c: [0, 4]}), operation="DELETE")
        self._trace("foreign", Case(table, self.flavour, [*self.versions, table.version + 1], foreign=rows))

    def follow(self, name: str, *, changes_rows: bool = True) -> None:
        if changes_rows:
            self.versions.append(self.table.version)
        self._trace(name, Case(self.table, self.flavour, list(self.versions)))

    def follow_again(self, name: str, *, after: str | None = None, **options: Any) -> None:
        """The whole history, followed from scratch or from where the case `after` began."""
        shutil.rmtree(self.folder / "case" / "dvsync")
        if after:
            shutil.copytree(self.folder / "bases" / after / "dvsync", self.folder / "case" / "dvsync")
        self._trace(name, Case(self.table, **{"flavour": self.flavour, **options}))

    def _trace(self, name: str, case: Case) -> None:
        shutil.copytree(self.folder / "case", self.folder / "bases" / name)
        (self.folder / f"{name}.case").write_bytes(pickle.dumps(case))
        bench = case.bench()
        self.traces[name] = self.trace.watch(bench.follower.sync)
        case.check(bench)
        bench.close()


class Trace:
    """Sees what happens in `watch`: `before record_intent`, `after record_intent`, …; may end the process at one."""

    def __init__(self, folder: Path, kill_at: int | None = None, last_words: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._kill_at = kill_at
        self._last_words = last_words
        self._events: list[str] | None = None
        self._last: object = None
        for owner, name in STEPS:
            self._wrap(owner, name)

    def watch(self, work: Callable[[], object]) -> list[str]:
        """The events while `work` runs, without a name where nothing had changed on disk since the one before.

        Being killed at either of such two is the same thing.
        """
        self._events, self._last = [], None
        work()
        events, self._events = self._events, None
        return events

    def _wrap(self, owner: Any, name: str) -> None:
        inner = getattr(owner, name)
        word = f"{owner.__name__}.{name}" if name.startswith("__") else name

        def outer(*arguments: Any, **options: Any) -> Any:
            self._happened(f"before {word}")
            result = inner(*arguments, **options)
            self._happened(f"after {word}")
            return result

        setattr(owner, name, staticmethod(outer) if name == "_write_metadata" else outer)

    def _happened(self, event: str) -> None:
        if self._events is None:
            return
        if self._kill_at is not None:
            if len(self._events) == self._kill_at:
                self._last_words()
                os.kill(os.getpid(), signal.SIGKILL)
            self._events.append(event)
            return
        on_disk = [
            (str(path), status.st_size, status.st_mtime_ns)
            for path in sorted(self._folder.rglob("*"))
            if not path.name.endswith("-shm") and (status := path.stat())
        ]
        self._events.append(event if on_disk != self._last else "")
        self._last = on_disk


def build(folder: Path, flavour: str) -> dict[str, list[str]]:
    builder = Builder(folder, flavour)
    builder.play()
    return builder.traces


def kill(folder: Path, name: str, event: int) -> None:
    """Play the case until its nth event, which this process does not survive."""
    _lay_out(folder, name)
    _play_until(folder, name, Trace(folder / "case", event))


def cut(folder: Path, name: str, event: int, *, keeps_names: bool, deaf_to: str | None) -> None:
    """The same, and the power is cut at that moment."""
    _lay_out(folder, name)
    disk = Disk(folder / "case" / "dvsync", deaf_to)
    _play_until(folder, name, Trace(folder / "case" / "dvsync", event, lambda: disk.cut(keeps_names=keeps_names)))


def _lay_out(folder: Path, name: str) -> None:
    shutil.rmtree(folder / "case")
    shutil.copytree(folder / "bases" / name, folder / "case")


def _play_until(folder: Path, name: str, trace: Trace) -> None:
    bench = _load(folder, name).bench()
    trace.watch(bench.follower.sync)
    raise AssertionError(f"survived {name}")


def follow(folder: Path, name: str, *, ask_duckdb: bool, publishing: str) -> None:
    """A new start after the kill: all is well after one sync, and the next one has nothing to do.

    A commit that landed is known from what was written down before it: only a first sync's needs Delta on Spark again.
    """
    if "first sync" not in name:
        runner.read_table_state = _no_spark
    case = _load(folder, name)
    table = case.table
    if isinstance(table, Managed) and publishing != "no":
        table.publish(forgets=publishing == "published and forgotten")
    bench = case.bench()
    bench.follower.sync()
    case.check(bench)
    if ask_duckdb:
        assert duckdb_rows(bench.iceberg()) == case.table.live_rows()
    shown = bench.iceberg().metadata_location
    if isinstance(table, Managed):
        table.publish()
    assert bench.follower.sync().outcome == "unchanged"
    assert bench.iceberg().metadata_location == shown
    bench.close()


def _no_spark(*arguments: object) -> Any:
    raise AssertionError("the state was rebuilt with Spark")


def _load(folder: Path, name: str) -> Case:
    case: Case = pickle.loads((folder / f"{name}.case").read_bytes())
    return case


def in_a_process(work: Callable[[], object]) -> object:
    """The result of `work` in a forked process, or its traceback; the number of the signal that ended it."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        try:
            answer = json.dumps({"result": work()})
        except BaseException:
            answer = json.dumps({"error": traceback.format_exc()})
        with os.fdopen(writing, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    _, status = os.waitpid(process, 0)
    return {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else json.loads(told)


def serve(folder: Path, flavour: str, given: TextIO, answers: TextIO) -> None:
    orders: dict[str, Callable[..., object]] = {
        "build": lambda: build(folder, flavour),
        "kill": lambda name, event: kill(folder, name, event),
        "cut": lambda name, event, keeps_names, deaf_to: cut(
            folder, name, event, keeps_names=keeps_names, deaf_to=deaf_to
        ),
        "follow": lambda name, ask_duckdb, publishing="no": follow(
            folder, name, ask_duckdb=ask_duckdb, publishing=publishing
        ),
    }
    for line in given:
        order, *arguments = json.loads(line)
        print(json.dumps(in_a_process(lambda: orders[order](*arguments))), file=answers, flush=True)  # noqa: B023


def main() -> None:
    folder, told = Path(sys.argv[1]), [each.split(":") for each in sys.argv[2:]]
    warnings.simplefilter("error")
    # The standard output is the tests' own.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    prepare_once()
    follow_once(check)
    if measured := Coverage.current():
        measured.save()
    gc.freeze()  # What is here already is never looked at again, and so not copied into each process.
    servers = []
    for flavour, given, answers in told:
        process = os.fork()
        if process == 0:
            for _, *others in told:
                for descriptor in map(int, others):
                    if str(descriptor) not in (given, answers):
                        os.close(descriptor)
            (folder / flavour).mkdir()
            with open(int(given)) as read, open(int(answers), "w") as written:
                serve(folder / flavour, flavour, read, written)
            os._exit(0)
        servers.append(process)
    for _, *descriptors in told:
        for descriptor in descriptors:
            os.close(int(descriptor))
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in servers]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
