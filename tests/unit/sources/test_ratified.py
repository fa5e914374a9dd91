"""The log of a catalog-managed table as files: PROTOCOL.md, "Reading Catalog-managed Tables"."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.delta.log import DeltaLog
from daemon.errors import ObjectMissing, SourceCatalogAway
from daemon.sources.credentials import Credentials
from daemon.sources.ratified import STAGED_FOLDER, Ratified, RatifiedStorage, StagedCommit


class Clock:
    seconds = 0.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic_s(self) -> float:
        return self.seconds


class Catalog:
    """A log in `folder`, and what its catalog says of it. `asked` counts the requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "_delta_log"
        self.staged = self.folder / STAGED_FOLDER
        self.staged.mkdir(parents=True)
        self.clock = Clock()
        self.newest, self.names, self.asked = -1, dict[int, str](), 0
        credentials = Credentials(lambda: [], "", {}, self.clock)
        self.storage = RatifiedStorage(credentials, f"file://{self.folder}", self.clock, self.ask, source="c.s.t")

    def ask(self) -> Ratified:
        self.asked += 1
        files = {version: self.staged / name for version, name in self.names.items()}
        staged = {
            version: StagedCommit(file.name, file.stat().st_size if file.exists() else 1, 1_000)
            for version, file in files.items()
        }
        return Ratified(self.newest, staged)

    def stage(self, version: int, text: str, name: str = "a") -> None:
        (self.staged / f"{version:020d}.{name}.json").write_text(text)

    def ratify(self, text: str, name: str = "a") -> None:
        self.newest += 1
        self.stage(self.newest, text, name)
        self.names[self.newest] = f"{self.newest:020d}.{name}.json"

    def publish(self, version: int, text: str, *, forgets: bool = True) -> None:
        (self.folder / f"{version:020d}.json").write_text(text)
        if forgets:
            self.names.pop(version, None)

    def path(self, version: int) -> str:
        return f"file://{self.folder}/{version:020d}.json"

    def shown(self) -> dict[int, str]:
        """The commits that are listed, as they are read."""
        self.clock.seconds += 1
        listed = self.storage.list_from(f"file://{self.folder}", after="")
        commits = [file for file in listed if len(file.name) == 25 and file.name.endswith(".json")]
        return {int(file.name[:20]): self.storage.read(file.path).decode() for file in commits}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path)


def test_the_example_of_the_protocol(catalog: Catalog) -> None:
    """Of 7, published and staged, the catalog's file counts; 8 is staged twice, 10 is not ratified, 11 is a stray."""
    for version in range(8):
        catalog.newest = version
        catalog.publish(version, f"published {version}")
    catalog.stage(7, "ratified 7", "b")
    catalog.names[7] = f"{7:020d}.b.json"
    catalog.stage(8, "rejected")
    catalog.ratify("ratified 8", "b")
    for name in ("a", "b"):
        catalog.stage(10, "not ratified", name)
    catalog.publish(11, "of somebody else")
    for name in ("2.checkpoint.parquet", "9.checkpoint.parquet"):
        (catalog.folder / name.zfill(len(name) + 19)).touch()
    (catalog.folder / f"{3:020d}.{9:020d}.compacted.json").touch()
    (catalog.folder / f"{3:020d}.{5:020d}.compacted.json").touch()
    names = [file.name for file in catalog.storage.list_from(f"file://{catalog.folder}", after="")]
    assert [name for name in names if "checkpoint" in name or "compacted" in name] == [
        f"{2:020d}.checkpoint.parquet",
        f"{3:020d}.{5:020d}.compacted.json",
    ]
    assert catalog.shown() == {**{each: f"published {each}" for each in range(7)}, 7: "ratified 7", 8: "ratified 8"}
    assert not catalog.storage.exists(catalog.path(11))
    with pytest.raises(ObjectMissing):
        catalog.storage.read(catalog.path(9))


def test_a_poll_is_one_request(catalog: Catalog) -> None:
    catalog.ratify("first")
    assert catalog.storage.exists(catalog.path(0))
    for polls in range(2, 5):
        catalog.clock.seconds += 10
        assert not catalog.storage.exists(catalog.path(1))
        assert catalog.asked == polls
    catalog.ratify("second")
    catalog.clock.seconds += 10
    assert catalog.storage.read(catalog.path(1)) == b"second"
    # What is known to be there is not asked for.
    assert catalog.storage.exists(catalog.path(0))
    assert catalog.asked == 5


def test_the_newest_commit_that_is_published_and_missing(catalog: Catalog) -> None:
    """Is no sign that there is no news."""
    log = DeltaLog(catalog.storage, f"file://{catalog.folder.parent}", catalog.clock)
    catalog.ratify("first")
    assert log.has_next(0)
    assert not log.has_next(1)
    catalog.clock.seconds += 10
    catalog.newest = 1
    with pytest.raises(SourceCatalogAway, match="names version 1"):
        log.has_next(1)


def test_a_staged_file_that_is_published_and_removed_meanwhile(catalog: Catalog) -> None:
    catalog.ratify("first")
    assert catalog.storage.exists(catalog.path(0))
    catalog.publish(0, "first")
    for file in catalog.staged.iterdir():
        file.unlink()
    assert catalog.storage.read(catalog.path(0)) == b"first"


def test_a_staged_file_that_is_not_there(catalog: Catalog) -> None:
    catalog.ratify("first")
    for file in catalog.staged.iterdir():
        file.unlink()
    with pytest.raises(SourceCatalogAway, match=r"names version 0 of c\.s\.t, but the commit is not there"):
        catalog.storage.read(catalog.path(0))
    catalog.names.clear()
    with pytest.raises(SourceCatalogAway, match=r"names version 0 of c\.s\.t, but the commit is not there"):
        catalog.storage.read(catalog.path(0))


def test_versions_that_go_back_are_not_believed(catalog: Catalog) -> None:
    catalog.ratify("first")
    catalog.ratify("second")
    assert catalog.storage.exists(catalog.path(1))
    catalog.newest = 0
    del catalog.names[1]
    catalog.clock.seconds += 10
    with pytest.raises(SourceCatalogAway, match=r"names 0 as the newest version of c\.s\.t, and named 1 before"):
        catalog.storage.exists(catalog.path(2))


@given(steps=st.lists(st.sampled_from(["ratify", "publish", "publish, remembered", "stray", "look"]), max_size=30))
def test_any_order_of_ratifying_and_publishing(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """What is shown is what was ratified: in order, whole, from whichever file."""
    catalog = Catalog(tmp_path_factory.mktemp("log"))
    wanted, published = dict[int, str](), 0
    for number, step in enumerate(steps):
        if step == "ratify":
            wanted[catalog.newest + 1] = text = f"step {number}"
            catalog.ratify(text, f"n{number}")
        elif step.startswith("publish") and published <= catalog.newest:
            catalog.publish(published, wanted[published], forgets=step == "publish")
            published += 1
        elif step == "stray":
            catalog.stage(catalog.newest + 1, "stray", f"n{number}")
        elif step == "look":
            assert catalog.shown() == wanted
    assert catalog.shown() == wanted
