"""What the operating system says of local files is what Arrow's own file system says of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow.fs import FileInfo, FileSelector, FileType, LocalFileSystem

from daemon.errors import ObjectMissing, ObjectStoreAway
from daemon.store.locations import FileMeta, Span
from daemon.store.storage import FileIOStorage

ARROW = LocalFileSystem()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files and folders with odd names, links of every kind, and what is neither file nor folder."""
    folder = tmp_path / "a b#ü"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "deep.txt").write_text("deep")
    (folder / "one%20.json").write_text("12345")
    (folder / "empty").touch()
    os.utime(folder / "empty", ns=(0, 1_700_000_000_123_456_789))
    (folder / "to-file").symlink_to("one%20.json")
    (folder / "to-folder").symlink_to("inner")
    (folder / "to-nothing").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    return folder


def meta_of(directory: Path, info: FileInfo) -> FileMeta:
    return FileMeta(f"file://{directory}/{info.base_name}", info.size, info.mtime_ns // 1_000_000)


def test_a_listing_is_that_of_arrow(folder: Path) -> None:
    """Files by their names, after a name and sorted; folders by theirs; links lead to what they point at."""
    storage = FileIOStorage()
    infos = sorted(ARROW.get_file_info(FileSelector(str(folder))), key=lambda info: info.base_name)
    files = [meta_of(folder, info) for info in infos if info.type is FileType.File]
    assert [file.path.rsplit("/", 1)[1] for file in files] == ["empty", "one%20.json", "to-file"]
    assert list(storage.list_from(f"file://{folder}", after="")) == files
    assert list(storage.list_from(f"file://{folder}", after="empty")) == files[1:]
    folders = [info.base_name for info in infos if info.type is FileType.Directory]
    assert storage.list_folders(f"file://{folder}") == folders == ["inner", "to-folder"]


@pytest.mark.parametrize("spelled", ["{}", "file:{}", "file://{}"])
def test_each_entry_is_what_arrow_says(folder: Path, spelled: str) -> None:
    """By every spelling of a local path: a file with size and time, or nothing."""
    storage = FileIOStorage()
    for name in (*os.listdir(folder), "nowhere", "empty/below-a-file"):
        path = spelled.format(folder / name)
        info = ARROW.get_file_info(str(folder / name))
        assert storage.exists(path) is (info.type is FileType.File), name
        if info.type is FileType.File:
            assert storage.stat(path) == FileMeta(path, info.size, info.mtime_ns // 1_000_000)
        else:
            with pytest.raises(ObjectMissing):
                storage.stat(path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """It holds no files; to list its folders is a fault. Nor is a file a folder for anybody."""
    storage = FileIOStorage()
    assert list(storage.list_from(f"file://{tmp_path}/none", after="")) == []
    with pytest.raises(ObjectMissing, match="the folder is not there"):
        storage.list_folders(f"file://{tmp_path}/none")
    (tmp_path / "file").touch()
    with pytest.raises(ObjectMissing, match="the folder is not there"):
        storage.list_folders(f"file://{tmp_path}/file")
    with pytest.raises(ObjectStoreAway, match="the store does not answer"):
        storage.list_from(f"file://{tmp_path}/file", after="")


def test_a_file_system_that_fails(tmp_path: Path) -> None:
    """What the operating system refuses is told as a store that does not answer, with the path."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for look in (FileIOStorage().exists, FileIOStorage().stat, FileIOStorage().list_folders):
        with pytest.raises(ObjectStoreAway) as raised:
            look(f"file://{loop}")
        assert raised.value.path == f"file://{loop}"


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    """What is missing is not the end of the file: the read is tried again."""
    file = tmp_path / "f"
    file.write_bytes(b"0123456789")
    with FileIOStorage().open_input(f"file://{file}") as source:
        file.write_bytes(b"01234")
        with pytest.raises(ObjectStoreAway, match="of 6 bytes from 2 on, 3 came"):
            source.seek(2)
            source.read(6)


def test_a_span_is_cut_at_the_end_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    read = [FileIOStorage().read(f"file://{tmp_path}/f", span) for span in (Span(8, 5), Span(10, 5), Span(30, 1 << 62))]
    assert read == [b"89", b"", b""]
