"""Puts deletion vectors into new `.bin` files of a Delta table, several into one. Nothing is committed here."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from pyroaring import BitMap64

from daemon.delta.deletion_vector import FIRST_DV_OFFSET, FRAME_BYTES, DvFile
from daemon.delta.position_set import encode_positions
from daemon.errors import CommitOutcomeUnknown, ObjectStoreAway, SyncError
from daemon.store.put_if_absent import put_if_absent
from daemon.store.storage import FileIOStorage
from state.records import DeletionVectorDescriptor

# As Delta's own (spark.databricks.delta.deletionVectors.packing.targetSize).
FILE_BYTES_MAX: Final = 2 << 20


class VectorFiles:
    """The new `.bin` files of one commit. If it is not made, they go by `discard`; after a kill, by Delta's VACUUM."""

    def __init__(self, storage: FileIOStorage, location: str, *, is_dry: bool) -> None:
        self.bytes_written = 0
        self._paths: list[str] = []
        self._storage = storage
        self._location = location
        self._is_dry = is_dry
        self._open = DvFile(location)

    def add(self, positions: BitMap64) -> DeletionVectorDescriptor:
        """Return the descriptor of a new vector, which is in the store after `flush`. Raises as `put_if_absent`."""
        blob = encode_positions(positions)
        if len(self._open.data) + len(blob) + FRAME_BYTES > FILE_BYTES_MAX:
            self.flush()
        return self._open.add(blob, len(positions))

    def flush(self) -> None:
        """Write what was added and is not in the store yet."""
        if len(self._open.data) > FIRST_DV_OFFSET:
            self.bytes_written += len(self._open.data)
            if not self._is_dry:
                self._paths.append(self._open.path)
                self._put(self._open.path, bytes(self._open.data))
            self._open = DvFile(self._location)

    def _put(self, path: str, data: bytes) -> None:
        try:
            is_new = put_if_absent(path, data, self._location, self._storage.properties)
        except CommitOutcomeUnknown as error:
            hint = "Nothing was deleted. Run it again when the store answers."
            raise ObjectStoreAway(error.message, path=path, hint=hint) from error
        # A store's client may have sent it twice.
        assert is_new or self._storage.read(path) == data, "the name has a new UUID"

    def discard(self) -> None:
        """Remove the files: it is certain that no commit names them."""
        for path in self._paths:
            with suppress(SyncError):
                self._storage.delete(path)
