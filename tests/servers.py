"""Real servers for tests, each on 127.0.0.1 and a free port, in a folder of its own, and ended with the block."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

START_MAX_S = 60.0
STOP_MAX_S = 20.0
POSTGRESQL_BIN = Path("/usr/lib/postgresql")
UNPRIVILEGED = "nobody"


def missing(package: str) -> Any:
    """Skip the test for want of a Debian package; CI has them all, so there it fails."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs the Debian package {package}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(is_there: Callable[[], bool], what: str, timeout_s: float = START_MAX_S) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_there():
        assert time.monotonic() < end_s, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.05)


@dataclass
class Server:
    """A process that listens on `port`, and can be killed and started again at the same place."""

    command: Sequence[str]
    folder: Path
    port: int
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user,
                extra_groups=None if self.user is None else (),
            )
        wait_until(self._is_up, f"{self.command[0]} starts")

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"it ended: {(self.folder / 'server.log').read_text()[-2000:]}")
        return self.is_ready()

    def kill(self) -> None:
        """As when the machine goes away."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_MAX_S)
            self.process = None


def accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def postgresql() -> Iterator[Server]:
    """Debian's PostgreSQL with the databases of a new cluster; `dvsync` is its superuser, without a password."""
    found = shutil.which("initdb") or next(iter(sorted(map(str, POSTGRESQL_BIN.glob("*/bin/initdb")))), None)
    if found is None:
        missing("postgresql")
    assert found is not None
    binaries = Path(found).resolve().parent
    # It refuses to work for root, and nobody else may look into a temporary folder of pytest's.
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="dvsync-postgresql-") as name:
        folder = Path(name)
        if user:
            shutil.chown(folder, user)
        data, port = str(folder / "data"), free_port()
        initdb = [str(binaries / "initdb"), "-D", data, "-U", "dvsync", "--auth=trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(
            initdb, check=True, capture_output=True, cwd=folder, user=user, extra_groups=() if user else None
        )
        options = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "fsync=off"]
        server = Server(
            [str(binaries / "postgres"), "-D", data, *(part for option in options for part in ("-c", option))],
            folder,
            port,
            is_ready=lambda: (
                subprocess.run(
                    [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)], check=False
                ).returncode
                == 0
            ),
            user=user,
        )
        try:
            server.start()
            yield server
        finally:
            server.kill()
