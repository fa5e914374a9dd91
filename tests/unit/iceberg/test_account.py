"""The account: Delta's sums and Iceberg's, and that any difference is told."""

from __future__ import annotations

import pytest
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from daemon.errors import AccountMismatch
from daemon.iceberg.account import Account, account_of, check_account, find_account
from daemon.iceberg.pyiceberg_ext.records import manifest_record


def manifest(content: ManifestContent, added: tuple[int, int], existing: tuple[int, int]) -> ManifestFile:
    return manifest_record(
        content=content,
        added_files_count=added[0],
        added_rows_count=added[1],
        existing_files_count=existing[0],
        existing_rows_count=existing[1],
        deleted_files_count=7,
        deleted_rows_count=700,
    )


def snapshot(**summary: str) -> Snapshot:
    return Snapshot(snapshot_id=1, manifest_list="m", summary=Summary(Operation.APPEND, **summary))


def test_manifests_are_summed_by_what_is_live_in_them() -> None:
    """Added and existing entries count, deleted ones do not; delete files' rows are the deleted rows."""
    found = account_of(
        [
            manifest(ManifestContent.DATA, (2, 20), (3, 30)),
            manifest(ManifestContent.DATA, (0, 0), (1, 5)),
            manifest(ManifestContent.DELETES, (4, 6), (1, 2)),
        ],
        size_bytes=600,
    )
    assert found == Account(data_files=6, physical_rows=55, deleted_rows=8, size_bytes=600)
    assert found.live_rows == 47


def test_an_account_goes_through_a_summary() -> None:
    """What a snapshot carries is what the next one starts from; a summary without it says so."""
    account = Account(3, 30, 4, 500)
    assert find_account(snapshot(**account.to_summary())) == account
    assert find_account(snapshot()) is None
    assert find_account(None) is None


@pytest.mark.parametrize(
    "other", [Account(4, 30, 4, 500), Account(3, 31, 4, 500), Account(3, 30, 3, 500), Account(3, 30, 4, 501)]
)
def test_any_difference_is_a_mismatch(other: Account) -> None:
    """Files, rows and deletions each count; the error tells both sides."""
    account = Account(3, 30, 4, 500)
    check_account(account, Account(1, 10, 4, 200) + Account(2, 20, 0, 300))
    with pytest.raises(AccountMismatch) as caught:
        check_account(account, other)
    assert str(account) in str(caught.value) and str(other) in str(caught.value)
