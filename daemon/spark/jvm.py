"""Spark's JVM as a child process: starts it with its launch settings, keeps its output, and ends it reliably."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from subprocess import TimeoutExpired
from urllib.parse import urlsplit

import structlog

from daemon.observe import log as events

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

JVM_EXIT_MAX_S = 10
# About a third of the share of processor time that the daemon's threads get, if there is not enough for both.
NICENESS = 5

# Long enough for Ivy's report on twenty missing jars.
LINES_KEPT = 400
# In that report.
MISSING_JAR = re.compile(r":: (?P<group>[\w.-]+)#(?P<name>[\w.-]+);(?P<version>[^\s:!]+)")
JAR_CACHE = re.compile(r"Ivy Default Cache set to: (?P<folder>.+)")
JAR_REASON = re.compile(r"(?P<host>Host \S+ not found)\.|Server access error at url .*\((?P<error>.+)\)$")


class JvmOutput:
    """The output of Spark's JVM. Its lines go to our log at debug level; the last lines are kept for error messages."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        # Read the pipe from the start: resolving jars can print more than a pipe can hold, and would then block.
        read_end, self.write_end = os.pipe()
        self._thread = threading.Thread(target=self._relay, args=(read_end,), name="spark-output", daemon=True)
        self._thread.start()

    def read_lines(self) -> list[str]:
        """Return the last lines. Call this after the JVM has ended; it waits for the rest of the output."""
        self._thread.join(JVM_EXIT_MAX_S)
        return list(self._lines)

    def _relay(self, read_end: int) -> None:
        with os.fdopen(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if text := line.strip():
                    self._lines.append(text)
                    _log.debug(events.PIPELINE_SAID, line=text)


def launch_jvm(conf: Mapping[str, str], output: JvmOutput) -> None:
    """Start the JVM with `conf` on its command line, and connect PySpark to it."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    try:
        spark_conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        streams = {"stdout": output.write_end, "stderr": output.write_end}
        with ThreadPoolExecutor(1, "spark-launch", initializer=_give_way) as thread:
            gateway = thread.submit(launch_gateway, spark_conf, streams).result()
    finally:
        os.close(output.write_end)
    SparkContext._ensure_initialized(gateway=gateway)


def _give_way() -> None:
    """Lower the priority of this thread, and so of the JVM and the workers that it starts.

    A first sync takes all cores for minutes, and the tables that are followed must stay fresh beside it.
    """
    with suppress(OSError):  # Only Linux has priorities of threads.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


def find_missing_jars(lines: Iterable[str]) -> str | None:
    """Return in a sentence the missing jars, the places that Ivy searched and the reason; None if no jar is missing."""
    jars: dict[str, None] = {}
    repositories: dict[str, None] = {}
    cache = reason = None
    for line in lines:
        if missing := MISSING_JAR.match(line):
            jars[":".join(missing.groups())] = None
        elif found := JAR_CACHE.match(line):
            cache = found["folder"]
        elif said := JAR_REASON.search(line):
            reason = reason or said["host"] or said["error"]
        elif line.startswith(("http://", "https://")):
            parts = urlsplit(line)
            repositories[f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"] = None
    if not jars:
        return None
    places = ", ".join([*([cache] if cache else []), *repositories])
    return f"jars for Spark are missing: {', '.join(jars)} not found in {places}" + (f" ({reason})" if reason else "")


def end_jvm() -> None:
    """End Spark and its JVM; kill the JVM if it does not end in time. `SparkSession.stop()` alone leaves it running."""
    from pyspark import SparkContext  # noqa: PLC0415

    if context := SparkContext._active_spark_context:
        # The next start would find this context, and fail. If the JVM is dead, the first call fails half-way.
        for _ in range(2):
            with suppress(Exception):
                context.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    jvm = gateway.proc
    jvm.stdin.close()  # The gateway server ends when its standard input does.
    try:
        jvm.wait(JVM_EXIT_MAX_S)
    except TimeoutExpired:
        jvm.kill()
        jvm.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
