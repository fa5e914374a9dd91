"""Mirrors of all kinds in one go, as a task of Spark makes them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.mirror import making
from daemon.mirror.copying import MirrorCopy
from daemon.mirror.making import MirrorTask, make_mirrors
from daemon.mirror.rewriting import RewriteTask
from daemon.store.storage import FileIOStorage
from tests.kit.mirror_files import column, table_of


def test_mirrors_are_made_in_their_order_and_forced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks go to other processes; each batch is on the disk before any of it is told. What is rewritten is a batch."""
    forced: list[list[str]] = []
    monkeypatch.setattr(making, "force_to_disk", forced.append)
    monkeypatch.setattr(making, "REQUESTS_AT_ONCE", 2)
    source, table = tmp_path / "f.parquet", table_of(column("n", "double"))
    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int32())}), source)
    size = source.stat().st_size
    names = [f"{tmp_path}/m{number}" for number in range(4)]
    tasks: list[MirrorTask] = [
        MirrorCopy(str(source), size, b"", names[0]),
        MirrorCopy(str(source), size - 1, b"1", names[1]),
        MirrorCopy(str(source), size, b"", names[2]),
        RewriteTask(str(source), names[3], table, {}, {}),
    ]
    made = make_mirrors(FileIOStorage(), {}, pickle.loads(pickle.dumps(tasks)))
    assert next(made) == {names[0]: size, names[1]: size}
    assert forced == [names[:2]]
    assert list(made) == [{names[2]: size}, {names[3]: Path(names[3]).stat().st_size}]
    assert forced == [names[:2], names[2:3], names[3:]]
    assert Path(names[1]).read_bytes() == source.read_bytes()
    assert pq.read_table(names[3])["n"].to_pylist() == [1.0, 2.0]
