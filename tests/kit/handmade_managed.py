"""Catalog-managed Delta tables made by hand: commits are staged, and a test says what the catalog knows of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.clock import SystemClock
from daemon.sources.credentials import Credentials
from daemon.sources.ratified import Ratified, RatifiedStorage
from daemon.sources.ratified import StagedCommit as Staged
from state import SourceEntry
from tests.kit.handmade import HandmadeTable, new_uuid
from tests.kit.unity import StagedCommit, UnityTable

FEATURES = ("deletionVectors", "catalogManaged", "vacuumProtocolCheck", "inCommitTimestamp")
CREATED_MS = 1_700_000_000_000


@dataclass
class Managed(HandmadeTable):
    """Its commits are staged; `told` is what the catalog says of it. Version 0 is published, as Delta does it."""

    told: UnityTable = field(init=False)

    def create(self) -> None:
        super().create()
        self.told = UnityTable(str(new_uuid()), self.location)
        (self.folder / "_delta_log" / "_staged_commits").mkdir()

    @property
    def entry(self) -> SourceEntry:
        return SourceEntry("prod", "main", "sales", "t", id=self.told.table_id, location=self.location, is_managed=True)

    def storage(self) -> RatifiedStorage:
        """Its files as `told` says, without a server."""
        clock = SystemClock()
        credentials = Credentials(lambda: [], self.location, {}, clock)
        return RatifiedStorage(credentials, f"{self.location}/_delta_log", clock, self._ratified, source="t")

    def _ratified(self) -> Ratified:
        named = (Staged(each.file_name, each.file_size, each.file_modification_timestamp) for each in self.told.commits)
        return Ratified(self.told.latest_version or None, {int(each.file_name[:20]): each for each in named})

    def protocol(self, features: Sequence[str] = FEATURES) -> dict[str, Any]:
        readers = [name for name in features if name != "inCommitTimestamp"]
        return {**super().protocol(features), "readerFeatures": readers}

    def commit_info(self) -> dict[str, Any]:
        return {"inCommitTimestamp": CREATED_MS + self.version}

    def commit(self, actions: Sequence[Mapping[str, Any]], *, operation: str = "WRITE") -> int:
        """The catalog ratifies a staged commit."""
        version = super().commit(actions, operation=operation)
        if version > 0:
            name = f"{version:020d}.{new_uuid()}.json"
            self.commit_path(version).rename(self.staged(name))
            self.told.commits = [*self.told.commits, StagedCommit.read(self.folder, name)]
            self.told.latest_version = version
        return version

    def stage(self, number: int, first: int = 100) -> None:
        """A file more."""
        path = self.write_file([(first + row, "x", f"v{row}") for row in range(number)])
        self.commit([self.add(path)])

    def staged(self, name: str) -> Path:
        return self.folder / "_delta_log" / "_staged_commits" / name

    def publish(self, *, forgets: bool = True) -> None:
        """All commits are published. Then the catalog forgets them, and their staged files go."""
        published = self.told.commits
        for commit in published:
            shutil.copyfile(self.staged(commit.file_name), self.commit_path(commit.version))
        if forgets:
            self.told.commits = []
            for commit in published:
                self.staged(commit.file_name).unlink()
