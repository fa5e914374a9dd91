"""What several of the fault tests need, made once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kit.kill_server import FLAVOURS
from tests.kit.killing import KillServer


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KillServer]]:
    """All servers at once: each has a processor as far as there are any, and this process waits."""
    with ExitStack() as stack:
        servers = {
            flavour: stack.enter_context(KillServer(tmp_path_factory.mktemp(flavour), flavour)) for flavour in FLAVOURS
        }
        for server in servers.values():
            answer = server.answer()
            assert "error" not in answer, answer["error"]
            server.traces = answer["result"]
        yield servers
