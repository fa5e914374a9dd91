"""The one door to bytes: files by URI, on PyIceberg's FileIO, with "missing" and "away" told apart.

Paths here are plain strings, never URL-encoded. `file:///a/b` and `/a/b` are the same local file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlparse

from pyarrow import NativeFile
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO

from daemon.errors import ObjectMissing, ObjectStoreAway, Unsupported

# PyIceberg 0.12 takes these for the end of a path, and reads another file (FileIO.parse_location).
CUT_AT = "#?"


@dataclass(frozen=True)
class Span:
    """A half-open range of bytes: `size` bytes from `offset`."""

    offset: int
    size: int


@dataclass(frozen=True)
class FileMeta:
    """What a listing or a look at one file tells. `modified_ms` is the store's clock, epoch, UTC."""

    path: str
    size: int
    modified_ms: int


class Storage(Protocol):
    """What the rest of dvsync may ask of a store.

    All verbs raise `ObjectStoreAway` when the store does not answer. `read` and `stat` raise `ObjectMissing`.
    """

    def exists(self, path: str) -> bool: ...

    def stat(self, path: str) -> FileMeta: ...

    def read(self, path: str, span: Span | None = None) -> bytes:
        """All bytes, or those of `span`; fewer than asked only where the file ends."""
        ...

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        """Files right in `directory` whose name is greater than `after`, sorted; empty when there is no such place."""
        ...


def canonical(path: str) -> str:
    """One spelling for what engines spell differently: `/a`, `file:/a` and `file:///a`; `s3://b`, `s3a://b`, `s3n://b`."""
    scheme, _, rest = path.partition(":")
    if path.startswith("/") or (scheme == "file" and rest.startswith("/") and not rest.startswith("//")):
        return f"file://{path.removeprefix('file:')}"
    return f"s3:{rest}" if scheme in ("s3a", "s3n") else path


def check_path(path: str) -> None:
    """Raise `Unsupported` for a path that PyIceberg would cut."""
    if any(sign in path for sign in CUT_AT):
        raise Unsupported(
            "the path has a '#' or a '?' in it, where PyIceberg cuts paths: it would read another file, or none",
            path=path,
            hint="Move the table to a location without these characters.",
        )


class FileIOStorage:
    """Storage on the file systems that PyIceberg's FileIO configures (properties as in `config.yaml`, `storage:`)."""

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self._io = PyArrowFileIO(dict(properties or {}))

    def _open_fs(self, path: str) -> tuple[FileSystem, str]:
        # Not by PyIceberg's own URL splitting, see CUT_AT.
        scheme, separator, rest = (canonical(path) if path.startswith("file:") else path).partition("://")
        if not separator:
            return self._io.fs_by_scheme("file", None), path
        if scheme == "file":
            return self._io.fs_by_scheme("file", None), rest
        netloc = urlparse(path).netloc
        try:
            return self._io.fs_by_scheme(scheme, netloc), rest
        except ValueError as error:
            raise Unsupported(
                f"PyIceberg reads and writes no files at {scheme}://",
                path=path,
                hint="Name the table by a scheme that it knows, such as file, s3, gs or abfss.",
            ) from error

    def exists(self, path: str) -> bool:
        fs, name = self._open_fs(path)
        if isinstance(fs, LocalFileSystem):
            return self._look(path).type is FileType.File
        try:
            # One request. A look would go on to list what is not there, as it may be a folder.
            fs.open_input_file(name).close()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_away(path, error) from error
        return True

    def stat(self, path: str) -> FileMeta:
        info = self._look(path)
        if info.type is not FileType.File:
            raise _missing(path)
        return _file_meta(path, info)

    def _look(self, path: str) -> FileInfo:
        fs, name = self._open_fs(path)
        try:
            return fs.get_file_info(name)
        except OSError as error:
            raise store_away(path, error) from error

    def read(self, path: str, span: Span | None = None) -> bytes:
        fs, name = self._open_fs(path)
        try:
            if span is None:
                with fs.open_input_stream(name) as stream:
                    return bytes(stream.read())
            with fs.open_input_file(name) as file:
                # Arrow refuses to start reading past the end; a short answer is this verb's contract.
                return bytes(file.read_at(span.size, span.offset)) if span.offset < file.size() else b""
        except FileNotFoundError as error:
            raise _missing(path) from error
        except OSError as error:
            raise store_away(path, error) from error

    def open_input(self, path: str) -> NativeFile:
        """The file for random access, as Arrow's readers want it."""
        fs, name = self._open_fs(path)
        try:
            return fs.open_input_file(name)
        except FileNotFoundError as error:
            raise _missing(path) from error
        except OSError as error:
            raise store_away(path, error) from error

    def delete(self, path: str) -> None:
        """Remove one file; one that is gone already is no error. Raises ObjectStoreAway."""
        fs, name = self._open_fs(path)
        try:
            fs.delete_file(name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise store_away(path, error) from error

    def list_below(self, directory: str) -> Iterator[FileMeta]:
        """All files below `directory`, at any depth, in no order. Raises ObjectStoreAway."""
        fs, name = self._open_fs(directory)
        try:
            infos = fs.get_file_info(FileSelector(name, allow_not_found=True, recursive=True))
        except OSError as error:
            raise store_away(directory, error) from error
        for info in infos:
            if info.type is FileType.File:
                yield _file_meta(f"{directory}{info.path.removeprefix(name)}", info)

    def list_folders(self, directory: str) -> list[str]:
        """The names of the folders right in `directory`, sorted. Raises ObjectMissing, ObjectStoreAway."""
        fs, name = self._open_fs(directory)
        try:
            infos = fs.get_file_info(FileSelector(name))
        except FileNotFoundError as error:
            hint = "Make it or mount it, or correct the source's pattern."
            raise ObjectMissing("the folder is not there", path=directory, hint=hint) from error
        except OSError as error:
            raise store_away(directory, error) from error
        return sorted(info.base_name for info in infos if info.type is FileType.Directory)

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        fs, name = self._open_fs(directory)
        try:
            infos = fs.get_file_info(FileSelector(name, allow_not_found=True))
        except OSError as error:
            raise store_away(directory, error) from error
        if not infos:
            self._check_bucket(directory)
        files = sorted((info for info in infos if info.type is FileType.File), key=lambda info: info.base_name)
        return (_file_meta(f"{directory}/{info.base_name}", info) for info in files if info.base_name > after)

    def _check_bucket(self, directory: str) -> None:
        """S3 says of a bucket that is not there what it says of an empty folder: nothing."""
        if canonical(directory).startswith("s3://"):
            fs, name = self._open_fs(directory)
            bucket = name.partition("/")[0]
            try:
                is_there = fs.get_file_info(bucket).type is not FileType.NotFound
            except OSError as error:
                raise store_away(directory, error) from error
            if not is_there:
                hint = "Check the spelling of the bucket's name, and s3.endpoint."
                raise ObjectStoreAway(f"there is no bucket {bucket}", path=directory, hint=hint)


def _file_meta(path: str, info: FileInfo) -> FileMeta:
    return FileMeta(path=path, size=info.size or 0, modified_ms=int((info.mtime_ns or 0) // 1_000_000))


def _missing(path: str) -> ObjectMissing:
    return ObjectMissing(
        "the file is not there", path=path, hint="If VACUUM or a person removed it, restore it; dvsync tries again."
    )


def store_away(path: str, error: OSError) -> ObjectStoreAway:
    return ObjectStoreAway(
        f"the store does not answer: {error}", path=path, hint="Check the store, the network and the credentials."
    )
