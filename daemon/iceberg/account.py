"""The account of a table: what Delta's actions add up to, held against what Iceberg's manifests do, before each commit.

Two ways of counting that share no code: one goes by what the Delta log adds and removes, the other by the manifests
that readers will meet. Each snapshot's summary carries Delta's side of it on to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Snapshot

from daemon.errors import AccountMismatch

DATA_FILES = "dvsync.delta.data-files"
PHYSICAL_ROWS = "dvsync.delta.physical-rows"
DELETED_ROWS = "dvsync.delta.deleted-rows"


@dataclass(frozen=True)
class Account:
    """Live data files, the rows in them, and how many of these are deleted."""

    data_files: int
    physical_rows: int
    deleted_rows: int

    @property
    def live_rows(self) -> int:
        return self.physical_rows - self.deleted_rows

    def __add__(self, other: Account) -> Account:
        return Account(
            self.data_files + other.data_files,
            self.physical_rows + other.physical_rows,
            self.deleted_rows + other.deleted_rows,
        )

    def __sub__(self, other: Account) -> Account:
        return self + Account(-other.data_files, -other.physical_rows, -other.deleted_rows)

    def __str__(self) -> str:
        return f"{self.data_files} data files with {self.physical_rows} rows, {self.deleted_rows} of them deleted"

    def to_summary(self) -> dict[str, str]:
        return {
            DATA_FILES: str(self.data_files),
            PHYSICAL_ROWS: str(self.physical_rows),
            DELETED_ROWS: str(self.deleted_rows),
        }


NOTHING = Account(0, 0, 0)


def find_account(snapshot: Snapshot | None) -> Account | None:
    """The account in a snapshot's summary; None where there is none."""
    summary = snapshot.summary if snapshot else None
    if summary is None or summary[DATA_FILES] is None:
        return None
    return Account(*(int(str(summary[key])) for key in (DATA_FILES, PHYSICAL_ROWS, DELETED_ROWS)))


def account_of(manifests: Iterable[ManifestFile]) -> Account:
    """What readers will meet. Iceberg spec, "Manifest Lists": the counts of live entries."""
    files = {content: 0 for content in ManifestContent}
    rows = {content: 0 for content in ManifestContent}
    for manifest in manifests:
        files[manifest.content] += (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        rows[manifest.content] += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
    return Account(files[ManifestContent.DATA], rows[ManifestContent.DATA], rows[ManifestContent.DELETES])


def check_account(by_delta: Account, by_iceberg: Account) -> None:
    """Raise `AccountMismatch` when the two differ."""
    if by_delta != by_iceberg:
        raise AccountMismatch(
            f"Delta comes to {by_delta}, the Iceberg table would show {by_iceberg}: nothing was committed",
            hint="`dvsync resync` writes the table anew from Delta's state; if it comes again, report it with the log.",
        )
