"""The stores: this machine, and what PyArrow reads; `object_store.py` has S3 and ADLS. An object is one file or folder.

The methods raise OSError: FileNotFoundError if nothing is there. `storage.py` chooses the store of a path.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from errno import ELOOP, ENOENT
from stat import S_ISREG
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from daemon.errors import ObjectStoreAway, Unsupported
from daemon.store.locations import FileMeta, Span, canonical, store_away

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem
    from pyiceberg.io.pyarrow import PyArrowFileIO

# A file of up to this size costs one request to an object store.
BLOCK_BYTES = 8 << 20


class ArrowPlace:
    """A place on a file system that PyIceberg's FileIO configures."""

    # Whether a file is complete as soon as it exists.
    appears_whole = False

    def __init__(self, path: str, open_io: Callable[[], PyArrowFileIO]) -> None:
        self.path = path
        self._open_io = open_io

    @property
    def _fs(self) -> tuple[FileSystem, str]:
        # PyIceberg's own URL splitting would cut the path, see CUT_AT.
        scheme, _, rest = self.path.partition("://")
        try:
            return self._open_io().fs_by_scheme(scheme, urlparse(self.path).netloc), rest
        except (ValueError, TypeError) as error:
            raise Unsupported(
                f"PyIceberg cannot read or write files at {scheme}://: {error}",
                path=self.path,
                hint="Use a scheme that PyIceberg supports, such as file, s3, gs or abfss.",
            ) from error

    def find(self) -> FileMeta | None:
        """Return the file; None if it is a folder, or nothing is there."""
        fs, name = self._fs
        info = fs.get_file_info(name)
        return _file_meta(self.path, info) if info.is_file else None

    def exists(self) -> bool:
        # One request. `get_file_info` would add a LIST for a missing key, which may be a prefix.
        fs, name = self._fs
        fs.open_input_file(name).close()
        return True

    def open(self) -> Source:
        fs, name = self._fs
        file = fs.open_input_file(name)
        return Source(self.path, file.size(), file.read_at, file.close)

    def read(self, span: Span | None) -> bytes:
        if span:
            with self.open() as file:
                file.seek(span.offset)
                return file.read(span.size)
        fs, name = self._fs
        with fs.open_input_stream(name) as stream:
            return bytes(stream.read())

    def read_tail(self, size: int) -> tuple[FileMeta, bytes] | None:
        """Return the file and its last `size` bytes, by one request; None if the store has no such request."""
        return None

    def stream(self) -> tuple[FileMeta, Iterator[bytes]] | None:
        """Return the file and all its bytes in blocks, by one request; None if the store has no such request."""
        return None

    def delete(self) -> None:
        fs, name = self._fs
        fs.delete_file(name)

    def entries(self, *, allow_not_found: bool) -> dict[str, FileMeta | None]:
        """Return what is directly in this folder by name: a FileMeta for each file, None for each folder."""
        infos = self._select(allow_not_found=allow_not_found)
        if allow_not_found and not infos and canonical(self.path).startswith("s3://"):
            # S3 lists a missing bucket as an empty folder.
            fs, name = self._fs
            bucket = name.partition("/")[0]
            if fs.get_file_info(bucket).type.name == "NotFound":
                hint = "Check the bucket's name and the property s3.endpoint."
                raise ObjectStoreAway(f"there is no bucket {bucket}", path=self.path, hint=hint)
        # On S3, a folder may have the name of a file.
        files = {info.base_name: _file_meta(f"{self.path}/{info.base_name}", info) for info in infos if info.is_file}
        return {info.base_name: files.get(info.base_name) for info in infos}

    def below(self) -> Iterator[FileMeta]:
        """Return all files below this folder, at any depth and in no order."""
        _, name = self._fs
        infos = self._select(allow_not_found=True, recursive=True)
        return (_file_meta(f"{self.path}{info.path.removeprefix(name)}", info) for info in infos if info.is_file)

    def _select(self, *, allow_not_found: bool, recursive: bool = False) -> list[FileInfo]:
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - see `LocalPlace`

        fs, name = self._fs
        return list(fs.get_file_info(FileSelector(name, allow_not_found=allow_not_found, recursive=recursive)))


class LocalPlace(ArrowPlace):
    """A place on this machine. It is found and listed by the operating system.

    So a command that reads no file, such as `dvsync status`, need not import PyIceberg and Arrow, which is slow.
    """

    def __init__(self, path: str, open_io: Callable[[], PyArrowFileIO]) -> None:
        super().__init__(path, open_io)
        self._name = canonical(path).removeprefix("file://")

    @property
    def _fs(self) -> tuple[FileSystem, str]:
        return self._open_io().fs_by_scheme("file", None), self._name

    def find(self) -> FileMeta | None:
        return _local_file(self.path, os.stat(self._name))

    def exists(self) -> bool:
        return self.find() is not None

    def entries(self, *, allow_not_found: bool) -> dict[str, FileMeta | None]:
        """List as other places do. Links are followed."""
        entries: dict[str, FileMeta | None] = {}
        with os.scandir(self._name) as found:
            for entry in found:
                try:
                    if entry.is_dir():
                        entries[entry.name] = None
                    elif entry.is_file():
                        entries[entry.name] = _local_file(f"{self.path}/{entry.name}", entry.stat())
                except OSError as error:
                    # Skip an entry that another process removes while we list the folder, and a link to itself.
                    if error.errno not in (ENOENT, ELOOP):
                        raise
        return entries


class Source(io.RawIOBase):
    """A file of a store. Its reads raise `ObjectStoreAway` if the store does not answer, and Arrow passes that on.

    Without this class, Arrow's `OSError` would mean both an unavailable store and broken bytes.
    """

    def __init__(
        self, path: str, size_bytes: int, read_at: Callable[[int, int], Any], close: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.size_bytes = size_bytes
        self._path = path
        self._read_at = read_at
        self._close = close
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._close()
        super().close()

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self.size_bytes}[whence]
        return self._offset

    def read(self, size: int | None = -1) -> bytes:
        # Stores refuse reads beyond the end of a file, and a broken footer may point there. Arrow makes room for all.
        left = max(self.size_bytes - self._offset, 0)
        size = left if size is None or size < 0 else min(size, left)
        try:
            data = bytes(self._read_at(size, self._offset)) if size else b""
            if len(data) != size:
                raise OSError(f"of {size} bytes from {self._offset} on, {len(data)} came")
        except OSError as error:
            raise store_away(self._path, error) from error
        self._offset += size
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _file_meta(path: str, info: FileInfo) -> FileMeta:
    return FileMeta(path, info.size or 0, int((info.mtime_ns or 0) // 1_000_000))


def _local_file(path: str, found: os.stat_result) -> FileMeta | None:
    return FileMeta(path, found.st_size, found.st_mtime_ns // 1_000_000) if S_ISREG(found.st_mode) else None
