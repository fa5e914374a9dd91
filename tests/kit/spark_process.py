"""Spark for all tests of a run: one process with one session, started by the test that first needs it.

It runs functions of a session by their names, and ends with the run.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from filelock import FileLock

from tests.kit.spark_session import ROOT, connect, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_MAX_S = 300.0
# It outlives the worker that started it, which must not complain of that.
STARTED: list[subprocess.Popen[bytes]] = []


class SparkRefused(Exception):
    """What Spark said instead of an answer, now or when it was recorded."""


class SparkProcess:
    """`spark(function, *arguments)` is `function(session, *arguments)` in the process of the run in `folder`."""

    def __init__(self, folder: Path, run: int, settings: Mapping[str, str]) -> None:
        """`settings` are Spark's, beside those of all tests."""
        self._folder, self._run, self._settings = folder, run, settings
        self._of_thread = threading.local()

    def __call__(self, function: Callable[..., Any], *arguments: Any, settings: Mapping[str, str] | None = None) -> Any:
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = self._connect()
        self._of_thread.connection.send((function, arguments, settings or {}))
        answer = self._of_thread.connection.recv()
        if isinstance(answer, SparkRefused):
            raise answer
        return answer

    def session(self) -> SparkSession:
        """A session of this process, which may reach into the JVM."""
        return connect(self._place()["gateway"])

    def _place(self) -> dict[str, Any]:
        place = self._folder / "spark.json"
        with FileLock(self._folder / "spark.lock"):
            if not place.exists():
                self._start(place)
        told: dict[str, Any] = json.loads(place.read_text())
        return told

    def _connect(self) -> Connection:
        told = self._place()
        return Client(("127.0.0.1", told["port"]), authkey=bytes.fromhex(told["key"]))

    def _start(self, place: Path) -> None:
        arguments = str(place), str(self._run), json.dumps(self._settings)
        command = [sys.executable, "-m", "tests.kit.spark_process", *arguments]
        with (self._folder / "spark.log").open("w") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        STARTED.append(process)
        deadline_s = time.monotonic() + START_MAX_S
        while not place.exists():
            assert process.poll() is None, f"Spark did not start: see {log.name}"
            assert time.monotonic() < deadline_s, f"Spark takes too long to start: see {log.name}"
            time.sleep(0.1)


def serve(place: Path, run: int, settings: Mapping[str, str]) -> None:
    """Answer until the process `run` is gone."""
    os.umask(0o077)
    key = secrets.token_bytes(32)
    session = start(place.parent / "spark-warehouse", place.parent, settings)
    gateway: Any = session.sparkContext._gateway
    parameters = gateway.gateway_parameters
    listener = Listener(("127.0.0.1", 0), authkey=key)

    def accept() -> None:
        while True:
            connection = listener.accept()
            # A session of its own for each worker: their settings and temporary views have the same names.
            threading.Thread(target=answer, args=(connection, session.newSession()), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    variables = {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
    staged = place.with_suffix(".new")
    staged.write_text(json.dumps({"port": listener.address[1], "key": key.hex(), "gateway": variables}))
    staged.rename(place)
    while psutil.pid_exists(run):
        time.sleep(0.5)
    os._exit(0)  # Its JVM ends with it; nobody waits for a session that stops.


def answer(connection: Connection, session: SparkSession) -> None:
    jvm: Any = session._jvm
    while True:
        try:
            function, arguments, settings = connection.recv()
        except EOFError:
            return
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
        try:
            with conf_values(session, settings):
                reply = function(session, *arguments)
        except Exception as error:
            reply = SparkRefused(str(error))
        connection.send(reply)


@contextmanager
def conf_values(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {key: session.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            session.conf.unset(key) if old is None else session.conf.set(key, old)


if __name__ == "__main__":
    from tests.kit import spark_process

    # By this name, under which its exceptions are known to the tests.
    spark_process.serve(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
