"""The object store of a test run, and the run's report: how long tests waited, and what `dvsync run` followed."""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.kit.warm import prepare_once

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

    from tests.kit.servers import ObjectStore

# How long an example takes says nothing on a machine that does other work, too. `--hypothesis-profile long` tries more.
for name, examples in (("ci", 25), ("long", 500)):
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
    )
hypothesis.settings.load_profile("ci")
# Of integration: their store is a setting of the JVM that all workers share.
S3_MODULES = {"test_catalogs", "test_init", "test_mirror_lives", "test_object_stores"}
# The files of a group are one worker's: they share what takes a while to start, servers and the daemon's Spark.
GROUPS = {
    "S3": S3_MODULES,
    "kill": {"test_kill", "test_power_cut"},
    "Spark": {"test_first_sync", "test_spark_threads"},
    "metastores": {"test_metastores", "test_hive_and_glue"},
}


LONG_WAIT_S = 1.0

prepare_once()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says how to run it alone, and where its folder is."""
    report = yield
    if report.failed:
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        told = [f".venv/bin/pytest {shlex.quote(item.nodeid)}", *([f"its folder: {folder}"] if folder else [])]
        report.sections.append(("to run it alone", "\n".join(told)))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note how long the test slept, which `until` does, too, while another process is at work or is waiting itself."""
    sleep, slept_s = time.sleep, 0.0

    def counted(seconds: float) -> None:
        nonlocal slept_s
        sleep(seconds)
        if threading.current_thread() is threading.main_thread():
            slept_s += seconds
            item.user_properties[:] = [each for each in item.user_properties if each[0] != "waited"]
            item.user_properties.append(("waited", slept_s))

    time.sleep = counted
    try:
        return (yield)
    finally:
        time.sleep = sleep


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--histories",
        choices=("replay", "record", "check"),
        default="replay",
        help="what Spark writes: replayed from tests/histories/, recorded there, or written again and compared",
    )


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which tests waited, and what the fixture `service` counted, a line for each module; from all workers."""
    _report_waits(terminalreporter)
    _report_followed(terminalreporter)


def _report_waits(terminalreporter: pytest.TerminalReporter) -> None:
    # A later report has what an earlier one has, and more.
    waits = {
        report.nodeid: value
        for report in terminalreporter.getreports("")
        for name, value in report.user_properties
        if name == "waited"
    }
    if not waits:
        return
    terminalreporter.section("slept, or waited for another process")
    for test, seconds in sorted(waits.items(), key=lambda each: -each[1]):
        if seconds >= LONG_WAIT_S:
            terminalreporter.line(f"{seconds:.1f}s {test}")
    terminalreporter.line(f"{sum(waits.values()):.0f}s in all, in {len(waits)} tests")


def _report_followed(terminalreporter: pytest.TerminalReporter) -> None:
    tests: Counter[str] = Counter()
    tables: Counter[str] = Counter()
    versions: Counter[str] = Counter()
    reads: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports(""):
        for name, value in report.user_properties:
            # A property is on the reports of set-up, call and teardown alike.
            if name == "followed" and report.when == "teardown":
                module = report.nodeid.partition("::")[0]
                tests[module] += 1
                tables[module] += value[0]
                versions[module] += value[1]
                reads.setdefault(module, Counter()).update(value[2])
    if not tests:
        return
    terminalreporter.section("followed by a `dvsync run` process")
    for module in sorted(tests):
        engines = ", ".join(f"{engine} {count}" for engine, count in sorted(reads[module].items()))
        terminalreporter.line(
            f"{module}: {tests[module]} tests, {tables[module]} tables, {versions[module]} versions; read by {engines}"
        )
    total = ", ".join(f"{engine} {count}" for engine, count in sorted(sum(reads.values(), Counter()).items()))
    terminalreporter.line(
        f"in all: {tests.total()} tests, {tables.total()} tables, {versions.total()} versions; read by {total}"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """A file is one worker's, and so is each of GROUPS."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only where there are workers

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = super()._split_scope(nodeid)
            return next((name for name, group in GROUPS.items() if PurePosixPath(scope).stem in group), scope)

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    """One for all tests of a process, because moto keeps its buckets, users and checks for the whole process."""
    from tests.kit.servers import ObjectStore  # noqa: PLC0415 - it takes a second

    made = ObjectStore()
    for bucket in ("lake", "warehouse", "nessie"):
        made.client("s3").create_bucket(Bucket=bucket)
    yield made
    made.close()
