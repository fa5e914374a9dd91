"""A power cut, as file systems may play it: what was not forced to the disk by `fsync` is forgotten."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

# SQLite forces its own files to the disk, by calls that are not seen here.
DATABASES = re.compile(r"(catalog|state)\.db.*")


class Disk:
    """What of `folder` is on the disk: of a file its bytes, and of a folder its names, at their last `fsync`.

    What was there in the beginning is. `deaf_to` are the paths for which `fsync` does nothing.
    """

    def __init__(self, folder: Path, deaf_to: str | None = None) -> None:
        self._folder = folder
        self._deaf_to = re.compile(deaf_to) if deaf_to else None
        self._files: dict[Path, bytes] = {}
        self._names: dict[Path, set[str]] = {}
        folder.mkdir(exist_ok=True)
        for place, folders, files in os.walk(folder):
            self._names[Path(place)] = {*folders, *files}
            self._files |= {Path(place, name): Path(place, name).read_bytes() for name in files}
        self._fsync = os.fsync
        os.fsync = self._forced  # type: ignore[assignment]

    def _forced(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if self._deaf_to and self._deaf_to.search(str(path)):
            return
        if path.is_dir():
            self._names[path] = {each.name for each in path.iterdir()}
        else:
            self._files[path] = path.read_bytes()

    def cut(self, *, keeps_names: bool) -> None:
        """Leave what is on the disk. With `keeps_names` a file that is not is there all the same, without its bytes."""
        os.fsync = self._fsync
        for place, folders, files in os.walk(self._folder):
            names = self._names.get(Path(place), set())
            for name in folders if not keeps_names else ():
                if name not in names:
                    shutil.rmtree(Path(place, name))
            folders[:] = [name for name in folders if keeps_names or name in names]
            for name in files:
                path = Path(place, name)
                if DATABASES.fullmatch(name):
                    continue
                if not keeps_names and name not in names:
                    path.unlink()
                elif path.read_bytes() != (safe := self._files.get(path, b"")):
                    path.write_bytes(safe)
