"""All file access of dvsync: files by URI. A missing file and a failing store differ.

Paths here are plain strings, never URL-encoded. `file:///a/b` and `/a/b` are the same local file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar

from daemon.errors import CorruptInput, ObjectMissing, Unsupported
from daemon.store.durable import is_local
from daemon.store.locations import FileMeta, Span, file_missing, store_away
from daemon.store.object_store import find_object
from daemon.store.places import BLOCK_BYTES, ArrowPlace, LocalPlace, Source

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

T = TypeVar("T")
R = TypeVar("R")

# PyIceberg 0.12 cuts a path at these characters, and so reads another file (FileIO.parse_location).
CUT_AT = "#?"
# More threads than cores: they wait for the store and hardly use the processor.
REQUESTS_AT_ONCE = 16


def check_path(path: str) -> None:
    """Raise `Unsupported` for a path that our clients cut or refuse, `CorruptInput` for one that no file can have."""
    if "\0" in path:
        raise CorruptInput("the path contains a NUL", path=path, hint="Fix the program that wrote this path.")
    if any(sign in path for sign in CUT_AT):
        raise Unsupported(
            "the path contains '#' or '?': PyIceberg cuts the path there and would read the wrong file or none",
            path=path,
            hint="Move the table to a location without these characters.",
            lifted_by="copy",
        )
    _check_parts(path)


def _check_parts(path: str) -> None:
    scheme, _, rest = path.partition("://")
    # Without a host, HDFS is the one that Hadoop's configuration names.
    names_no_bucket = rest.startswith("/") and scheme not in ("hdfs", "viewfs")
    if not is_local(path) and (names_no_bucket or "//" in rest):
        raise Unsupported(
            "the path has an empty part between two slashes: a store may have such keys, but our clients refuse them",
            path=path,
            hint="Move the table to a location without an empty part; if one slash is only a slip, correct `source`.",
        )


def map_files(function: Callable[[T], R], items: Sequence[T], path_of: Callable[[T], str]) -> list[R]:
    """Apply `function`, which uses the file `path_of(item)`, to each item. The results are in the order of `items`.

    Runs REQUESTS_AT_ONCE at a time for files on other machines. For local files, threads take longer than the reads.
    """
    if len(items) < 2 or all(is_local(path_of(item)) for item in items):
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), REQUESTS_AT_ONCE), thread_name_prefix="request") as pool:
        return list(pool.map(function, items))


class FileIOStorage:
    """The files of all stores, with PyIceberg's properties of a FileIO (as in `config.yaml`, `storage:`).

    All methods raise `ObjectStoreAway` when a store does not answer, and `ObjectMissing` for a file that is read or
    `stat`ed and is not there. On S3 each of them is one request, except listings of many files.
    """

    # Whether a catalog says which files of the log there are.
    is_ratified: ClassVar[bool] = False

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self._properties = dict(properties or {})

    def __getstate__(self) -> dict[str, object]:
        # Clients stay in their process.
        return {name: value for name, value in self.__dict__.items() if name != "_io"}

    @property
    def properties(self) -> Mapping[str, str]:
        return self._properties

    @cached_property
    def _io(self) -> PyArrowFileIO:
        from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415 - see LocalPlace

        return PyArrowFileIO(dict(self.properties))

    def _at(self, path: str) -> ArrowPlace:
        if is_local(path):
            return LocalPlace(path, lambda: self._io)
        _check_parts(path)
        return find_object(self.properties, path, lambda: self._io) or ArrowPlace(path, lambda: self._io)

    def find_missing(self, paths: Sequence[str]) -> list[str]:
        """Return those of `paths` that do not exist, with one request for each."""
        exist = map_files(self.exists, paths, str)
        return [path for path, exists in zip(paths, exist, strict=True) if not exists]

    def exists(self, path: str) -> bool:
        with self._errors(path), suppress(FileNotFoundError, NotADirectoryError):
            return self._at(path).exists()
        return False

    def is_unratified(self, version: int) -> bool:
        """Return whether a catalog says that the table has no such version. No request to the store."""
        return False

    def appears_whole(self, path: str) -> bool:
        """Return whether a file at `path` is complete as soon as it exists."""
        with self._errors(path):
            return self._at(path).appears_whole

    def stat(self, path: str) -> FileMeta:
        with self._errors(path), suppress(FileNotFoundError, NotADirectoryError):
            if found := self._at(path).find():
                return found
        raise file_missing(path)

    def read(self, path: str, span: Span | None = None) -> bytes:
        """Return all bytes, or those in `span`; fewer only if the file ends inside `span`."""
        with self._errors(path):
            return self._at(path).read(span)

    def read_blocks(self, path: str) -> tuple[FileMeta, Iterator[bytes]]:
        """Return the file's metadata and all of its bytes, in blocks of about BLOCK_BYTES.

        The metadata is as old as the bytes, or older: if a writer appends later, its size or time differs.
        """
        with self._errors(path):
            meta, blocks = self._at(path).stream() or (self.stat(path), self._blocks(path))
        return meta, self._checked(path, blocks)

    def _blocks(self, path: str) -> Iterator[bytes]:
        with self.open_input(path) as file:
            while block := bytes(file.read(BLOCK_BYTES)):
                yield block

    def read_tail(self, path: str, size: int) -> tuple[FileMeta, bytes]:
        """Return the file's metadata and its last `size` bytes, or all of a smaller file."""
        with self._errors(path):
            if tail := self._at(path).read_tail(size):
                return tail
            meta = self.stat(path)
            with self.open_input(path) as file:
                file.seek(max(0, meta.size - size))
                return meta, file.read()

    def open_input(self, path: str) -> Source:
        """Open the file for random access by Arrow's readers."""
        with self._errors(path):
            return self._at(path).open()

    def delete(self, path: str) -> None:
        """Remove one file. A missing file is no error."""
        with self._errors(path), suppress(FileNotFoundError):
            self._at(path).delete()

    def list_below(self, directory: str) -> Iterator[FileMeta]:
        """List all files below `directory`, at any depth and in no order."""
        with self._errors(directory):
            return self._at(directory).below()

    def list_folders(self, directory: str) -> list[str]:
        """Return the sorted names of the folders directly in `directory`. Raises ObjectMissing if it is no folder."""
        with self._errors(directory):
            try:
                entries = self._at(directory).entries(allow_not_found=False)
            except (FileNotFoundError, NotADirectoryError) as error:
                hint = "Create or mount the folder, or correct the pattern in source."
                raise ObjectMissing("the folder is not there", path=directory, hint=hint) from error
        return sorted(name for name, file in entries.items() if file is None)

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        """List the files directly in `directory` with names greater than `after`, sorted by name. It may be missing."""
        entries: dict[str, FileMeta | None] = {}
        with self._errors(directory), suppress(FileNotFoundError):
            entries = self._at(directory).entries(allow_not_found=True)
        return (file for name, file in sorted(entries.items()) if file is not None and name > after)

    def _checked(self, path: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
        with self._errors(path):
            yield from blocks

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise file_missing(path) from error
        except OSError as error:
            raise store_away(path, error) from error
