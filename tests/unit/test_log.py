from __future__ import annotations

import io
import json
import logging
import warnings

import pytest
import structlog

from daemon.log import SYNC_ADVANCED, SYNC_FAILED, bind_cycle, configure_logging
from daemon.settings import LogSettings


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
        structlog.get_logger("daemon.cycle").info(SYNC_ADVANCED, to_version=3)
    structlog.get_logger("daemon.cycle").info(SYNC_ADVANCED)
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


def test_libraries_are_heard_from_warning_on(stream):
    """Their logs and Python's warnings come in the same form; APScheduler's and Py4J's daily round does not."""
    configure_logging(LogSettings(format="json", level="debug"), stream)
    logging.getLogger("alembic").info("quiet")
    logging.getLogger("alembic").warning("the %s", "word")
    logging.getLogger("apscheduler.scheduler").warning("maximum number of running instances reached")
    logging.getLogger("py4j.clientserver").warning("closing down clientserver connection")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old ways", DeprecationWarning, stacklevel=1)
    structlog.get_logger("daemon").debug(SYNC_ADVANCED)
    events = [str(line["event"]) for line in lines_of(stream)]
    assert events[0] == "the word"
    assert "old ways" in events[1]
    assert events[2:] == ["sync.advanced"]


def test_the_level_holds_for_our_own_events(stream):
    """With level warning the canonical lines are not written."""
    configure_logging(LogSettings(format="json", level="warning"), stream)
    structlog.get_logger("daemon.cycle").info(SYNC_ADVANCED)
    structlog.get_logger("daemon.cycle").warning(SYNC_FAILED)
    assert [line["event"] for line in lines_of(stream)] == ["sync.failed"]
