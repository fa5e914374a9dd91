"""Makes a mirror of a file's first bytes and a new end. They do not pass through this process if the store copies them.

A local file system copies them by `copy_file_range`, by reference where it can. S3 copies parts of objects. All else is
read and written in blocks: files below 5 MiB, other stores, and sources that the target's credentials may not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EBADF, EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EXDEV
from functools import lru_cache
from typing import ClassVar, Final

from pyiceberg.io import OutputStream

from daemon.errors import CorruptInput, SyncError
from daemon.iceberg.delete_file_writer import DeleteFileWriter
from daemon.iceberg.pyiceberg_ext.file_io import StoreFileIO
from daemon.store import s3_parts
from daemon.store.durable import is_local, local_path, place_to_write, put_in_place
from daemon.store.locations import Span, file_missing, store_away
from daemon.store.object_store import find_access
from daemon.store.places import BLOCK_BYTES
from daemon.store.s3_parts import PART_BYTES_MIN, PartNotCopied, make_of_parts
from daemon.store.storage import FileIOStorage

# Of file systems that cannot copy between these two files, and kernels that cannot copy at all.
NOT_COPIED: Final = (EXDEV, EOPNOTSUPP, EINVAL, ENOSYS, EBADF, EPERM)
# What decides where a store is.
PLACE_KEYS: Final = ("s3.endpoint",)
# PyIceberg's property of a FileIO.
BUFFER_SIZE: Final = "buffer-size"


class MirrorWriter(DeleteFileWriter):
    """Writes a mirror from blocks; it gets its name when it is whole."""

    what: ClassVar[str] = "mirror"

    @property
    def stream(self) -> OutputStream:
        """Where to write; what it raises is not raised as ObjectStoreAway but in a block of `storing`."""
        return self._stream

    @contextmanager
    def storing(self) -> Iterator[None]:
        with self._storing():
            yield

    def finish(self) -> None:
        with self._storing():
            self._finish()

    def abort(self) -> None:
        super().abort()
        if not self._finished:
            with suppress(SyncError):
                remove_uploads(self.path, self._io.properties)


def remove_uploads(mirror: str, target_properties: Mapping[str, str]) -> None:
    """Remove what writers of a mirror that failed, or were killed, may have left on S3. Raises ObjectStoreAway."""
    bucket, key = _s3_place(mirror)
    try:
        access = find_access(bucket, target_properties) if bucket else None
        if access:
            s3_parts.remove_uploads(access, key)
    except OSError as error:
        raise store_away(mirror, error) from error


def open_mirror(mirror: str, target_properties: Mapping[str, str]) -> MirrorWriter:
    # Local files are written in large blocks anyway: PyIceberg's buffer would only copy them.
    properties = {**target_properties, BUFFER_SIZE: "0"} if is_local(mirror) else dict(target_properties)
    return MirrorWriter(StoreFileIO(properties), mirror, at_once=True)


@dataclass(frozen=True)
class MirrorCopy:
    """The file to write at `mirror`: the first `size_bytes` of the file at `path`, then `tail`."""

    path: str
    size_bytes: int
    tail: bytes
    mirror: str


def copy_bytes(copy: MirrorCopy, source: FileIOStorage, target_properties: Mapping[str, str]) -> int:
    """Write the file, and return its size in bytes.

    `target_properties` are those of the mirror's FileIO. A file appears under its name when it is whole; an older one,
    of another attempt, is replaced. A local one is not forced to the disk yet: see `force_to_disk`.

    Raises `ObjectMissing`, `ObjectStoreAway`, and `CorruptInput` if the file has fewer bytes. What a kill leaves behind
    is, on local disks, a file whose name ends with the mirror's, and on S3 an upload that is not complete.
    """
    if is_local(copy.path) and is_local(copy.mirror):
        _copy_locally(copy)
    elif not _copy_on_s3(copy, source, target_properties):
        _stream(copy, source, target_properties)
    return copy.size_bytes + len(copy.tail)


def is_copied_by_store(
    path: str, size_bytes: int, mirror: str, source: Mapping[str, str], target_properties: Mapping[str, str]
) -> bool:
    """Return whether the first bytes of a file reach a mirror without passing through this process.

    On S3 only if the target's credentials may read the file, which is not asked here.
    """
    if is_local(path) and is_local(mirror):
        return True
    may_s3_copy = _may_s3_copy(path, size_bytes, mirror, source, target_properties)
    return may_s3_copy and _has_access(_s3_place(mirror)[0], frozenset(target_properties.items()))


def _may_s3_copy(
    path: str, size_bytes: int, mirror: str, source: Mapping[str, str], target_properties: Mapping[str, str]
) -> bool:
    """Whether both are in one store of S3, and the bytes are enough for a part, so that it can copy them by itself."""
    is_on_s3 = bool(_s3_place(path)[0] and _s3_place(mirror)[0])
    is_same = all(source.get(name) == target_properties.get(name) for name in PLACE_KEYS)
    return is_on_s3 and is_same and size_bytes >= PART_BYTES_MIN


# For many files; credentials may cost a request.
@lru_cache(maxsize=64)
def _has_access(bucket: str, properties: frozenset[tuple[str, str]]) -> bool:
    with suppress(OSError):
        return find_access(bucket, dict(properties)) is not None
    return False


def _copy_locally(copy: MirrorCopy) -> None:
    try:
        file = os.open(local_path(copy.path), os.O_RDONLY)
    except FileNotFoundError as error:
        raise file_missing(copy.path) from error
    except OSError as error:
        raise store_away(copy.path, error) from error
    try:
        place = place_to_write(copy.mirror, at_once=True)
        try:
            with local_path(place).open("xb", buffering=0) as mirror:
                _copy_range(file, mirror.fileno(), copy)
                _write_whole(mirror.fileno(), copy.tail)
            put_in_place(place, copy.mirror)
        except BaseException:
            with suppress(OSError):
                local_path(place).unlink()
            raise
    except OSError as error:
        raise store_away(copy.mirror, error) from error
    finally:
        os.close(file)


def _copy_range(file: int, mirror: int, copy: MirrorCopy) -> None:
    left, by_kernel = copy.size_bytes, hasattr(os, "copy_file_range")
    while left:
        if by_kernel:
            try:
                done = os.copy_file_range(file, mirror, left)
            except OSError as error:
                if error.errno not in NOT_COPIED:
                    raise
                done = 0
            # Some file systems of the network copy nothing, as if the file had ended: a read says whether it has.
            if not done:
                by_kernel = False
                continue
        else:
            block = os.read(file, min(left, BLOCK_BYTES))
            _write_whole(mirror, block)
            done = len(block)
        if not done:
            raise _shorter(copy)
        left -= done


def _write_whole(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _copy_on_s3(copy: MirrorCopy, source: FileIOStorage, target_properties: Mapping[str, str]) -> bool:
    """Return whether S3 made the mirror. False if the bytes must be streamed."""
    if not _may_s3_copy(copy.path, copy.size_bytes, copy.mirror, source.properties, target_properties):
        return False
    bucket, key = _s3_place(copy.mirror)
    try:
        access = find_access(bucket, target_properties)
        if access is None:
            return False
        make_of_parts(access, key, _s3_place(copy.path), copy.size_bytes, copy.tail)
    except PartNotCopied:
        return False
    except OSError as error:
        raise store_away(copy.mirror, error) from error
    # S3 refuses a range beyond the end, but not each store that speaks its protocol.
    target = FileIOStorage(target_properties)
    if target.stat(copy.mirror).size != copy.size_bytes + len(copy.tail):
        target.delete(copy.mirror)
        raise _shorter(copy)
    return True


def _s3_place(path: str) -> tuple[str, str]:
    """Return bucket and key; nothing for a path on another store, or with a key that not all clients take."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    is_plain = scheme in ("s3", "s3a", "s3n") and not any(part in ("", ".", "..") for part in key.split("/"))
    return (bucket, key) if is_plain else ("", "")


def _stream(copy: MirrorCopy, source: FileIOStorage, target_properties: Mapping[str, str]) -> None:
    with open_mirror(copy.mirror, target_properties) as writer:
        for start in range(0, copy.size_bytes, BLOCK_BYTES):
            span = Span(start, min(BLOCK_BYTES, copy.size_bytes - start))
            block = source.read(copy.path, span)
            if len(block) != span.size:
                raise _shorter(copy)
            with writer.storing():
                writer.stream.write(block)
        with writer.storing():
            writer.stream.write(copy.tail)
        writer.finish()


def _shorter(copy: MirrorCopy) -> CorruptInput:
    return CorruptInput(
        f"the file has fewer than the {copy.size_bytes} bytes before its footer",
        path=copy.path,
        hint="The file was cut or replaced meanwhile: restore it in the Delta table.",
    )
