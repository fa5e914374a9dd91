"""Messages to systemd from a service of Type=notify: sd_notify(3), datagrams to the socket in NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress


def notify(*lines: str, environment: Mapping[str, str] = os.environ) -> None:
    """Notify systemd, if it asked for it. A message that cannot be sent is ignored."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    # A leading @ stands for the NUL of an abstract address.
    address = "\0" + address[1:] if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect(address)
        sender.sendall("\n".join(lines).encode())


def beat(summary: Callable[[], str], environment: Mapping[str, str] = os.environ) -> None:
    """The work loop is alive, and `systemctl status` shows the `summary`. See also sd_watchdog_enabled(3).

    A summary of thousands of tables takes half a second: it is made for systemd only.
    """
    if "NOTIFY_SOCKET" not in environment:
        return
    watched = "WATCHDOG_USEC" in environment and environment.get("WATCHDOG_PID") in (None, str(os.getpid()))
    # A line break would begin another message.
    lines = [f"STATUS={' '.join(summary().split())}", *(["WATCHDOG=1"] if watched else [])]
    notify(*lines, environment=environment)
