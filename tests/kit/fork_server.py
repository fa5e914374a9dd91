"""Starts `dvsync` for tests in milliseconds: imports the product, follows a table, then forks a process for each order.

An order is a datagram on standard input: JSON, with descriptors for the news of the process, and for its standard
output and error. The news are its number, and in the end its exit code as `subprocess` has it. The other end is
`forking.py`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from select import POLLIN, poll
from typing import Any

import typer.main
from coverage import Coverage

import daemon
from daemon.cli.commands import app
from tests.kit.daemon_process import run_dvsync
from tests.kit.forking import KILL_MEASURED
from tests.kit.warm import follow_once, prepare_once

ORDER_BYTES_MAX = 128 << 10


def import_all() -> None:
    """What a command imports only when it needs it, too."""
    for module in pkgutil.walk_packages(daemon.__path__, "daemon."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in ("pyiceberg.io.pyarrow", "state.migrations"):
        import_module(name)


def next_order(orders: socket.socket) -> dict[str, Any] | None:
    """Returns in each forked process, with what it is to do; in the server at the end, with None."""
    running: dict[int, tuple[int, socket.socket]] = {}
    ready = poll()
    ready.register(orders, POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            if descriptor in running:
                process, news = running.pop(descriptor)
                ready.unregister(descriptor)
                os.close(descriptor)
                _, status = os.waitpid(process, 0)
                _tell(news, os.waitstatus_to_exitcode(status))
                news.close()
                continue
            data, (*descriptors,), _, _ = socket.recv_fds(orders, ORDER_BYTES_MAX, 3)
            if not data:
                for process, _ in running.values():
                    os.kill(process, signal.SIGKILL)
                return None
            process = os.fork()
            news = socket.socket(fileno=descriptors[0])
            if process == 0:
                for each in (orders, news, *(other for _, other in running.values())):
                    each.close()
                for each in running:
                    os.close(each)
                for number, each in enumerate(descriptors[1:], start=1):
                    os.dup2(each, number)
                    os.close(each)
                order: dict[str, Any] = json.loads(data)
                return order
            for each in descriptors[1:]:
                os.close(each)
            _tell(news, process)
            pidfd = os.pidfd_open(process)
            running[pidfd] = process, news
            ready.register(pidfd, POLLIN)


def save_and_die(measured: Coverage, *_: object) -> None:
    measured.save()
    os.kill(os.getpid(), signal.SIGKILL)


def _tell(news: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # Nobody waits for it any more.
        news.send(str(number).encode())


def main() -> None:
    # Ctrl-C is for the tests, which end this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = socket.socket(fileno=os.dup(0))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    prepare_once()
    import_all()
    # A thread would be missing in the forked processes. jemalloc begins its own one anew.
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert len(threads) - threads.count("jemalloc_bg_thd") == 1, threads
    follow_once()
    # All commands are built here, and not in each process.
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(app)
    if measured := Coverage.current():
        # What was run so far is written once, and not by each forked process.
        measured.save()
    gc.collect()
    gc.freeze()  # What is here already is never looked at again, and so not copied into each process.
    order = next_order(orders)
    if order is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if measured:
        signal.signal(KILL_MEASURED, partial(save_and_die, measured))
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    os.chdir(order["folder"])
    sys.argv[:] = ["dvsync", *order["words"]]
    try:
        run_dvsync()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code = ended.code or 0
    else:
        code = 0
    # To take the interpreter apart, each page of what was imported would be copied: half of a command's time.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
