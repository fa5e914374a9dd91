"""Credentials of a catalog in a Spark task, which is another process."""

from __future__ import annotations

import pickle
from pathlib import Path

from daemon.clock import SystemClock
from daemon.config.settings import Settings, TableSettings
from daemon.sources.finder import open_storage
from state import SourceEntry
from tests.kit.unity import UnityTable, unity_server


def test_a_task_asks_for_new_credentials_when_its_own_end(tmp_path: Path) -> None:
    with unity_server() as unity:
        location = tmp_path.as_uri()
        told = unity.tables["main", "sales", "orders"] = UnityTable("id", location)

        def give(key: str, lasts_ms: int) -> None:
            until_ms = SystemClock().now_ms() + lasts_ms
            config = {"s3.access-key-id": key}
            told.credentials = [{"prefix": location, "config": config, "expiration-time-ms": until_ms}]

        settings = Settings(sources={"prod": {"type": "unity", "uri": unity.url, "token": unity.token}})
        entry = SourceEntry("prod", "main", "sales", "orders", "id", location, is_managed=True)
        table = TableSettings(source="prod:main.sales.orders", target="a.b").for_entry(entry)
        storage = open_storage(settings, table, {"s3.region": "eu"}, SystemClock())
        give("first", 3_600_000)
        assert storage.properties == {"s3.region": "eu", "s3.access-key-id": "first"}
        lasting = pickle.loads(pickle.dumps(storage))
        give("second", 3_600_000)
        asked = len(unity.requests)
        assert lasting.properties["s3.access-key-id"] == "first"
        assert len(unity.requests) == asked
        give("ended", 0)
        storage = open_storage(settings, table, {}, SystemClock())
        assert storage.properties["s3.access-key-id"] == "ended"
        task = pickle.loads(pickle.dumps(storage))
        give("third", 3_600_000)
        assert task.properties["s3.access-key-id"] == "third"
