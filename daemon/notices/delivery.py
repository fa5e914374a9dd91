"""Hands a body to the receiver of a hook: by POST, or on the standard input of a command."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from threading import Lock
from urllib.request import HTTPRedirectHandler, Request, build_opener

from daemon.config.settings import HookSettings
from daemon.masking import scrub
from daemon.texts import TEXT_CHARACTERS_MAX, excerpt

TIMEOUT_S = 10.0
# The log quotes the last line that a failed command wrote to standard error.
STDERR_BYTES_MAX = 4096


class Receiver:
    """The program or address of one hook. `kill` may be called from another thread."""

    def __init__(self, settings: HookSettings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def deliver(self, body: bytes) -> None:
        """Raises an exception unless the receiver took it."""
        if self._settings.command:
            self._run(self._settings.command, body)
            return
        assert self._settings.url is not None, "a hook has an address or a command"
        headers = {"content-type": "application/json", **self._settings.headers}
        request = Request(self._settings.url, data=body, headers=headers, method="POST")
        with build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as answer:
            answer.read(1)

    def kill(self) -> None:
        """Kill the running command with all that it started."""
        # It may have ended meanwhile.
        with self._lock, suppress(ProcessLookupError):
            if self._process:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _run(self, command: Sequence[str], body: bytes) -> None:
        """Run a command until it ends; what it left in the background goes on. After the timeout, kill all of it."""
        # Not a pipe: a program in the background would hold it open, and what is written there would be in memory.
        with TemporaryFile() as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
            with self._lock:
                self._process = process
            try:
                process.communicate(body, TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                process.communicate()
                raise
            finally:
                with self._lock:
                    self._process = None
            if process.returncode:
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - STDERR_BYTES_MAX))
                raise subprocess.CalledProcessError(process.returncode, command, stderr=errors.read())


class _NoRedirects(HTTPRedirectHandler):
    """A redirected POST would become a GET without its body, and look like a success."""

    def redirect_request(self, *_: object) -> None:
        return None


def describe_failure(error: Exception) -> str:
    text = str(error)
    if isinstance(error, subprocess.CalledProcessError):
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        text = f"exit code {error.returncode}: {last}"
    elif isinstance(error, subprocess.TimeoutExpired):
        text = f"no end within {error.timeout:.3g} s"
    return excerpt(scrub(text), TEXT_CHARACTERS_MAX)
