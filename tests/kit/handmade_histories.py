"""Random Delta commits from a seed, for long runs."""

from __future__ import annotations

from random import Random

from tests.kit.handmade import COLUMNS, HandmadeTable


class History:
    """Random Delta commits; `versions` are those with a change of rows, which have one snapshot each.

    With `brings_back`, files that were removed are added again.
    """

    def __init__(self, table: HandmadeTable, random: Random, *, brings_back: bool = True) -> None:
        self.table = table
        self.random = random
        self._brings_back = brings_back
        self.versions = [0]
        self._columns = list(COLUMNS)

    def play(self) -> None:
        kinds = [self._append, self._delete, self._delete, self._restore, self._remove, self._add_column]
        kinds += [self._bring_back] if self._brings_back and self._gone() else []
        self.random.choice(kinds if self.table.live else [self._append])()

    def _append(self) -> None:
        """One file, or three, which share a manifest."""
        part = self.random.choice("xy")
        paths = []
        for _ in range(self.random.choice((1, 3))):
            first = 10 * len(self.table.rows)
            paths.append(self.table.write_file([(first + n, part, f"v{n}") for n in range(6)]))
        self._commit([self.table.add(path, deleted=self._some(2)) for path in paths])

    def _delete(self) -> None:
        paths = self.random.sample(sorted(self.table.live), min(2, len(self.table.live)))
        fresh = {path: set(range(6)) - self.table.deleted[path] for path in paths}
        picks = {path: {self.random.choice(sorted(left))} for path, left in fresh.items() if left}
        self._commit(self.table.delete(picks), changes=bool(picks))

    def _restore(self) -> None:
        path = self.random.choice(sorted(self.table.live))
        before = self.table.deleted[path]
        after = self._some(3) if before else {0}
        self._commit([self.table.remove(path), self.table.add(path, deleted=after)], changes=before != after)

    def _remove(self) -> None:
        self._commit([self.table.remove(self.random.choice(sorted(self.table.live)))])

    def _gone(self) -> list[str]:
        """Files that are not live, and that VACUUM has not removed."""
        return [
            path for path in sorted(self.table.rows.keys() - self.table.live) if (self.table.folder / path).exists()
        ]

    def _bring_back(self) -> None:
        self._commit([self.table.add(self.random.choice(self._gone()), deleted=self._some(2))])

    def _add_column(self) -> None:
        self._columns.append((f"c{len(self._columns)}", "long"))
        self._commit([{"metaData": self.table.metadata(self._columns)}], changes=False)

    def _some(self, most: int) -> set[int]:
        return set(self.random.sample(range(6), self.random.randint(0, most)))

    def _commit(self, actions: list[dict[str, object]], *, changes: bool = True) -> None:
        version = self.table.commit(actions)
        if changes:
            self.versions.append(version)
