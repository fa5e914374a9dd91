"""Answers of a Unity Catalog, from a server of the tests."""

from __future__ import annotations

import pytest

from daemon.clock import SystemClock
from daemon.errors import SourceCatalogAway
from daemon.sources.table_info import TableInfo
from daemon.sources.unity import LOAD_TABLE, LastAnswer, UnityCatalog
from tests.kit.unity import Answer, unity_server


def test_a_first_answer_without_a_byte_makes_no_sense() -> None:
    """It is not taken for the one before."""
    with unity_server() as server:
        server.answer = lambda request: (
            Answer(200, {"endpoints": [LOAD_TABLE]}) if request.path.endswith("/config") else Answer(200, b"")
        )
        catalog = UnityCatalog("prod", {"uri": server.url, "token": server.token}, SystemClock())
        table = TableInfo("orders", "main", "sales", "id", storage_location="file:///t")
        with pytest.raises(SourceCatalogAway, match="makes no sense"):
            catalog.load_ratified(LastAnswer(table))
