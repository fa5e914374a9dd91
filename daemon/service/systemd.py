"""Messages to systemd from a service of Type=notify: sd_notify(3), datagrams to the socket in NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Self


class Notifier:
    """Notifies systemd, if it asked for it. A message that cannot be sent is ignored."""

    def __init__(self, address: str | None, *, watched: bool = False) -> None:
        self._address = address
        self._watched = watched

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """From NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, as sd_watchdog_enabled(3) has it."""
        watched_pid = environment.get("WATCHDOG_PID")
        watched = "WATCHDOG_USEC" in environment and watched_pid in (None, str(os.getpid()))
        return cls(environment.get("NOTIFY_SOCKET"), watched=watched)

    def ready(self) -> None:
        self._send("READY=1")

    def beat(self, status: str) -> None:
        """The work loop is alive, and `status` is what `systemctl status` shows."""
        # A line break would begin another message.
        self._send(f"STATUS={' '.join(status.split())}", *(["WATCHDOG=1"] if self._watched else []))

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the NUL of an abstract address.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.sendall("\n".join(lines).encode())
