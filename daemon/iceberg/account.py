"""The account of a table: the totals of its files and rows, in each snapshot's summary. Before each commit, three must
agree: that of Delta's actions, that of Iceberg's manifests, and Delta's own of its checksum file or whole state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import neg

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Snapshot

from daemon.errors import AccountMismatch
from daemon.longs import add_longs

# The keys of a snapshot's summary, in the order of the fields of `Account`.
KEYS = ("dvsync.delta.data-files", "dvsync.delta.physical-rows", "dvsync.delta.deleted-rows", "dvsync.delta.size-bytes")
HINT_MISMATCH = "`dvsync resync` rewrites the Iceberg table from Delta. If this error returns, report it with the log."


@dataclass(frozen=True)
class Account:
    """The number of live data files, of their physical rows and of the deleted rows, and the size of the files."""

    data_files: int
    physical_rows: int
    deleted_rows: int
    size_bytes: int

    @property
    def live_rows(self) -> int:
        return self.physical_rows - self.deleted_rows

    def __add__(self, other: Account) -> Account:
        return Account(*map(add_longs, vars(self).values(), vars(other).values()))

    def __sub__(self, other: Account) -> Account:
        return self + Account(*map(neg, vars(other).values()))

    def __str__(self) -> str:
        return (
            f"{self.data_files} data files of {self.size_bytes} bytes with {self.physical_rows} rows, "
            f"{self.deleted_rows} of them deleted"
        )

    def to_summary(self) -> dict[str, str]:
        return dict(zip(KEYS, map(str, vars(self).values()), strict=True))


NOTHING = Account(0, 0, 0, 0)


def find_account(snapshot: Snapshot | None) -> Account | None:
    """Return the account in a snapshot's summary; None if it has none."""
    summary = snapshot.summary if snapshot else None
    if summary is None or summary[KEYS[-1]] is None:
        return None
    return Account(*(int(str(summary[key])) for key in KEYS))


def account_of(manifests: Iterable[ManifestFile], size_bytes: int) -> Account:
    """Add up the counts in manifests: Iceberg spec, "Manifest Lists". They have no sizes of data files."""
    files = {content: 0 for content in ManifestContent}
    rows = {content: 0 for content in ManifestContent}
    for manifest in manifests:
        files[manifest.content] += (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        rows[manifest.content] += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
    return Account(files[ManifestContent.DATA], rows[ManifestContent.DATA], rows[ManifestContent.DELETES], size_bytes)


def check_account(by_delta: Account, by_iceberg: Account) -> None:
    if by_delta != by_iceberg:
        raise AccountMismatch(
            f"Delta has {by_delta}, but the Iceberg table would show {by_iceberg}: nothing was committed",
            hint=HINT_MISMATCH,
        )
