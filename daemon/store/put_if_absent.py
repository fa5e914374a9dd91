"""Writes a file that was not there before, whole or not at all: by `link` on local disks, else by a conditional PUT.

Of two writers of one path, one wins. Only what writes Delta tables may import this module; a test checks that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from errno import EACCES, EDQUOT, EMLINK, ENOENT, ENOSPC, ENOSYS, ENOTDIR, ENOTSUP, EPERM, EROFS, EXDEV
from functools import lru_cache
from pathlib import Path
from typing import Final, NoReturn
from uuid import uuid4

from daemon.errors import CommitOutcomeUnknown, ObjectStoreAway, Unsupported
from daemon.store.durable import force_to_disk, is_local, local_path
from daemon.store.locations import store_away
from daemon.store.object_store import StoredObject, as_os_errors, find_object, open_google

# Of file systems without hard links, or with another one mounted below the table.
NO_LINKS: Final = (EPERM, ENOTSUP, ENOSYS, EXDEV, EMLINK)
# What surely left nothing behind.
NOT_DONE: Final = (ENOENT, ENOTDIR, EACCES, EROFS, ENOSPC, EDQUOT)
GOOGLE_SCHEMES: Final = ("gs", "gcs")
# Nothing names such a file, and Delta's VACUUM removes it: it is in no folder that VACUUM passes over.
STAGED: Final = "dvsync-{}.tmp"
HINT_UNKNOWN: Final = "In a minute, run it again: if the rows are deleted already, it finds none."


def put_if_absent(path: str, data: bytes, table: str, properties: Mapping[str, str]) -> bool:
    """Write the file at `path` in the Delta table at `table`; False if there is one already, which stays as it is.

    `properties` are those of the table's FileIO. A local file is on the disk afterwards. What a kill leaves behind is
    nothing, the whole file, or on a local disk a file in the table's folder that nothing names.

    Raises `Unsupported` for a store that cannot do this, `ObjectStoreAway` if nothing was written, and
    `CommitOutcomeUnknown` if the store did not say whether.
    """
    return _link(path, data, table) if is_local(path) else _put(path, data, table, properties)


def _link(path: str, data: bytes, table: str) -> bool:
    target = local_path(path)
    staged = local_path(table) / STAGED.format(uuid4())
    try:
        _write_to_disk(staged, data)
        if not _has_linked(staged, target):
            return False
        force_to_disk([path])
    except ObjectStoreAway as error:
        # By its folder's old content, the file may be missing after a power cut.
        raise _unknown(path, error) from error
    except OSError as error:
        if error.errno in NO_LINKS:
            raise _refused(path, f"no hard link can be made: {error.strerror}") from error
        if error.errno in NOT_DONE:
            raise store_away(path, error) from error
        raise _unknown(path, error) from error
    finally:
        with suppress(OSError):
            staged.unlink()
    return True


def _has_linked(staged: Path, target: Path) -> bool:
    try:
        os.link(staged, target)
    except FileExistsError:
        # On NFS, the answer to a link may be lost, and the second request finds what the first one made.
        return os.path.samefile(staged, target)
    return True


def _write_to_disk(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _put(path: str, data: bytes, table: str, properties: Mapping[str, str]) -> bool:
    try:
        found = _find(path, properties)
        if found is None:
            raise _refused(path, "dvsync only knows how to do this on local disks, S3 with keys, ADLS and GCS")
        # AWS has it, and not each store that speaks its protocol: some overwrite. The environment may name one, too.
        if not _is_conditional(table, frozenset(properties.items())):
            raise _refused(path, "the store overwrites files in spite of the condition")
    except OSError as error:
        raise store_away(path, error) from error
    try:
        return _create(found, data)
    except OSError as error:
        raise _unknown(path, error) from error


def _find(path: str, properties: Mapping[str, str]) -> StoredObject | None:
    scheme, _, rest = path.partition("://")
    if scheme not in GOOGLE_SCHEMES:
        return find_object(properties, path, _no_arrow)
    bucket, _, key = rest.partition("/")
    store = open_google(bucket, properties)
    return StoredObject(store, key, path, _no_arrow) if store else None


def _no_arrow() -> NoReturn:
    raise AssertionError("only obstore's client writes here")


def _create(found: StoredObject, data: bytes) -> bool:
    import obstore  # noqa: PLC0415 - most processes use no object store
    from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

    with as_os_errors():
        try:
            obstore.put(found.store, found.key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
    return True


@lru_cache(maxsize=64)
def _is_conditional(table: str, frozen: frozenset[tuple[str, str]]) -> bool:
    """Return whether the store refuses to write a file a second time: it is asked to. Raises OSError."""
    properties, path = dict(frozen), f"{table}/{STAGED.format(uuid4())}"
    probe = _find(path, properties)
    assert probe is not None, "the store of the table was found"
    try:
        return _create(probe, b"1") and not _create(probe, b"2")
    finally:
        with suppress(OSError), as_os_errors():
            probe.store.delete(probe.key)


def _unknown(path: str, error: Exception) -> CommitOutcomeUnknown:
    """The file may have come, or may still come."""
    what = f"the store did not say whether it has written the file: {error}"
    return CommitOutcomeUnknown(what, path=path, hint=HINT_UNKNOWN)


def _refused(path: str, why: str) -> Unsupported:
    return Unsupported(
        f"the store cannot write a file only if it is not there yet: {why}",
        path=path,
        hint="Two writers could commit one version of the Delta table, and one of them would be lost. Delete the rows "
        "with Delta.",
    )
