"""An account held against Delta's own totals, which come from another program: a checksum file, or a whole state."""

from __future__ import annotations

import structlog

from daemon import log as events
from daemon.delta.checksum import Totals
from daemon.delta.log import DeltaLog
from daemon.errors import AccountMismatch, StateMismatch
from daemon.iceberg.account import HINT_MISMATCH, Account

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


NO_DIFFERENCE = Totals(0, 0, 0)
# After so many different faults, none of them Iceberg's, a log's checksum files are not worth another comparison.
FAULTS_MAX = 3


class Checksums:
    """The checksum files of one log. Remembers by how much they were wrong when a whole state was read last."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._fault = NO_DIFFERENCE
        self._faults = 0

    def check(self, version: int, account: Account) -> None:
        """Raise `StateMismatch` when the checksum file of `version` comes to something else. One request.

        A file that is not there (yet), or cannot be read, says nothing. A fault that is known is not told again, and
        after several different ones in a row the files of this log are not read any more.
        """
        checksum = self._log.read_checksum(version) if self._faults <= FAULTS_MAX else None
        if checksum is None:
            return
        if _more_than(account, checksum) in (NO_DIFFERENCE, self._fault):
            self._faults = 0
            return
        self._faults += 1
        if self._faults > FAULTS_MAX:
            _log.warning(events.CHECKSUM_DISBELIEVED, version=version, checksum_has=_text(checksum), is_last=True)
            return
        raise StateMismatch(
            f"the checksum file of version {version} has {_text(checksum)}, and the log comes to {account}",
            version=version,
            hint="dvsync rebuilds its state from the Iceberg table and compares it with Delta's newest state.",
        )

    def learn(self, version: int, state: Totals) -> None:
        """See how wrong the checksum file of `version` is, whose whole `state` was read. One request.

        Delta carries a wrong number on into its next files, so only another fault is news.
        """
        checksum = self._log.read_checksum(version)
        if checksum is None:
            return
        self._fault = _more_than(_account_of(state), checksum)
        if self._fault != NO_DIFFERENCE:
            _log.warning(
                events.CHECKSUM_DISBELIEVED,
                version=version,
                checksum_has=_text(checksum),
                state_has=_text(state),
                is_last=False,
            )


def check_state(state: Totals, account: Account) -> None:
    """Raise `AccountMismatch` when the account does not come to Delta's whole `state`."""
    if _more_than(account, state) != NO_DIFFERENCE:
        raise AccountMismatch(
            f"Delta's state has {_text(state)}, the Iceberg table would show {account}: nothing was committed",
            hint=HINT_MISMATCH,
        )


def _more_than(account: Account, totals: Totals) -> Totals:
    """By how much `totals` are greater; what they do not say agrees."""
    deleted_rows = account.deleted_rows if totals.deleted_rows is None else totals.deleted_rows
    return Totals(
        totals.files - account.data_files, totals.size_bytes - account.size_bytes, deleted_rows - account.deleted_rows
    )


def _account_of(state: Totals) -> Account:
    return Account(state.files, 0, state.deleted_rows or 0, state.size_bytes)


def _text(totals: Totals) -> str:
    return f"{totals.files} data files of {totals.size_bytes} bytes with {totals.deleted_rows or 0} deleted rows"
