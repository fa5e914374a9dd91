"""What is forced to the disk, by which calls; that it is enough is shown in tests/faults/test_power_cut.py."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from daemon.errors import ObjectStoreAway
from daemon.store import durable
from daemon.store.durable import force_to_disk, make_folder_of


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that `fsync` was called for."""
    paths: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: paths.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    return paths


def test_each_file_and_each_folder_is_forced_once(tmp_path: Path, forced: list[str]) -> None:
    """However a path is spelled; objects of other stores are passed over."""
    files = [tmp_path / name for name in ("a", "b", "c")]
    for file in files:
        file.touch()
    force_to_disk([f"file://{files[0]}", f"file:{files[1]}", str(files[2]), str(files[0]), "s3://bucket/d"])
    assert sorted(forced) == sorted(map(str, [tmp_path, *files]))
    forced.clear()
    force_to_disk(["s3://bucket/d"])
    assert forced == []


def test_new_folders_are_forced_up_to_the_first_that_was_there(tmp_path: Path, forced: list[str]) -> None:
    """A folder's name is in the one above it; where the folder is there, nothing is forced."""
    path = f"file://{tmp_path}/warehouse/lake/t/f.parquet"
    make_folder_of(path)
    assert forced == [str(tmp_path), f"{tmp_path}/warehouse", f"{tmp_path}/warehouse/lake"]
    assert (tmp_path / "warehouse" / "lake" / "t").is_dir()
    make_folder_of(path)
    make_folder_of("s3://bucket/folder/f.parquet")
    assert len(forced) == 3


def test_a_disk_that_fails_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be forced is an error; a folder is not, where the file system cannot force folders."""
    (tmp_path / "f").touch()

    def fail(number: int, *, for_folders: bool) -> None:
        def fsync(descriptor: int) -> None:
            if os.path.isdir(f"/proc/self/fd/{descriptor}") is for_folders:
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(durable.os, "fsync", fsync)

    fail(errno.EINVAL, for_folders=True)
    force_to_disk([f"{tmp_path}/f"])
    for for_folders in (True, False):
        fail(errno.EIO, for_folders=for_folders)
        with pytest.raises(ObjectStoreAway, match="Input/output error"):
            force_to_disk([f"{tmp_path}/f"])
