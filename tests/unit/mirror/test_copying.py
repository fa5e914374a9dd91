"""A mirror's bytes: those of the file before its footer, and the new footer, wherever the two are."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.errors import CorruptInput, ObjectMissing, ObjectStoreAway
from daemon.mirror import copying
from daemon.mirror.copying import MirrorCopy, copy_bytes, is_copied_by_store
from daemon.store.storage import FileIOStorage

DATA = bytes(range(256)) * 5000
TAIL = b"a new footer"


def copy(folder: Path, size_bytes: int = len(DATA)) -> Path:
    source = folder / "f#?.parquet"
    if not source.exists():
        source.write_bytes(DATA + b"the old one")
    mirror = folder / "mirrors" / "below" / "f.parquet"
    written = copy_bytes(MirrorCopy(str(source), size_bytes, TAIL, f"file://{mirror}"), FileIOStorage(), {})
    assert written == size_bytes + len(TAIL)
    return mirror


def test_local_files_are_copied_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may copy less than it was asked to; nothing is read here."""
    real: Callable[..., int] = os.copy_file_range
    asked = []

    def some(file: int, mirror: int, size: int) -> int:
        asked.append(size)
        return real(file, mirror, min(size, 500_000))

    monkeypatch.setattr(os, "copy_file_range", some)
    monkeypatch.setattr(os, "read", None)
    assert copy(tmp_path).read_bytes() == DATA + TAIL
    assert asked == [len(DATA), len(DATA) - 500_000, len(DATA) - 1_000_000]


def test_stores_that_copy_nothing_themselves() -> None:
    """What goes through this process: small files, other stores, and what is not on one store."""
    told = {"s3.region": "us-east-1", "s3.access-key-id": "key", "s3.secret-access-key": "secret"}
    at, large = "s3://lake/t/f", 5 << 20
    assert is_copied_by_store(at, large, "s3a://warehouse/m", told, told)
    assert is_copied_by_store("/lake/f", 1, "file:///warehouse/m", told, told)
    for path, size_bytes, mirror in [
        (at, large - 1, "s3://warehouse/m"),
        (at, large, "file:///warehouse/m"),
        ("gs://lake/f", large, "gs://warehouse/m"),
        ("abfss://lake@account.dfs.core.windows.net/f", large, "abfss://lake@account.dfs.core.windows.net/m"),
    ]:
        assert not is_copied_by_store(path, size_bytes, mirror, told, told)
    assert not is_copied_by_store(at, large, at, told, {**told, "s3.endpoint": "http://localhost:9"})


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, 0])
def test_file_systems_that_cannot_copy(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are read in blocks, and written where writes are short. Some say no by copying nothing."""

    def refuse(*_: Any) -> int:
        if number:
            raise OSError(number, "no")
        return 0

    real = os.write
    monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:70_000]))
    monkeypatch.setattr(copying, "BLOCK_BYTES", 100_000)
    assert copy(tmp_path).read_bytes() == DATA + TAIL


@pytest.mark.parametrize("failing", ["copy_file_range", "write", "replace"])
def test_a_failure_leaves_no_file(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is one; an older mirror stays whole, and the next attempt replaces it."""
    mirror = copy(tmp_path)

    def fail(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, fail)
        patched.setattr(Path, "replace", fail if failing == "replace" else Path.replace)
        with pytest.raises(ObjectStoreAway, match="no space left"):
            copy(tmp_path, 1000)
    assert [each.name for each in mirror.parent.iterdir()] == ["f.parquet"]
    assert mirror.read_bytes() == DATA + TAIL
    assert copy(tmp_path, 1000).read_bytes() == DATA[:1000] + TAIL


def test_a_kill_leaves_no_half_file_under_the_name(tmp_path: Path) -> None:
    """At any step: what there is then has another name, which ends with the mirror's."""
    source, mirror = tmp_path / "f.parquet", tmp_path / "m" / "f.parquet"
    source.write_bytes(DATA)
    steps = ["copy_file_range", "write", "rename"]
    for number, step in enumerate(steps):
        if not (child := os.fork()):
            if step == "rename":
                Path.replace = lambda *_: os._exit(0)  # type: ignore[assignment, method-assign]
            else:
                setattr(os, step, lambda *_: os._exit(0))
            copy_bytes(MirrorCopy(str(source), len(DATA), TAIL, str(mirror)), FileIOStorage(), {})
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert not mirror.exists()
        left = list(mirror.parent.iterdir())
        assert len(left) == number + 1 and all(each.name.endswith("-f.parquet") for each in left)


def test_a_file_that_is_gone_or_shorter(tmp_path: Path) -> None:
    """It is not the one that was inspected, so nothing of it is kept."""
    with pytest.raises(CorruptInput, match="the file has fewer than the 2000000 bytes before its footer"):
        copy(tmp_path, 2_000_000)
    assert list((tmp_path / "mirrors" / "below").iterdir()) == []
    with pytest.raises(ObjectMissing):
        copy_bytes(MirrorCopy(f"{tmp_path}/none", 1, TAIL, f"{tmp_path}/m"), FileIOStorage(), {})
