"""Credentials of a catalog: which, for how long, and in a Spark task, which is another process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from daemon.clock import SystemClock
from daemon.config.settings import Settings, TableSettings
from daemon.errors import SourceCatalogAway
from daemon.sources.credentials import Credentials, Vended
from daemon.sources.finder import open_storage
from state import SourceEntry
from tests.kit.unity import UnityTable, unity_server


def test_a_task_asks_for_new_credentials_when_its_own_end(tmp_path: Path) -> None:
    with unity_server() as unity:
        location, clock = tmp_path.as_uri(), ManualClock()
        told = unity.tables["main", "sales", "orders"] = UnityTable("id", location)

        def give(key: str, lasts_ms: int) -> None:
            until_ms = clock.ms + lasts_ms
            config = {"s3.access-key-id": key}
            told.credentials = [{"prefix": location, "config": config, "expiration-time-ms": until_ms}]

        settings = Settings(sources={"prod": {"type": "unity", "uri": unity.url, "token": unity.token}})
        entry = SourceEntry("prod", "main", "sales", "orders", "id", location, is_managed=True)
        table = TableSettings(source="prod:main.sales.orders", target="a.b").for_entry(entry)
        storage = open_storage(settings, table, {"s3.region": "eu"}, clock)
        give("first", 3_600_000)
        assert storage.properties == {"s3.region": "eu", "s3.access-key-id": "first"}
        lasting = pickle.loads(pickle.dumps(storage))
        give("second", 3_600_000)
        asked = len(unity.requests)
        assert lasting.properties["s3.access-key-id"] == "first"
        assert len(unity.requests) == asked
        clock.ms = 3_600_000
        ended = pickle.loads(pickle.dumps(storage))
        assert ended.properties["s3.access-key-id"] == "second"


class ManualClock(SystemClock):
    ms = 0

    def now_ms(self) -> int:
        return self.ms


class Given:
    """What a catalog gives, or that it is away."""

    def __init__(self, **configured: str) -> None:
        self.clock = ManualClock()
        self.answer: list[Vended] | None = []
        self.asked = 0
        self.credentials = Credentials(self.ask, "abfss://c@a.dfs.core.windows.net/t1", configured, self.clock)

    def ask(self) -> list[Vended]:
        self.asked += 1
        if self.answer is None:
            raise SourceCatalogAway("away", hint="wait")
        return self.answer

    def give(self, prefix: str, expires_ms: int | None = None, **config: str) -> None:
        self.answer = [Vended(prefix, expires_ms, {key.replace("__", "."): value for key, value in config.items()})]


PLACE = "abfss://c@a.dfs.core.windows.net"


def test_they_replace_those_that_are_configured() -> None:
    given = Given(**{"adls.account-name": "a", "adls.account-key": "mine", "s3.access-key-id": "stays"})
    given.give(PLACE, **{"azure.sas-token": "theirs", "s3.access-key-id": ""})
    found = {"adls.account-name": "a", "adls.sas-token": "theirs", "s3.access-key-id": "stays"}
    assert given.credentials.properties() == found


def test_googles_have_an_end_for_arrow() -> None:
    given = Given(**{"gcs.oauth2.token": "mine", "gcs.oauth2.token-expires-at": "1"})
    given.give(PLACE, 7_200_000, **{"gcs.oauth-token": "theirs"})
    assert given.credentials.properties() == {"gcs.oauth2.token": "theirs", "gcs.oauth2.token-expires-at": "7200000"}


@pytest.mark.parametrize(
    ("prefix", "fits"), [("/t1", True), ("/t1/", True), ("", True), ("/t", False), ("/t10", False), ("/t1/x", False)]
)
def test_whose_prefix_is_a_folder_above(prefix: str, fits: bool) -> None:
    given = Given()
    given.give(PLACE + prefix, **{"azure.sas-token": "theirs"})
    assert ("adls.sas-token" in given.credentials.properties()) is fits


def test_while_the_catalog_is_away_they_serve_until_they_end() -> None:
    given = Given()
    given.give(PLACE, 1_000_000, **{"azure.sas-token": "theirs"})
    assert given.credentials.properties()
    given.answer = None
    given.clock.ms = 999_999
    assert given.credentials.properties() == {"adls.sas-token": "theirs"}
    asked = given.asked
    assert given.credentials.properties() and given.asked == asked
    given.clock.ms = 1_000_000
    with pytest.raises(SourceCatalogAway):
        given.credentials.properties()


def test_a_refusal_counts_once_for_all_threads() -> None:
    given = Given()
    given.give(PLACE, **{"azure.sas-token": "theirs"})
    first = given.credentials.properties()
    given.credentials.forget(first)
    second = given.credentials.properties()
    given.credentials.forget(first)
    assert given.credentials.properties() is second
