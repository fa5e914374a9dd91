"""What several of the fault tests need, made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.kill_server import FLAVOURS
from tests.kit.killing import KillServer, kill_servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KillServer]]:
    """All servers at once: each has a processor as far as there are any, and this process waits."""
    with kill_servers(tmp_path_factory.mktemp("kill"), FLAVOURS) as servers:
        yield servers
