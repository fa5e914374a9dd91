from __future__ import annotations

import io
import json
import logging
import warnings
from datetime import UTC, datetime
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
from apscheduler.events import EVENT_JOB_MAX_INSTANCES
from apscheduler.schedulers.background import BackgroundScheduler
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.table.name_mapping import MappedField, NameMapping

from daemon.config.settings import LogSettings
from daemon.observe.log import SYNC_ADVANCED, SYNC_FAILED, bind_cycle, configure_logging

WAIT_S = 10.0


@pytest.fixture
def stream():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    logging.captureWarnings(False)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_carry_event_values_and_the_bound_cycle(stream):
    """One object a line: the event is a constant, values are keys, time is UTC."""
    configure_logging(LogSettings(format="json"), stream)
    with bind_cycle("sales.orders", "c1"):
        structlog.get_logger("daemon.scheduling.cycle").info(SYNC_ADVANCED, to_version=3)
    structlog.get_logger("daemon.scheduling.cycle").info(SYNC_ADVANCED)
    inside, outside = lines_of(stream)
    assert (inside["event"], inside["level"], inside["to_version"]) == ("sync.advanced", "info", 3)
    assert (inside["table"], inside["cycle_id"]) == ("sales.orders", "c1")
    assert str(inside["timestamp"]).endswith("Z")
    assert "table" not in outside


def test_auto_is_json_where_there_is_no_terminal(stream):
    """Pipes and files get JSON."""
    configure_logging(LogSettings(format="auto"), stream)
    structlog.get_logger("daemon").info(SYNC_ADVANCED)
    assert lines_of(stream)[0]["event"] == "sync.advanced"


def test_console_lines_are_for_people(stream):
    """The same event, readable, without escape codes off a terminal."""
    configure_logging(LogSettings(format="console"), stream)
    structlog.get_logger("daemon").info(SYNC_ADVANCED, to_version=3)
    assert "sync.advanced" in stream.getvalue()
    assert "to_version=3" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
def test_tracebacks_show_no_local_variables(stream, form):
    """Locals hold credentials and batches of rows."""
    configure_logging(LogSettings(format=form), stream)
    password = "".join(["hun", "ter2"])
    try:
        raise ValueError(f"length {len(password)}")
    except ValueError as error:
        structlog.get_logger("daemon").error(SYNC_FAILED, exc_info=error)
    assert "ValueError: length 7" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_console_lines_hold_nothing_that_a_terminal_obeys(stream):
    """What a Delta log calls an operation, and what an exception quotes, cannot move the cursor or add a line."""
    configure_logging(LogSettings(format="console"), stream)
    structlog.get_logger("daemon").warning(
        SYNC_FAILED, reason="file\x1b]0;owned\x07", operation="DELETE\n[info] all well"
    )
    try:
        raise ValueError("\x1b[2J")
    except ValueError as error:
        structlog.get_logger("daemon").error(SYNC_FAILED, exc_info=error)
    logging.getLogger("py4j").error("first\x9b\nsecond")
    text = stream.getvalue()
    assert all(line.isprintable() for line in text.splitlines())
    assert "file\\x1b]0;owned\\x07" in text
    assert "\n[info] all well" not in text
    assert "ValueError: \\x1b[2J" in text
    assert "first\\x9b\nsecond" in text


def test_libraries_are_heard_from_warning_on(stream):
    """Their logs and Python's warnings come in the same form, at whatever level is asked for; below it is nothing."""
    configure_logging(LogSettings(format="json", level="debug"), stream)
    logging.getLogger("alembic").info("quiet")
    logging.getLogger("alembic").warning("the %s", "word")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old ways", DeprecationWarning, stacklevel=1)
    structlog.get_logger("daemon").debug(SYNC_ADVANCED)
    lines = lines_of(stream)
    assert [line["level"] for line in lines] == ["warning", "warning", "debug"]
    assert [lines[0]["event"], lines[2]["event"]] == ["the word", "sync.advanced"]
    assert "old ways" in str(lines[1]["event"])
    configure_logging(LogSettings(format="json", level="error"), stream)
    logging.getLogger("alembic").warning("no more")
    assert len(lines_of(stream)) == 3


def play_remarks(folder):
    """What libraries warn of in the daily round: a job on top of itself, files as Spark and pandas write them."""
    skipped, done = Event(), Event()
    scheduler = BackgroundScheduler(timezone=UTC)
    scheduler.add_listener(lambda _event: skipped.set(), EVENT_JOB_MAX_INSTANCES)
    scheduler.add_job(done.wait, "interval", [WAIT_S], seconds=0.01)
    scheduler.start()
    assert skipped.wait(WAIT_S)
    done.set()
    scheduler.shutdown()
    mapping = NameMapping([MappedField(field_id=1, names=["c"])])
    for values, options in (
        (pa.array([datetime(2020, 1, 1)]), {"use_deprecated_int96_timestamps": True, "store_schema": False}),
        (pa.array(["a"]).dictionary_encode(), {}),
    ):
        pq.write_table(pa.table({"c": values}), folder / "f.parquet", **options)
        schema = pq.read_metadata(folder / "f.parquet").schema.to_arrow_schema()
        pyarrow_to_schema(schema, mapping, downcast_ns_timestamp_to_us=True)


@pytest.mark.parametrize(("level", "shown"), [("info", 0), ("debug", 3)])
def test_remarks_nobody_can_act_on_are_for_debugging(stream, tmp_path, level, shown):
    """APScheduler's, and PyIceberg's about files that are read rightly; other words of theirs stay warnings."""
    configure_logging(LogSettings(format="json", level=level), stream)
    play_remarks(tmp_path)
    logging.getLogger("apscheduler.scheduler").warning("Error getting due jobs")
    logging.getLogger("pyiceberg.io.pyarrow").warning("Unable to resolve region for bucket lake")
    lines = lines_of(stream)
    assert len({line["event"] for line in lines if line["level"] == "debug"}) == shown
    assert [line["event"] for line in lines if line["level"] == "warning"] == [
        "Error getting due jobs",
        "Unable to resolve region for bucket lake",
    ]


def test_the_level_holds_for_our_own_events(stream):
    """With level warning the canonical lines are not written."""
    configure_logging(LogSettings(format="json", level="warning"), stream)
    structlog.get_logger("daemon.scheduling.cycle").info(SYNC_ADVANCED)
    structlog.get_logger("daemon.scheduling.cycle").warning(SYNC_FAILED)
    assert [line["event"] for line in lines_of(stream)] == ["sync.failed"]
