"""uvicorn in a thread of the daemon, with bounds. The daemon handles the signals, not uvicorn."""

from __future__ import annotations

import errno
import socket
from threading import Thread
from typing import Self

import uvicorn
from starlette.applications import Starlette

from daemon.config.settings import HealthSettings
from daemon.errors import ConfigInvalid
from daemon.web.guard import guard
from daemon.web.listener import BACKLOG, BoundedListener

STOP_MAX_S = 2.0


class WebServer:
    """Listens from `start` to `stop`."""

    def __init__(self, listener: socket.socket, settings: HealthSettings, app: Starlette) -> None:
        self._listener = BoundedListener(listener)
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
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, args=([self._listener],), name="web", daemon=True)

    @classmethod
    def start(cls, settings: HealthSettings, app: Starlette) -> Self:
        """Raises ConfigInvalid when the address is not available."""
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
        server = cls(listener, settings, app)
        server._thread.start()
        return server

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_MAX_S)
        self._listener.close()
