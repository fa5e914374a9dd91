"""The other end of `fork_server.py`: `dvsync` as a process that need not import anything."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from coverage import Coverage

ROOT = Path(__file__).parents[2]
START_MAX_S = 120.0
COMMAND_MAX_S = 120.0
# Where coverage is measured, a process that is to be killed does it itself, when it has written which lines it ran.
KILL_MEASURED = signal.SIGUSR2
SAVE_MAX_S = 10.0


@cache
def _orders() -> socket.socket:
    """The server's ear; it is started when it is first needed, and ends with this process at the latest."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.fork_server"],
            cwd=ROOT,
            # NumPy would start a thread for each processor.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            stdin=theirs,
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


class Forked:
    """A process of `dvsync`, used as `subprocess.Popen` is. Its `environment` is this process's where none is given."""

    def __init__(
        self,
        words: list[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdout: IO[str],
        stderr: IO[str],
        folder: Path = ROOT,
    ) -> None:
        order = {
            "words": words,
            "environment": dict(os.environ if environment is None else environment),
            "folder": str(folder),
        }
        self._news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(
                _orders(), [json.dumps(order).encode()], [theirs.fileno(), stdout.fileno(), stderr.fileno()]
            )
        self.returncode: int | None = None
        self._news.settimeout(START_MAX_S)
        self.pid = self._told()

    def _told(self) -> int:
        told = self._news.recv(64)
        assert told, "the server of forks has ended"
        return int(told)

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._news.settimeout(timeout)
            try:
                self.returncode = self._told()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("dvsync", timeout or 0) from None
            self._news.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if Coverage.current():
            self.send_signal(KILL_MEASURED)
            with suppress(subprocess.TimeoutExpired):
                self.wait(SAVE_MAX_S)
        self.send_signal(signal.SIGKILL)


def run_forked(
    words: list[str], *, environment: Mapping[str, str] | None = None, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` with captured output would return."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = Forked(words, environment=environment, stdout=output, stderr=errors, folder=folder)
        try:
            code = process.wait(COMMAND_MAX_S)
        finally:
            process.kill()
            process.wait()
        # The process has written through the same descriptions of open files.
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(["dvsync", *words], code, output.read(), errors.read())
