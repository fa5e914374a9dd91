"""Puts deletion vectors into new `.bin` files of a Delta table, several into one. Nothing is committed here."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap64

from daemon.clock import Clock
from daemon.delta.deletion_vector import FRAME_BYTES, NAMED_WITHIN_S, DvFile
from daemon.delta.log import DeltaLog
from daemon.delta.position_set import encode_positions
from daemon.errors import CommitOutcomeUnknown, ObjectStoreAway, SyncError
from daemon.store.put_if_absent import put_if_absent
from state import DeletionVectorDescriptor, StateUnavailable, VectorFile
from state.sql.written import WrittenFiles

# As Delta's own (spark.databricks.delta.deletionVectors.packing.targetSize).
FILE_BYTES_MAX: Final = 2 << 20


@dataclass(frozen=True)
class Tracking:
    """A table in the state store, which knows the names of new files until a commit is known to name them."""

    store: WrittenFiles
    table_id: int


class VectorFiles:
    """The new `.bin` files of one commit after `read_version`. If it is not made, they go by `discard`.

    After a kill, or if nobody knows whether the commit came, those with a `tracking` go by dvsync's cleanup, others by
    Delta's VACUUM.
    """

    def __init__(self, log: DeltaLog, clock: Clock, read_version: int, tracking: Tracking | None) -> None:
        self._log, self._clock, self._read_version, self._tracking = log, clock, read_version, tracking
        self._files: list[DvFile] = []
        self._begun: list[str] = []
        self._unsure: set[str] = set()  # these may still come
        self._recorded_ms, self._recorded_s = clock.now_ms(), clock.monotonic_s()

    @property
    def bytes_written(self) -> int:  # or to be written
        return sum(len(file.data) for file in self._files)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self._files)

    def add(self, positions: BitMap64) -> DeletionVectorDescriptor:
        """Return the descriptor of a new vector, which is in the store after `write`."""
        blob = encode_positions(positions)
        if not self._files or len(self._files[-1].data) + len(blob) + FRAME_BYTES > FILE_BYTES_MAX:
            self._files.append(DvFile(self._log.location))
        return self._files[-1].add(blob, len(positions))

    def write(self) -> None:
        """Write all files, after their names are recorded. Raises as `put_if_absent`, and StateUnavailable."""
        self._recorded_ms, self._recorded_s = self._clock.now_ms(), self._clock.monotonic_s()
        if self._tracking and self._files:
            files = [VectorFile(path, self._read_version, self._recorded_ms) for path in self.paths]
            self._tracking.store.record_vectors(self._tracking.table_id, files)
        for file in self._files:
            self._begun.append(file.path)
            self._put(file.path, bytes(file.data))

    def _put(self, path: str, data: bytes) -> None:
        storage = self._log.storage
        try:
            is_new = put_if_absent(path, data, self._log.location, storage.properties)
        except CommitOutcomeUnknown as error:
            self._unsure.add(path)
            hint = "Nothing was deleted. Run it again when the store answers."
            raise ObjectStoreAway(error.message, path=path, hint=hint) from error
        # A store's client may have sent it twice.
        assert is_new or storage.read(path) == data, "the name has a new UUID"

    def are_too_old(self) -> bool:
        """Return whether cleanup could take the files for those of a crash, before a commit came that is sent now."""
        # A suspended machine's monotonic clock may stand still, and its other one may jump.
        elapsed_s = (self._clock.now_ms() - self._recorded_ms) / 1000
        return bool(self._files) and max(elapsed_s, self._clock.monotonic_s() - self._recorded_s) > NAMED_WITHIN_S

    def put_back(self) -> None:
        """Write those again that cleanup took for a crash's, although their commit came: it was sent by a process that
        had been suspended, or the two machines' clocks differ.
        """
        for file in self._files if self._tracking else ():
            # Nothing is undone: the commit is there. A file that cannot be written again is missed by its readers.
            with suppress(SyncError):
                if not self._log.storage.exists(file.path):
                    self._put(file.path, bytes(file.data))

    def discard(self) -> None:
        """Remove the files: it is certain that no commit names them."""
        gone = {*self.paths} - self._unsure
        for path in self._begun:
            try:
                self._log.storage.delete(path)
            except SyncError:
                gone.discard(path)
        if self._tracking and gone:
            # LookupError: the table was forgotten meanwhile.
            with suppress(StateUnavailable, LookupError):
                self._tracking.store.forget_vectors(self._tracking.table_id, gone)
