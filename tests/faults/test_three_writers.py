"""Random histories: Delta's writer, `dvsync delete` and an Iceberg engine change one table, and dvsync is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable, QueryBuilder

from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.position_set import as_bitmap
from daemon.delta_writer import commit, vectors
from daemon.delta_writer.deletion import delete_rows
from daemon.iceberg.target import Target
from daemon.store.storage import FileIOStorage
from state import DeletionVectorDescriptor
from state.sql.store import StateStore
from tests.kit.faults import fault_seed
from tests.kit.foreign import delete_in_iceberg
from tests.kit.handmade import Bench, HandmadeTable

HISTORIES = int(os.environ.get("FAULT_CYCLES", "200"))
# Before or after one of these, dvsync is killed.
MOMENTS: tuple[tuple[Any, str], ...] = (
    (commit, "put_if_absent"),
    (vectors, "put_if_absent"),
    (Target, "commit"),
    *((StateStore, f"record_{verb}") for verb in ("run", "rebuilt", "intent", "prepared", "synced")),
)
to_descriptor = msgspec.json.Decoder(DeletionVectorDescriptor).decode


class Killed(BaseException):
    """No part of dvsync catches it."""


class History:
    """A table on both sides. `ids` are its rows; those in `pending` are deleted in Iceberg, and perhaps in Delta."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.random, self.number = random, 0
        self.ids, self.pending = set[int](), set[int]()
        self.delta = HandmadeTable(folder / "delta")
        self.delta.create()
        self.append()
        self.append()
        options = {"deletes": "100%", "format_version": random.choice((2, 3))}
        self.bench = Bench(folder / "dvsync", self.delta.location, table_options=options)
        self.rejected = 0
        self.sync()

    def play(self, steps: int) -> None:
        """Random steps, each as a method of its own, and a sync that nobody kills."""
        often = [self.delete_in_iceberg] * 4 + [self.sync_killed] * 3 + [self.sync] * 2 + [self.delete_in_delta] * 2
        todo: list[Callable[[], None]] = [*often, self.append, self.delete_by_dvsync, self.optimize]
        for _ in range(steps):
            self.random.choice(todo)()
        self.sync()
        self.bench.close()

    def append(self) -> None:
        rows = [(self.number + each, "p", "v") for each in range(self.random.randrange(4, 9))]
        self.number += len(rows)
        self.ids |= {row[0] for row in rows}
        self.delta.commit([self.delta.add(self.delta.write_file(rows))])

    def delete_in_delta(self) -> None:
        live = [
            (path, position)
            for path, deleted in self.delta.deleted.items()
            for position in set(range(len(self.delta.rows[path]))) - deleted
        ]
        positions: dict[str, list[int]] = {}
        for path, position in self.some(live):
            positions.setdefault(path, []).append(position)
            self.ids.discard(self.delta.rows[path][position][0])
        if positions:
            self.delta.commit(self.delta.delete(positions), operation="DELETE")

    def delete_by_dvsync(self) -> None:
        if gone := self.some(sorted(self.ids)):
            delete_rows(self.delta.location, f"id IN ({', '.join(map(str, gone))})", engine="local")
            self.ids -= {*gone}
            self.adopt()

    def delete_in_iceberg(self) -> None:
        table = self.bench.iceberg()
        shown = {*table.scan().to_arrow()["id"].to_pylist()}
        names = [
            each.removeprefix(f"{self.delta.location}/") for each in table.inspect.data_files()["file_path"].to_pylist()
        ]
        live = [
            (name, position, row[0])
            for name in names
            for position, row in enumerate(self.delta.rows[name])
            if row[0] in shown
        ]
        positions: dict[str, list[int]] = {}
        for name, position, row_id in self.some(live):
            positions.setdefault(f"{self.delta.location}/{name}", []).append(position)
            self.pending.add(row_id)
        if positions:
            delete_in_iceberg(self.bench, positions, together=self.random.random() < 0.5)

    def optimize(self) -> None:
        """Two files become one: what is deleted meanwhile in Iceberg cannot be placed."""
        delta = self.delta
        joined = self.random.sample(sorted(delta.live), min(2, len(delta.live)))
        rows = [
            row
            for path in joined
            for position, row in enumerate(delta.rows[path])
            if position not in delta.deleted[path]
        ]
        if rows:
            delta.commit([*map(delta.remove, joined), delta.add(delta.write_file(rows))], operation="OPTIMIZE")

    def sync(self) -> None:
        """Both sides have the same rows afterwards; of the deletes in Iceberg, none is lost without a word."""
        self.bench.sync()
        self.adopt()
        delta = DeltaTable(str(self.delta.folder))
        ids = QueryBuilder().register("t", delta).execute("SELECT id FROM t").read_all()["id"].to_pylist()
        shown = self.bench.iceberg().scan().to_arrow()["id"].to_pylist()
        assert sorted(ids) == sorted(shown)
        assert len({*ids}) == len(ids)
        record = self.bench.context.find_record()
        assert record is not None
        runs = self.bench.store.list_runs(record.id, runs_max=1000)
        rejected = sum(run.outcome == "rejected" for run in runs)
        if rejected > self.rejected:
            assert self.ids - self.pending <= {*ids} <= self.ids
        else:
            assert {*ids} == self.ids - self.pending
        self.ids, self.pending, self.rejected = {*ids}, set(), rejected

    def sync_killed(self) -> None:
        """As `sync`, killed at a random moment; then perhaps it has done all."""
        countdown, is_after = self.random.randrange(12), self.random.random() < 0.5
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in MOMENTS:
                inner = getattr(owner, name)

                def outer(*arguments: Any, _inner: Any = inner, **options: Any) -> Any:
                    nonlocal countdown
                    countdown -= 1
                    if countdown == 0 and not is_after:
                        raise Killed
                    result = _inner(*arguments, **options)
                    if countdown == 0:
                        raise Killed
                    return result

                patch.setattr(owner, name, outer)
            try:
                self.sync()
            except Killed:
                self.bench.reopen()
                self.adopt()

    def adopt(self) -> None:
        """What dvsync has committed to Delta becomes part of the model of the files."""
        delta = self.delta
        while (path := delta.commit_path(delta.version + 1)).exists():
            delta.version += 1
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for remove in (line["remove"] for line in lines if "remove" in line):
                del delta.live[remove["path"]], delta.deleted[remove["path"]]
            for add in (line["add"] for line in lines if "add" in line):
                descriptor = to_descriptor(json.dumps(add["deletionVector"]))
                (positions,) = read_position_sets(FileIOStorage(), delta.location, [descriptor])
                delta.live[add["path"]], delta.deleted[add["path"]] = add, {*as_bitmap(positions)}

    def some(self, of: list[Any]) -> list[Any]:
        return self.random.sample(of, min(len(of), self.random.randrange(1, 5)))


@pytest.mark.parametrize("histories", [4, pytest.param(HISTORIES, marks=pytest.mark.long)])
def test_three_writers(tmp_path: Path, histories: int) -> None:
    """Seeded by `FAULT_SEED`; `FAULT_CYCLES` makes it longer."""
    seed = fault_seed()
    for number in range(histories):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        try:
            History(folder, Random(seed + number)).play(14)
        except BaseException:
            print(f"the history of FAULT_SEED={seed + number}")
            raise
