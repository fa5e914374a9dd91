"""The log of a catalog-managed table, as files: what its catalog has ratified, whether it is published or not.

Delta PROTOCOL.md, "Reading Catalog-managed Tables". A commit that the catalog names is read from its staged file, also
if it is published; the others up to the newest version are published; nothing that is newer exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from daemon.clock import Clock
from daemon.errors import ObjectMissing, SourceCatalogAway
from daemon.sources.credentials import Credentials, VendedStorage
from daemon.store.locations import FileMeta, Span, file_missing

T = TypeVar("T")

STAGED_FOLDER = "_staged_commits"
# A name in the log begins with its version; that of a compacted file with its first one, then its last one.
_VERSIONED = re.compile(r"([0-9]{20})\.(?:([0-9]{20})\.)?.*")
_COMMIT = re.compile(r"([0-9]{20})\.json")
# An answer that is this young is not asked for again: one sync looks for several versions that are not there yet.
FRESH_S = 0.5


@dataclass(frozen=True)
class StagedCommit:
    """A ratified commit in `_delta_log/_staged_commits/`. The time is that of the file."""

    file_name: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True)
class Ratified:
    """A catalog's answer: the newest version, and the staged files of those commits that it still names.

    `newest` is None if the catalog knows of no commit, as after the upgrade of a table that it did not manage before.
    Then the published files are all versions: none is published before it is ratified.
    """

    newest: int | None
    staged: Mapping[int, StagedCommit]

    def is_beyond(self, version: int) -> bool:
        return self.newest is not None and version > self.newest


class RatifiedStorage(VendedStorage):
    """The files of a catalog-managed table. Those of `folder`, its `_delta_log`, are what the catalog has ratified.

    `ask` is one request to the catalog; whatever it raises is raised by all methods. The answer is asked for when a
    version is looked for that is newer than the last answer, before each listing, and if a staged file is gone.
    """

    is_ratified = True

    def __init__(
        self, credentials: Credentials, folder: str, clock: Clock, ask: Callable[[], Ratified], source: str
    ) -> None:
        super().__init__(credentials)
        self._folder = folder
        self._clock = clock
        self._ask = ask
        self._source = source
        self._answer: Ratified | None = None
        self._asked_s = float("-inf")

    def ask(self, *, at_once: bool = False) -> Ratified:
        """Return what is ratified now. One request; unless `at_once`, none soon after another one."""
        known, now_s = self._answer, self._clock.monotonic_s()
        if known and not at_once and now_s - self._asked_s < FRESH_S:
            return known
        answer = self._ask()
        if known and known.newest is not None and (answer.newest is None or answer.is_beyond(known.newest)):
            raise SourceCatalogAway(
                f"the catalog names {answer.newest} as the newest version of {self._source}, and named {known.newest} "
                "before",
                version=known.newest,
                hint="A replica of the catalog may be behind: dvsync asks again. If the table was really put back, "
                "`dvsync resync` accepts it.",
            )
        self._answer, self._asked_s = answer, now_s
        return answer

    def forget(self) -> None:
        """Take the next answer, whatever was answered before."""
        self._answer = None

    def _version_of(self, path: str) -> int | None:
        """The version of a commit file's path; None for other files."""
        folder, _, name = path.rpartition("/")
        match = _COMMIT.fullmatch(name) if folder == self._folder else None
        return int(match[1]) if match else None

    def _answer_about(self, version: int) -> Ratified:
        """The last answer if it has the version, else a new one."""
        answer = self._answer
        if answer is None or answer.newest is None or answer.is_beyond(version):
            return self.ask()
        return answer

    def _find_file(self, path: str, version: int) -> str | None:
        """Return the file in which the commit is; None if the catalog has not ratified the version."""
        answer = self._answer_about(version)
        if answer.is_beyond(version):
            return None
        staged = answer.staged.get(version)
        return f"{self._folder}/{STAGED_FOLDER}/{staged.file_name}" if staged else path

    def _file_of(self, path: str, version: int) -> str:
        """As `_find_file`. Raises ObjectMissing instead of returning None."""
        file = self._find_file(path, version)
        if file is None:
            raise file_missing(path)
        return file

    def _read(self, path: str, read: Callable[[str], T]) -> T:
        version = self._version_of(path)
        if version is None:
            return read(path)
        file = self._file_of(path, version)
        try:
            return read(file)
        except ObjectMissing:
            # Log cleanup removes published commits, but never the newest one.
            if file == path and not (self._answer and version == self._answer.newest):
                raise
        # It may have been published since the catalog named it.
        self.ask(at_once=True)
        file = self._file_of(path, version)
        try:
            return read(file)
        except ObjectMissing as error:
            raise SourceCatalogAway(
                f"the catalog names version {version} of {self._source}, but the commit is not there",
                version=version,
                path=file,
                hint="Restore the file. dvsync looks again.",
            ) from error

    def is_unratified(self, version: int) -> bool:
        return self._answer_about(version).is_beyond(version)

    def exists(self, path: str) -> bool:
        version = self._version_of(path)
        file = path if version is None else self._find_file(path, version)
        return super().exists(path) if file == path else file is not None

    def appears_whole(self, path: str) -> bool:
        # Nobody ratifies a file that is still being written.
        return self._version_of(path) is not None or super().appears_whole(path)

    def stat(self, path: str) -> FileMeta:
        return self._read(path, super().stat)

    def read(self, path: str, span: Span | None = None) -> bytes:
        read = super().read
        return self._read(path, lambda file: read(file, span))

    def read_blocks(self, path: str) -> tuple[FileMeta, Iterator[bytes]]:
        return self._read(path, super().read_blocks)

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        if directory != self._folder:
            return super().list_from(directory, after)
        # Before the listing: what the catalog does not name any more by then is published, and will be listed.
        answer = self.ask()
        files = {
            file.name: file
            for file in super().list_from(directory, after)
            if (match := _VERSIONED.fullmatch(file.name)) is None or not answer.is_beyond(int(match[2] or match[1]))
        }
        for version, staged in answer.staged.items():
            name = f"{version:020d}.json"
            if name > after:
                files[name] = FileMeta(f"{self._folder}/{name}", staged.size_bytes, staged.modified_ms)
        return iter([files[name] for name in sorted(files)])
