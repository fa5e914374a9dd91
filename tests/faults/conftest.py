"""What several of the fault tests need, made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.killing import KillServer


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KillServer]]:
    """Both servers at once: each has a processor, and this process waits."""
    folders = {granularity: tmp_path_factory.mktemp(granularity) for granularity in ("file", "partition")}
    with KillServer(folders["file"], "file") as file, KillServer(folders["partition"], "partition") as partition:
        servers = {"file": file, "partition": partition}
        for server in servers.values():
            answer = server.answer()
            assert "error" not in answer, answer["error"]
            server.traces = answer["result"]
        yield servers
