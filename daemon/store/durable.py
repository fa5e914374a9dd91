"""Forces files and folders of local file systems to the disk, so that they survive a power cut.

A commit calls this before anything refers to the files. Paths on other stores are ignored: an object store confirms an
object only when it is safe.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from errno import EACCES, EINVAL, ENOTSUP
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import uuid4

from daemon.store.locations import canonical, store_away

# File systems combine fsync calls that arrive at the same time: twenty files take hardly longer than two.
FORCED_AT_ONCE: Final = 16
# Some file systems cannot fsync a folder, and a folder without read permission cannot be opened for it.
NO_FOLDER_SYNC: Final = (EACCES, EINVAL, ENOTSUP)

_LOCAL: Final = "file://"
# Without the lock, a thread could use a folder that another thread has created but not forced to the disk yet.
_making = Lock()


def make_folder_of(path: str) -> None:
    """Create the folder of a local file, and missing folders above, and force each to the disk. Raises OSError."""
    if not is_local(path):
        return
    folder = local_path(path).parent
    with _making:
        missing = list(takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            _force_folder(each.parent)


def place_to_write(path: str, *, at_once: bool) -> str:
    """Return the path to write a file to before `put_in_place`. Its folder exists. Raises OSError.

    With `at_once`, a complete file takes the place of an older one: two attempts of a Spark task may write the same
    file, one of them long after the other, and may be killed. On a local file system this is another name, which only a
    kill leaves behind. Other stores show a file when it is complete.
    """
    make_folder_of(path)
    if not (at_once and is_local(path)):
        return path
    folder, _, name = path.rpartition("/")
    return f"{folder}/{uuid4()}-{name}"


def put_in_place(place: str, path: str) -> None:
    """Give the complete file at `place` its name. Raises OSError."""
    if place != path:
        local_path(place).replace(local_path(path))


def force_to_disk(paths: Collection[str]) -> None:
    """Return once these files, and their names in their folders, would survive a power cut.

    Raises ObjectStoreAway; some of the files may then be on the disk and others not.
    """
    files = {local_path(path) for path in paths if is_local(path)}
    if not files:
        return
    first, *others = files
    try:
        # To start a thread takes longer than most fsync calls need of the processor: this one does its part.
        with ThreadPoolExecutor(FORCED_AT_ONCE, thread_name_prefix="force") as pool:
            forced = [pool.submit(_force, file) for file in others]
            _force(first)
        for each in forced:
            each.result()
        # The journal of a file system has them already, together with the files.
        for folder in {file.parent for file in files}:
            _force_folder(folder)
    except OSError as error:
        raise store_away(error.filename or next(iter(paths)), error) from error


def is_local(path: str) -> bool:
    """Return whether `path` is on a local file system, in any of its spellings."""
    return canonical(path).startswith(_LOCAL)


def local_path(path: str) -> Path:
    return Path(canonical(path).removeprefix(_LOCAL))


def _force(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _force_folder(folder: Path) -> None:
    try:
        _force(folder)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
