"""What a power cut must not take: files and folders on local file systems, forced to the disk before they are named.

Paths on other stores are passed over: an object that a store has confirmed is there.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from errno import EACCES, EINVAL, ENOTSUP
from pathlib import Path
from threading import Lock
from typing import Final

from daemon.locations import canonical
from daemon.storage import store_away

# File systems write what is asked for at the same time in one go: twenty files take hardly longer than two.
FORCED_AT_ONCE: Final = 16
# Some file systems cannot force a folder, and a folder that may not be read cannot be opened for it.
NO_FOLDER_SYNC: Final = (EACCES, EINVAL, ENOTSUP)

_LOCAL: Final = "file://"
# A folder that another thread has just made is in the next one's way until it is on the disk.
_making = Lock()


def make_folder_of(path: str) -> None:
    """Make the folder of a local file to be, with all that are missing above it, each forced to the disk.

    Raises OSError.
    """
    if not is_local(path):
        return
    folder = _local(path).parent
    with _making:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            _force_folder(each.parent)


def force_to_disk(paths: Collection[str]) -> None:
    """Return once these files, and their names in their folders, would be there after a power cut.

    Raises ObjectStoreAway, which leaves open which of them would.
    """
    files = {_local(path) for path in paths if is_local(path)}
    if not files:
        return
    folders = {file.parent for file in files}
    with ThreadPoolExecutor(min(len(files) + len(folders), FORCED_AT_ONCE), thread_name_prefix="force") as pool:
        forced = [pool.submit(_force_file, file) for file in files]
        forced += [pool.submit(_force_folder, folder) for folder in folders]
    try:
        for each in forced:
            each.result()
    except OSError as error:
        raise store_away(error.filename or next(iter(paths)), error) from error


def is_local(path: str) -> bool:
    """Whether `path` is a file's of a mounted file system, in any of its spellings."""
    return canonical(path).startswith(_LOCAL)


def _local(path: str) -> Path:
    return Path(canonical(path).removeprefix(_LOCAL))


def _force_file(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _force_folder(folder: Path) -> None:
    try:
        _force_file(folder)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
