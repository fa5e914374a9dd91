"""Random histories of Delta versions: after every sync Iceberg shows a plain model's rows, and no more.

`HISTORIES=500 pytest tests/property` plays that many histories of each kind instead of the few that CI has time for.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from daemon.delta import bitmap_format
from daemon.sync import news
from tests.kit.examples import examples
from tests.kit.handmade import GRANULARITY, Bench
from tests.kit.histories import TOUR, Append, Delete, History, Remove, Restore, Step, Sync, steps
from tests.kit.invariants import Watch
from tests.kit.readers import Reader, assert_same_rows, read_duckdb, read_polars_pyiceberg, read_pyiceberg

HISTORIES = int(os.environ.get("HISTORIES", examples(12)))
CHECK_READERS_EVERY = 5
# The same with few syncs, each of which folds what came before it.
FOLDED = [step for number, step in enumerate(TOUR) if number in (1, 15) or not isinstance(step, Sync)]


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """Chunks of positions end with each Roaring container, so that files of two containers cross a border."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bitmap_format, "CHUNK_CONTAINERS_MAX", 1)
        yield


def play(steps: list[Step], *, partitioned: bool, granularity: str, fold_after: int = 200, big: bool = False) -> None:
    """Play a history with dvsync behind it, checking after each of its cycles."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(GRANULARITY, granularity)
        patch.setattr(news, "FOLD_AFTER_VERSIONS", fold_after)
        folder = Path(name)
        history = History(folder / "delta", partitioned=partitioned, big=big)
        bench = Bench(folder / "iceberg", history.table.location)
        try:
            bench.first_sync_empty(history.table)
            watch = Watch(bench, history, granularity)
            checks = 0
            for step in [*steps, Sync()]:
                if not isinstance(step, Sync):
                    history.play(step)
                    continue
                if step.restart:
                    bench.reopen()
                more = True
                while more:
                    more = bench.follower.sync().more
                    watch.check(folded=fold_after < 100)
                checks += 1
                if checks % CHECK_READERS_EVERY == 0:
                    watch.check_readers()
            assert watch.synced == history.table.version
            watch.check_readers()
        finally:
            bench.close()


@pytest.mark.parametrize(
    ("partitioned", "granularity"),
    [
        pytest.param(False, "file", id="unpartitioned-file"),
        pytest.param(False, "partition", id="unpartitioned-partition", marks=pytest.mark.long),
        pytest.param(True, "file", id="partitioned-file", marks=pytest.mark.long),
        pytest.param(True, "partition", id="partitioned-partition"),
    ],
)
@settings(
    max_examples=HISTORIES, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    steps=steps(changes_max=10),
    fold_after=st.sampled_from([200, 200, 1, 2]),
    commits_max=st.sampled_from([100, 100, 2]),
    big=st.sampled_from(7 * [False] + [True]),
)
@example(steps=TOUR, fold_after=200, commits_max=100, big=False)
@example(steps=FOLDED, fold_after=1, commits_max=100, big=False)
def test_iceberg_follows_any_history(
    *, partitioned: bool, granularity: str, steps: list[Step], fold_after: int, commits_max: int, big: bool
) -> None:
    """Whatever happens to the Delta table, a snapshot shows its version's rows, and each position is deleted once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(news, "COMMITS_MAX", commits_max)
        play(steps, partitioned=partitioned, granularity=granularity, fold_after=fold_after, big=big)


def test_positions_of_several_chunks() -> None:
    """Deletion vectors of several containers, each a chunk of its own here, grow and shrink as small ones do."""
    pairs = [Delete(((0, bits),)) for bits in (0b000011, 0b001100, 0b110000)]
    steps = [step for delete in pairs for step in (delete, Sync())]
    play([Append(((1, 0),)), Sync(), *steps, Restore(1)], partitioned=False, granularity="file", big=True)


@pytest.mark.parametrize("remove_first", [False, True], ids=["shrunk", "removed"])
@pytest.mark.parametrize("read", [read_pyiceberg, read_duckdb, read_polars_pyiceberg])
def test_shared_delete_files_after_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Reader, *, remove_first: bool
) -> None:
    """Rows that RESTORE brings back are there in every reader, also when other files share their delete file.

    These readers apply a delete file that they read for one data file to all that it names, whatever their numbers.
    """
    history = History(tmp_path / "delta", partitioned=False)
    monkeypatch.setattr(GRANULARITY, "partition")
    monkeypatch.setattr(news, "FOLD_AFTER_VERSIONS", 1)
    bench = Bench(tmp_path / "iceberg", history.table.location)
    try:
        bench.first_sync_empty(history.table)
        # Both deletions are folded into one delete file; the second one is undone.
        back: list[Step] = [Remove((1,)), Sync(), Restore(2)] if remove_first else [Restore(1)]
        deletions = [Delete(((1, 0b1),)), Delete(((0, 0b1),))]
        for step in [Append(((2, 0), (2, 0))), Sync(), *deletions, Sync(), *back, Sync()]:
            if isinstance(step, Sync):
                bench.follower.sync()
            else:
                history.play(step)
        assert_same_rows(read(bench.iceberg(), None), history.rows(history.table.version), read.__name__)
    finally:
        bench.close()
