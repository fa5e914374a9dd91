"""What the writers of position-delete files and of Puffin files share: where they write, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar, Self

import pyarrow as pa
from pyiceberg.io import FileIO

from daemon.errors import CorruptInput, ObjectStoreAway
from daemon.iceberg.pyiceberg_ext.file_io import StoredOutput
from daemon.store.durable import place_to_write, put_in_place


def damaged_deletes(what: str, path: str) -> CorruptInput:
    return CorruptInput(what, path=path, hint="Run `dvsync resync`, which rewrites the Iceberg table from Delta.")


class DeleteFileWriter:
    """Writes one file; an existing one is replaced. Leaving the context before the file is finished removes it.

    `positions` is how many were written so far. Failures of the store are raised as ObjectStoreAway. `at_once` as in
    `place_to_write`.
    """

    what: ClassVar[str]

    def __init__(self, io: FileIO, path: str, *, at_once: bool = False) -> None:
        self.path, self.positions = path, 0
        self._io, self._finished = io, False
        with self._storing():
            self._place = place_to_write(path, at_once=at_once)
            self._stream = io.new_output(self._place).create(overwrite=True)

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowInvalid) as error:
            hint = "Check the store, its free space and the credentials. dvsync writes the file again at the next try."
            raise ObjectStoreAway(f"a {self.what} was not written: {error}", path=self.path, hint=hint) from error

    def _finish(self) -> None:
        self._stream.close()
        put_in_place(self._place, self.path)
        self._finished = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """Forget an unfinished file. If the store fails, the file is left behind under its name."""
        if self._finished:
            return
        if isinstance(self._stream, StoredOutput):
            with suppress(OSError):
                self._stream.discard()
            return
        with suppress(OSError, pa.ArrowException):
            self._stream.close()
        with suppress(OSError):
            self._io.delete(self._place)
