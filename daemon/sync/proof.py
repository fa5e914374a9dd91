"""Compares accounts with totals that Delta itself computed: in a checksum file, or from a whole state."""

from __future__ import annotations

import structlog

from daemon.delta.actions import NO_DIFFERENCE, Totals
from daemon.delta.log import DeltaLog
from daemon.errors import AccountMismatch, StateMismatch
from daemon.iceberg.account import HINT_MISMATCH, Account
from daemon.observe import log as events

# After so many different faults in checksum files in a row, the files of this log are no longer read.
FAULTS_MAX = 3

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Checksums:
    """The checksum files of one log. Remembers their fault at the last read of a whole state."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._fault = NO_DIFFERENCE
        self._faults = 0
        self._fetched: tuple[int, Totals | None] | None = None

    def fetch(self, version: int) -> None:
        """Read the checksum file of `version` for the `check` that follows. One request."""
        if self._faults <= FAULTS_MAX:
            self._fetched = (version, self._log.read_checksum(version))

    def check(self, version: int, account: Account) -> None:
        """Raise `StateMismatch` if the checksum file of `version` differs from `account`. One request, or none after
        `fetch`. A file that is missing (yet) or cannot be decoded is ignored, and a fault that `learn` has found.
        """
        fetched, self._fetched = self._fetched, None
        if self._faults > FAULTS_MAX:
            return
        checksum = fetched[1] if fetched and fetched[0] == version else self._log.read_checksum(version)
        if checksum is None:
            return
        if checksum.more_than(_totals_of(account)) in (NO_DIFFERENCE, self._fault):
            self._faults = 0
            return
        self._faults += 1
        if self._faults > FAULTS_MAX:
            _log.warning(events.CHECKSUM_DISBELIEVED, version=version, checksum_has=_text(checksum), is_last=True)
            return
        raise StateMismatch(
            f"the checksum file of version {version} has {_text(checksum)}, but the log's actions add up to {account}",
            version=version,
            hint="dvsync rebuilds its state from the Iceberg table and compares it with Delta's newest state.",
        )

    def learn(self, version: int, state: Totals) -> None:
        """Remember by how much the checksum file of `version` differs from its whole `state`. One request. Delta copies
        a wrong number into its next files, so only a different fault is worth a comparison.
        """
        checksum = self._log.read_checksum(version)
        if checksum is None:
            return
        self._fault = checksum.more_than(state)
        if self._fault != NO_DIFFERENCE:
            figures = {"checksum_has": _text(checksum), "state_has": _text(state)}
            _log.warning(events.CHECKSUM_DISBELIEVED, version=version, **figures, is_last=False)


def check_state(state: Totals, account: Account) -> None:
    """Raise `AccountMismatch` if the account differs from Delta's whole `state`."""
    if state.more_than(_totals_of(account)) != NO_DIFFERENCE:
        raise AccountMismatch(
            f"Delta's state has {_text(state)}, the Iceberg table would show {account}: nothing was committed",
            hint=HINT_MISMATCH,
        )


def _totals_of(account: Account) -> Totals:
    return Totals(account.data_files, account.size_bytes, account.deleted_rows)


def _text(totals: Totals) -> str:
    return f"{totals.files} data files of {totals.size_bytes} bytes with {totals.deleted_rows or 0} deleted rows"
