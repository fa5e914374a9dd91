"""uvicorn in a thread of the daemon, with bounds. The daemon handles the signals, not uvicorn."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Self

import uvicorn
from starlette.applications import Starlette

from daemon.config.settings import HealthSettings
from daemon.errors import ConfigInvalid
from daemon.web.guard import guard
from daemon.web.listener import BACKLOG, BoundedListener

STOP_MAX_S = 2.0
# Without a password, OpenSSL asks for that of an encrypted key on the terminal.
NO_PASSWORD = "none"
# How often the date in the answers is made.
TICK_S = 1.0


def check_certificate(settings: HealthSettings) -> None:
    """Raise ConfigInvalid if there is a certificate that cannot be used."""
    if settings.certificate is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            settings.certificate, settings.key, NO_PASSWORD
        )
    except OSError as error:
        raise ConfigInvalid(
            f"health: cannot use the certificate {settings.certificate} with the key {settings.key}: {error}",
            hint="Both must be PEM files that dvsync may read, and belong together; the key has no password.",
        ) from error


class PatientServer(uvicorn.Server):
    """uvicorn's server. uvicorn itself wakes up ten times a second to see whether it shall stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._wake: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(stopping.set)
        # The first tick of uvicorn's second makes the header with the date.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), TICK_S)

    def stop(self) -> None:
        """From another thread."""
        self.should_exit = True
        # The loop may have ended already.
        with suppress(RuntimeError):
            self._wake()


class WebServer:
    """Listens from `start` to `stop`."""

    def __init__(self, listener: socket.socket, settings: HealthSettings, app: Starlette) -> None:
        self._listener = BoundedListener(listener)
        self._scheme = "https" if settings.certificate else "http"
        config = uvicorn.Config(
            self._listener.answering(guard(app, settings.host, self._listener.getsockname()[0])),
            log_config=None,
            access_log=False,
            lifespan="off",
            # The listener knows its clients by their addresses.
            proxy_headers=False,
            http="h11",
            ws="none",
            backlog=BACKLOG,
        )
        config.timeout_graceful_shutdown = 1
        config.ssl_certfile, config.ssl_keyfile = settings.certificate, settings.key
        config.ssl_keyfile_password = NO_PASSWORD
        config.load()
        self._server = PatientServer(config)
        self._thread = Thread(target=self._server.run, args=([self._listener],), name="web", daemon=True)

    @classmethod
    def start(cls, settings: HealthSettings, app: Starlette) -> Self:
        """Raises ConfigInvalid when the address is not available, or the certificate cannot be used."""
        try:
            family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
            listener = socket.create_server((settings.host, settings.port), family=family)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = "Set health.host to an address of this machine, such as 127.0.0.1, and health.port to a free port."
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                hint = "Another dvsync or another program uses the port: stop it, or set health.port."
            raise ConfigInvalid(
                f"health: cannot listen on {settings.host}:{settings.port}: {reason.lower()}", hint=hint
            ) from error
        try:
            check_certificate(settings)
        except ConfigInvalid:
            listener.close()
            raise
        server = cls(listener, settings, app)
        server._thread.start()
        return server

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def stop(self) -> None:
        self._server.stop()
        self._thread.join(STOP_MAX_S)
        self._listener.close()
