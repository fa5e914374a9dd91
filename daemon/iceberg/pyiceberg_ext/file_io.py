"""PyIceberg's FileIO with fewer requests to S3 and ADLS: one for each file that is read or written, and none before it.

PyIceberg's module about PyArrow is imported when it is needed: it imports pyarrow.dataset, and that imports pandas, if
it is installed. An idle daemon needs neither, which together take 50 MB.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from daemon.store.durable import is_local, local_path
from daemon.store.object_store import StoredObject, as_os_errors, delete_together, find_object
from daemon.store.recent import Recent

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from typing_extensions import Buffer

MANIFEST_SUFFIX = ".avro"
WRITTEN_BYTES_MAX = 16 << 20
WRITTEN_FILE_BYTES_MAX = 1 << 20
# The newest manifests and manifest lists that this process wrote to S3 or ADLS: the next commit reads them. Their
# names are unique, so what was written once stays true.
written_manifests: Recent[bytes] = Recent(WRITTEN_BYTES_MAX, len)


class StoreFileIO(FileIO):
    """Reads and writes files on S3 and ADLS by obstore, and reads local files. PyArrowFileIO, which is used for the
    others, asks for a file before it reads or writes it, and uploads a small one with three requests.
    """

    @cached_property
    def _arrow(self) -> PyArrowFileIO:
        from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415 - see the module

        return PyArrowFileIO(self.properties)

    def _find_remote(self, location: str) -> StoredObject | None:
        return find_object(self.properties, location, lambda: self._arrow)

    def new_input(self, location: str) -> InputFile:
        if is_local(location):
            return _LocalFile(location)
        remote = self._find_remote(location)
        return _StoredFile(location, remote) if remote else self._arrow.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        remote = self._find_remote(location)
        return _StoredFile(location, remote) if remote else self._arrow.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        remote = self._find_remote(path)
        if remote:
            remote.delete()
        else:
            self._arrow.delete(path)

    def delete_together(self, locations: Sequence[str]) -> bool:
        """Remove files, which may be missing, with one request. False if they must be removed one by one."""
        found = [each for location in locations if (each := self._find_remote(location))]
        is_one_bucket = len(found) == len(locations) and all(each.store is found[0].store for each in found)
        return is_one_bucket and delete_together(found)


IMPLEMENTATION = f"{StoreFileIO.__module__}.{StoreFileIO.__name__}"


class _LocalFile(InputFile):
    def __len__(self) -> int:
        return local_path(self.location).stat().st_size

    def exists(self) -> bool:
        return local_path(self.location).exists()

    def open(self, seekable: bool = True) -> InputStream:
        return local_path(self.location).open("rb")


class _StoredFile(InputFile, OutputFile):
    def __init__(self, location: str, remote: StoredObject) -> None:
        super().__init__(location=location)
        self._remote = remote
        self._output: StoredOutput | None = None

    def __len__(self) -> int:
        return self._output.tell() if self._output else self._remote.find().size

    def exists(self) -> bool:
        try:
            return self._remote.exists()
        except FileNotFoundError:
            return False

    def open(self, seekable: bool = True) -> InputStream:
        data = written_manifests.find(self.location)
        return io.BytesIO(self._remote.read() if data is None else data)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Open the file for writing. Names are unique, except the version hint's, which is always overwritten."""
        self._output = StoredOutput(self.location, self._remote)
        return self._output

    def to_input_file(self) -> InputFile:
        return self


class StoredOutput(io.RawIOBase):
    """Sends a file to S3 or ADLS when it is closed; a large one also earlier, in parts."""

    def __init__(self, location: str, remote: StoredObject) -> None:
        self._location = location
        self._writer = remote.open_writer()
        self._size = 0
        # What a manifest holds so far, as long as it is small.
        self._kept: bytearray | None = bytearray() if location.endswith(MANIFEST_SUFFIX) else None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Buffer, /) -> int:
        with as_os_errors():
            self._writer.write(data)
        written = memoryview(data).nbytes
        self._size += written
        if self._kept is not None:
            self._kept += data
            if self._size > WRITTEN_FILE_BYTES_MAX:
                self._kept = None
        return written

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.close()
        else:
            self.discard()

    def discard(self) -> None:
        """Close the file without sending it. What is at its location stays."""
        super().close()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            with as_os_errors():
                self._writer.close()
        except FileNotFoundError as error:
            # A file need not be there to be written, but its bucket.
            raise OSError(f"there is no bucket for {self._location}: {error}") from error
        if self._kept is not None:
            written_manifests.add(self._location, bytes(self._kept))
