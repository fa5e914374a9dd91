"""The object store of a test run, and the run's report: which histories a `dvsync run` process followed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

    from tests.kit.servers import ObjectStore

# How long an example takes says nothing on a machine that does other work, too.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--histories",
        choices=("replay", "record", "check"),
        default="replay",
        help="what Spark writes: replayed from tests/histories/, recorded there, or written again and compared",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the fixture `service` counted, a line for each module; from all workers."""
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
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """A file is one worker's, and so is a group of tests from several files."""
    from xdist.scheduler import LoadGroupScheduling  # noqa: PLC0415 - only where there are workers

    class Scheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

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
