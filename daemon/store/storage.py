"""All file access of dvsync: files by URI, through PyIceberg's FileIO. A missing file and a failing store differ.

Paths here are plain strings, never URL-encoded. `file:///a/b` and `/a/b` are the same local file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ELOOP, ENOENT
from functools import cached_property
from operator import itemgetter
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlparse

from daemon.errors import CorruptInput, ObjectMissing, ObjectStoreAway, Unsupported
from daemon.store.locations import canonical
from daemon.store.object_store import ObjectInfo, S3Input, S3Object, find_s3_object

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem
    from pyiceberg.io.pyarrow import PyArrowFileIO

T = TypeVar("T")
R = TypeVar("R")

# PyIceberg 0.12 cuts a path at these characters, and so reads another file (FileIO.parse_location).
CUT_AT = "#?"
# A file of up to this size costs one request to an object store.
BLOCK_BYTES = 8 << 20
# More threads than cores: they wait for the store and hardly use the processor.
REQUESTS_AT_ONCE = 16


@dataclass(frozen=True)
class Span:
    """A half-open range of bytes: `size` bytes from `offset`."""

    offset: int
    size: int


@dataclass(frozen=True)
class FileMeta:
    """Metadata of one file, from a listing or `stat`. `modified_ms` is by the store's clock, epoch, UTC."""

    path: str
    size: int
    modified_ms: int


class Storage(Protocol):
    """The operations that dvsync needs of a store.

    All of them raise `ObjectStoreAway` when the store does not answer. `read` and `stat` also raise `ObjectMissing`.
    On S3 each of them is one request, except listings of many files.
    """

    def exists(self, path: str) -> bool: ...

    def stat(self, path: str) -> FileMeta: ...

    def read(self, path: str, span: Span | None = None) -> bytes:
        """Return all bytes, or those in `span`; fewer only if the file ends inside `span`."""

    def read_spans(self, spans: Sequence[tuple[str, Span]]) -> list[bytes]:
        """Read from many files as `read` does; at the same time where each is a request to another machine."""

    def read_blocks(self, path: str) -> tuple[FileMeta, Iterator[bytes]]:
        """Return the file's metadata and all of its bytes, in blocks of about BLOCK_BYTES. Raises as `read` does.

        The metadata is as old as the bytes, or older.
        """

    def appears_whole(self, path: str) -> bool:
        """Return whether a file at `path` is complete as soon as it exists."""

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        """List the files directly in `directory` whose name is greater than `after`, sorted by name.

        A missing directory gives no files.
        """


def check_path(path: str) -> None:
    """Raise `Unsupported` for a path that our clients cut or refuse, `CorruptInput` for one that no file can have."""
    if "\0" in path:
        raise CorruptInput("the path contains a NUL", path=path, hint="Fix the program that wrote this path.")
    if any(sign in path for sign in CUT_AT):
        raise Unsupported(
            "the path contains '#' or '?': PyIceberg cuts the path there and would read the wrong file or none",
            path=path,
            hint="Move the table to a location without these characters.",
        )
    _check_parts(path)


def _check_parts(path: str) -> None:
    scheme, _, rest = path.partition("://")
    # Without a host, HDFS is the one that Hadoop's configuration names.
    names_no_bucket = rest.startswith("/") and scheme not in ("hdfs", "viewfs")
    if _local_name(path) is None and (names_no_bucket or "//" in rest):
        raise Unsupported(
            "the path has an empty part between two slashes: a store may have such keys, but our clients refuse them",
            path=path,
            hint="Move the table to a location without an empty part; if one slash is only a slip, correct `source`.",
        )


def map_files(function: Callable[[T], R], items: Sequence[T], path_of: Callable[[T], str]) -> list[R]:
    """Apply `function`, which uses the file `path_of(item)`, to each item. The results are in the order of `items`.

    Runs REQUESTS_AT_ONCE at a time for files on other machines. For local files, threads take longer than the reads.
    """
    if len(items) < 2 or all(_local_name(path_of(item)) is not None for item in items):
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), REQUESTS_AT_ONCE), thread_name_prefix="request") as pool:
        return list(pool.map(function, items))


class FileIOStorage:
    """Storage on the file systems that PyIceberg's FileIO configures (properties as in `config.yaml`, `storage:`).

    Local files are listed and checked through the operating system: a command that reads no file, such as
    `dvsync status`, then need not import PyIceberg and Arrow, which is slow.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self._properties = dict(properties or {})

    @cached_property
    def _io(self) -> PyArrowFileIO:
        from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415 - see the class

        return PyArrowFileIO(self._properties)

    def _on_s3(self, path: str) -> S3Object | None:
        return find_s3_object(self._properties, path)

    def _open_fs(self, path: str) -> tuple[FileSystem, str]:
        local = _local_name(path)
        if local is not None:
            return self._io.fs_by_scheme("file", None), local
        _check_parts(path)
        # PyIceberg's own URL splitting would cut the path, see CUT_AT.
        scheme, _, rest = path.partition("://")
        try:
            return self._io.fs_by_scheme(scheme, urlparse(path).netloc), rest
        except (ValueError, TypeError) as error:
            raise Unsupported(
                f"PyIceberg cannot read or write files at {scheme}://: {error}",
                path=path,
                hint="Use a scheme that PyIceberg supports, such as file, s3, gs or abfss.",
            ) from error

    def find_missing(self, paths: Sequence[str]) -> list[str]:
        """Return those of `paths` that do not exist, with one request for each. Raises as `exists` does."""
        exist = map_files(self.exists, paths, str)
        return [path for path, exists in zip(paths, exist, strict=True) if not exists]

    def exists(self, path: str) -> bool:
        if _local_name(path) is not None:
            return self._find(path) is not None
        try:
            if remote := self._on_s3(path):
                remote.head()
            else:
                fs, name = self._open_fs(path)
                # One request. `get_file_info` would add a LIST for a missing key, which may be a prefix.
                fs.open_input_file(name).close()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_away(path, error) from error
        return True

    def appears_whole(self, path: str) -> bool:
        with _store_errors(path):
            return self._on_s3(path) is not None

    def stat(self, path: str) -> FileMeta:
        found = self._find(path)
        if found is None:
            raise _missing(path)
        return found

    def _find(self, path: str) -> FileMeta | None:
        """Return the file at `path`; None if nothing is there, or a folder."""
        local = _local_name(path)
        try:
            if local is not None:
                return _local_file(path, os.stat(local))
            if remote := self._on_s3(path):
                return _object_meta(path, remote.head())
            fs, name = self._open_fs(path)
            info = fs.get_file_info(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise store_away(path, error) from error
        return _file_meta(path, info) if info.is_file else None

    def read(self, path: str, span: Span | None = None) -> bytes:
        with _store_errors(path):
            if remote := self._on_s3(path):
                return (remote.get(span.offset, span.size) if span else remote.get())[1]
            fs, name = self._open_fs(path)
            if span is None:
                with fs.open_input_stream(name) as stream:
                    return bytes(stream.read())
            with Source(fs.open_input_file(name), path) as file:
                file.seek(span.offset)
                return file.read(span.size)

    def read_spans(self, spans: Sequence[tuple[str, Span]]) -> list[bytes]:
        return map_files(lambda each: self.read(*each), spans, itemgetter(0))

    def read_blocks(self, path: str) -> tuple[FileMeta, Iterator[bytes]]:
        with _store_errors(path):
            if remote := self._on_s3(path):
                info, blocks = remote.stream(BLOCK_BYTES)
                return _object_meta(path, info), _checked(path, blocks)
        # Asked before the read: if a writer appends later, the file's size or time differs from this one.
        meta = self.stat(path)
        return meta, _checked(path, self._blocks(path))

    def _blocks(self, path: str) -> Iterator[bytes]:
        with self.open_input(path) as file:
            while block := bytes(file.read(BLOCK_BYTES)):
                yield block

    def read_tail(self, path: str, size: int) -> tuple[FileMeta, bytes]:
        """Return the file's metadata and its last `size` bytes, or all of a smaller file. Raises as `read` does."""
        with _store_errors(path):
            if remote := self._on_s3(path):
                info, data = remote.get_tail(size)
                return _object_meta(path, info), data
            meta = self.stat(path)
            with self.open_input(path) as file:
                file.seek(max(0, meta.size - size))
                return meta, bytes(file.read())

    def open_input(self, path: str) -> Source:
        """Open the file for random access by Arrow's readers. Raises as `read` does."""
        with _store_errors(path):
            if remote := self._on_s3(path):
                return Source(S3Input(remote), path)
            fs, name = self._open_fs(path)
            return Source(fs.open_input_file(name), path)

    def delete(self, path: str) -> None:
        """Remove one file. A missing file is no error. Raises ObjectStoreAway."""
        with _store_errors(path):
            remote = self._on_s3(path)
        if remote and remote.delete():
            return
        fs, name = self._open_fs(path)
        try:
            fs.delete_file(name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise store_away(path, error) from error

    def list_below(self, directory: str) -> Iterator[FileMeta]:
        """List all files below `directory`, at any depth and in no order. Raises ObjectStoreAway."""
        _, name = self._open_fs(directory)
        try:
            infos = self._select(directory, allow_not_found=True, recursive=True)
        except OSError as error:
            raise store_away(directory, error) from error
        for info in infos:
            if info.is_file:
                yield _file_meta(f"{directory}{info.path.removeprefix(name)}", info)

    def list_folders(self, directory: str) -> list[str]:
        """Return the sorted names of the folders directly in `directory`. Raises ObjectMissing, ObjectStoreAway."""
        try:
            entries = self._list(directory, allow_not_found=False)
        except (FileNotFoundError, NotADirectoryError) as error:
            hint = "Create or mount the folder, or correct the pattern in source."
            raise ObjectMissing("the folder is not there", path=directory, hint=hint) from error
        return sorted(name for name, file in entries.items() if file is None)

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        entries = self._list(directory, allow_not_found=True)
        if not entries:
            self._check_bucket(directory)
        return (file for name, file in sorted(entries.items()) if file is not None and name > after)

    def _list(self, directory: str, *, allow_not_found: bool) -> dict[str, FileMeta | None]:
        """Return the entries directly in `directory` by name: a FileMeta for each file, None for each folder.

        Raises ObjectStoreAway, and unless `allow_not_found` FileNotFoundError and NotADirectoryError.
        """
        local = _local_name(directory)
        try:
            if local is not None:
                return _list_local(directory, local)
            infos = self._select(directory, allow_not_found=allow_not_found)
        except FileNotFoundError:
            if allow_not_found:
                return {}
            raise
        except OSError as error:
            if isinstance(error, NotADirectoryError) and not allow_not_found:
                raise
            raise store_away(directory, error) from error
        files = {info.base_name: _file_meta(f"{directory}/{info.base_name}", info) for info in infos if info.is_file}
        return {info.base_name: files.get(info.base_name) for info in infos}

    def _select(self, directory: str, *, allow_not_found: bool, recursive: bool = False) -> list[FileInfo]:
        fs, name = self._open_fs(directory)
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - see the class

        return list(fs.get_file_info(FileSelector(name, allow_not_found=allow_not_found, recursive=recursive)))

    def _check_bucket(self, directory: str) -> None:
        """Raise ObjectStoreAway if the bucket does not exist: S3 lists a missing bucket as an empty folder."""
        if canonical(directory).startswith("s3://"):
            fs, name = self._open_fs(directory)
            bucket = name.partition("/")[0]
            try:
                is_there = fs.get_file_info(bucket).type.name != "NotFound"
            except OSError as error:
                raise store_away(directory, error) from error
            if not is_there:
                hint = "Check the bucket's name and the property s3.endpoint."
                raise ObjectStoreAway(f"there is no bucket {bucket}", path=directory, hint=hint)


class Source(io.RawIOBase):
    """A file of a store. Its reads raise `ObjectStoreAway` if the store does not answer, and Arrow passes that on.

    Without this class, Arrow's `OSError` would mean both an unavailable store and broken bytes.
    """

    def __init__(self, file: NativeFile | S3Input, path: str) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._offset = 0
        self.size_bytes: int = self._ask(file.size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
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
        data = self._ask(lambda: bytes(self._file.read_at(size, self._offset))) if size else b""
        if len(data) != size:
            what = f"of {size} bytes from {self._offset} on, {len(data)} came"
            raise store_away(self._path, OSError(what))
        self._offset += size
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except OSError as error:
            raise store_away(self._path, error) from error


def _local_name(path: str) -> str | None:
    """Return the path for the operating system; None if it is on another store."""
    scheme, separator, rest = canonical(path).partition("://")
    if not separator:
        return path
    return rest if scheme == "file" else None


def _local_file(path: str, found: os.stat_result) -> FileMeta | None:
    return FileMeta(path, found.st_size, found.st_mtime_ns // 1_000_000) if S_ISREG(found.st_mode) else None


def _list_local(directory: str, local: str) -> dict[str, FileMeta | None]:
    """List a local folder as `FileIOStorage._list` does. Links are followed."""
    entries: dict[str, FileMeta | None] = {}
    with os.scandir(local) as found:
        for entry in found:
            try:
                if entry.is_dir():
                    entries[entry.name] = None
                elif entry.is_file():
                    entries[entry.name] = _local_file(f"{directory}/{entry.name}", entry.stat())
            except OSError as error:
                # Skip an entry that another process removes while we list the folder, and a link to itself.
                if error.errno not in (ENOENT, ELOOP):
                    raise
    return entries


def _file_meta(path: str, info: FileInfo) -> FileMeta:
    return FileMeta(path=path, size=info.size or 0, modified_ms=int((info.mtime_ns or 0) // 1_000_000))


def _object_meta(path: str, info: ObjectInfo) -> FileMeta:
    return FileMeta(path, info.size, info.modified_ms)


def _checked(path: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    with _store_errors(path):
        yield from blocks


@contextmanager
def _store_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise _missing(path) from error
    except OSError as error:
        raise store_away(path, error) from error


def _missing(path: str) -> ObjectMissing:
    return ObjectMissing(
        "the file is not there",
        path=path,
        hint="Restore it, or take it out of the Delta table with RESTORE or an overwrite: dvsync continues by itself.",
    )


def store_away(path: str, error: OSError) -> ObjectStoreAway:
    if isinstance(error, PermissionError):
        hint = "Give the user that runs dvsync the right to read the file and its folders, or to write there."
        return ObjectStoreAway(f"the store refuses: {error}", path=path, hint=hint)
    return ObjectStoreAway(
        f"the store does not answer: {error}", path=path, hint="Check the store, the network and the credentials."
    )
