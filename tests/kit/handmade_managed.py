"""Catalog-managed Delta tables made by hand: commits are staged, and a test says what the catalog knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kit.handmade import HandmadeTable, new_uuid
from tests.kit.unity import StagedCommit, UnityTable

FEATURES = ("deletionVectors", "catalogManaged", "vacuumProtocolCheck", "inCommitTimestamp")


@dataclass
class Managed(HandmadeTable):
    """Its commits are staged; `told` is what the catalog says of it. Version 0 is published, as Delta does it."""

    told: UnityTable = field(init=False)

    def create(self) -> None:
        super().create()
        self.told = UnityTable(str(new_uuid()), self.location)
        (self.folder / "_delta_log" / "_staged_commits").mkdir()

    def protocol(self, features: Sequence[str] = FEATURES) -> dict[str, Any]:
        readers = [name for name in features if name != "inCommitTimestamp"]
        return {**super().protocol(features), "readerFeatures": readers}

    def stage(self, number: int, first: int = 100) -> None:
        """A file more, in a commit that the catalog ratifies."""
        path = self.write_file([(first + row, "x", f"v{row}") for row in range(number)])
        version = self.commit([self.add(path)])
        name = f"{version:020d}.{new_uuid()}.json"
        staged = self.folder / "_delta_log" / "_staged_commits" / name
        self.commit_path(version).rename(staged)
        stat = staged.stat()
        commit = StagedCommit(version, version, name, stat.st_size, int(stat.st_mtime * 1000))
        self.told.commits = [*self.told.commits, commit]
        self.told.latest_version = version
