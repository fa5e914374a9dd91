"""Mirrors of all kinds in one go, as a task of Spark makes them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.mirror import making
from daemon.mirror.copying import MirrorCopy
from daemon.mirror.making import MirrorTask, WrittenMirror, make_mirrors
from daemon.mirror.rewriting import RewriteTask
from daemon.store.storage import FileIOStorage
from tests.kit.mirror_files import column, table_of


def test_mirrors_are_made_in_their_order_and_forced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks go to other processes; each batch is on the disk before any of it is told."""
    forced: list[list[str]] = []
    monkeypatch.setattr(making, "force_to_disk", forced.append)
    monkeypatch.setattr(making, "REQUESTS_AT_ONCE", 2)
    source, table = tmp_path / "f.parquet", table_of(column("n", "double"))
    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int32())}), source)
    size = source.stat().st_size
    names = [f"{tmp_path}/m{number}" for number in range(3)]
    tasks: list[MirrorTask] = [
        MirrorCopy(str(source), size, b"", names[0]),
        RewriteTask(str(source), names[1], table, {}, {}),
        MirrorCopy(str(source), size - 1, b"1", names[2]),
    ]
    made = make_mirrors(FileIOStorage(), {}, pickle.loads(pickle.dumps(tasks)))
    assert next(made) == WrittenMirror(names[0], size)
    assert forced == [names[:2]]
    assert [each.path for each in made] == names[1:]
    assert forced == [names[:2], names[2:]]
    assert pq.read_table(names[1])["n"].to_pylist() == [1.0, 2.0]
    assert Path(names[2]).read_bytes() == source.read_bytes()
