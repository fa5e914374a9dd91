"""A listening socket with bounds on the connections that wait for a whole request."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

# Every answer comes from memory, so only the client can be slow. Each connection takes a file descriptor, which syncs
# and databases need as well.
WAITING_MAX = 64
# So few are accepted at a time that a client's request is read before others can take its room; the rest queue.
BACKLOG = WAITING_MAX // 4
QUEUE_MAX = 1024
EXCHANGE_MAX_S = 15.0


class BoundedListener(socket.socket):
    """Ends the connections that send no whole request in time, and the oldest of them where a new one needs room.

    uvicorn itself waits for a slow client for ever, and answers 503 to all where `limit_concurrency` is reached.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(fileno=listener.detach())
        # By the client's address, the longest wait first.
        self._waiting: dict[Any, tuple[socket.socket, asyncio.TimerHandle]] = {}

    def listen(self, _: int = BACKLOG) -> None:
        # asyncio has one number for both.
        super().listen(QUEUE_MAX)

    def accept(self) -> tuple[socket.socket, Any]:
        connection, client = super().accept()
        self._wait(client[:2], connection)
        return connection, client

    def answering(self, app: ASGIApp) -> ASGIApp:
        """Return `app`, whose clients have sent a whole request: they do not wait until they are answered."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            waited = self._waiting.pop(scope["client"], None)
            try:
                await app(scope, receive, send)
            finally:
                if waited:
                    connection, deadline = waited
                    deadline.cancel()
                    self._wait(scope["client"], connection)

        return answer

    def _wait(self, client: Any, connection: socket.socket) -> None:
        for closed in [each for each, (held, _) in self._waiting.items() if held.fileno() < 0]:
            del self._waiting[closed]
        if len(self._waiting) == WAITING_MAX:
            oldest, _ = self._waiting.pop(next(iter(self._waiting)))
            _end(oldest)
        deadline = asyncio.get_running_loop().call_later(EXCHANGE_MAX_S, _end, connection)
        self._waiting[client] = connection, deadline


def _end(connection: socket.socket) -> None:
    # The client may have ended it.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
