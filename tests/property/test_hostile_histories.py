"""Random histories with what other writers do to a Delta log: Iceberg shows Delta's rows, or refuses them by name.

`HISTORIES=500 pytest tests/property` plays that many; `VERBS=spellings,columns` only those kinds of hostile steps.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.errors import CorruptInput, SyncError, Unsupported
from daemon.sync import news
from tests.kit.examples import examples
from tests.kit.handmade import Bench
from tests.kit.histories import PARTS, Sync, steps
from tests.kit.hostile_histories import VERBS, AnyStep, HostileHistory, tour
from tests.kit.readers import assert_same_rows
from tests.kit.spec_reader import SpecTable

HISTORIES = int(os.environ.get("HISTORIES", examples(12)))
PLAYED = [verb for verb in VERBS if verb in os.environ.get("VERBS", ",".join(VERBS)).split(",")]


def play(steps: list[AnyStep], *, partitioned: bool, version: int, fold_after: int = 200) -> None:
    """Play a history with dvsync behind it, checking after each of its syncs."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(news, "FOLD_AFTER_VERSIONS", fold_after)
        folder = Path(name)
        history = HostileHistory(folder / "delta", partitioned=partitioned)
        bench = Bench(folder / "iceberg", history.table.location, table_options={"format_version": version})
        try:
            bench.first_sync_empty(history.table)
            for step in [*steps, Sync()]:
                if isinstance(step, Sync):
                    _sync(bench, history, restart=step.restart)
                else:
                    history.play_any(step)
            history.mend()
            _sync(bench, history)
        finally:
            bench.close()


@pytest.mark.parametrize("version", [2, 3], ids=["v2", "v3"])
@pytest.mark.parametrize("verb", PLAYED)
def test_tour(verb: str, version: int) -> None:
    """What is known to go wrong goes right."""
    play(tour([verb]), partitioned=version == 3 or verb == "widening", version=version)


@pytest.mark.parametrize(
    ("version", "partitioned"),
    [
        pytest.param(2, True, id="v2 partitioned"),
        pytest.param(2, False, id="v2 unpartitioned", marks=pytest.mark.long),
        pytest.param(3, True, id="v3 partitioned", marks=pytest.mark.long),
        pytest.param(3, False, id="v3 unpartitioned"),
    ],
)
@settings(
    max_examples=HISTORIES, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    steps=steps(changes_max=8, more=[VERBS[verb] for verb in PLAYED for _ in range(3)]),
    fold_after=st.sampled_from([200, 1]),
)
def test_delta_decides(*, partitioned: bool, version: int, steps: list[AnyStep], fold_after: int) -> None:
    """Whatever is written to the log, readers get Delta's rows of a version, and nothing that Delta would not show."""
    play(steps, partitioned=partitioned, version=version, fold_after=fold_after)


def _sync(bench: Bench, history: HostileHistory, *, restart: bool = False) -> None:
    """Follow the table, as the daemon does, and hold what is shown, or refused, against Delta."""
    if restart or history.is_replaced:
        bench.reopen()
    error = _follow(bench)
    if history.is_replaced:
        history.is_stale = True
        # The log is listed when there is no news.
        error, history.is_replaced = _follow(bench), False
    newest = history.table.version
    if error:
        # A newer version may lack the cause.
        bench.follower.compare("a newer version")
        error = _follow(bench)
    refusal = history.refusal(newest)
    shown = bench.store.open_table("t", bench.source, bench.target).synced_version
    assert shown is not None
    if error:
        assert refusal, f"version {newest} is refused: {error!r}"
        assert any(name in f"{error}".casefold() for name in refusal.names), f"{error} names none of {refusal.names}"
    else:
        assert shown == newest
        history.is_stale = False
    if not history.is_stale or shown != history.shown[0]:
        assert not (refusal := history.refusal(shown)) or not refusal.must, f"version {shown} is shown: {refusal}"
        history.shown = shown, history.rows(shown)
    _check_shown(bench, history)


def _follow(bench: Bench) -> SyncError | None:
    try:
        while bench.sync().more:
            pass
    except (Unsupported, CorruptInput) as error:
        return error
    return None


def _check_shown(bench: Bench, history: HostileHistory) -> None:
    table, (version, rows) = SpecTable(bench.iceberg().metadata_location), history.shown
    table.check()
    assert_same_rows(table.rows(), rows, "the specification's reader", f"version {version}")
    filters = [("value", None), *(("part", part) for part in PARTS)]
    filters += [each for row in rows for each in (("id", row[0]), ("value", row[2]))]
    for name, value in filters:
        place = ["id", "part", "value"].index(name)
        expected = [row for row in rows if row[place] == value]
        assert_same_rows(table.rows((name, value)), expected, f"{name} = {value}", f"version {version}")
