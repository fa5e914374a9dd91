"""Mirrors in the place of Delta's files: by path and size alone, so Delta's identities stay what they are."""

from __future__ import annotations

import pickle

import pytest

from daemon.delta.actions import AddFile, Commit, RemoveFile
from daemon.delta.replay import fold_commits
from daemon.delta.uri import name_file
from daemon.errors import StateMismatch
from daemon.mirror.substitution import Mirrors, find_mirror_name, hash_path, name_mirror
from state import MirrorRecord

LOCATION = "s3://b/t"
MIRROR = "s3://w/t/data/7-x-footer-mirror.parquet"


def mirrors_of(data_file: str) -> Mirrors:
    return Mirrors.of(LOCATION, [MirrorRecord(MIRROR, data_file, 100, "footer", 130)])


def add_of(written: str, mirrors: Mirrors) -> AddFile:
    path, uri = name_file(LOCATION, written)
    return mirrors.applied(AddFile(path=path, partition_values={}, size=100, data_change=True, uri=uri))


def remove_of(written: str, mirrors: Mirrors) -> RemoveFile:
    path, uri = name_file(LOCATION, written)
    return mirrors.applied(RemoveFile(path=path, data_change=True, uri=uri))


def test_a_name_says_what_it_is_of() -> None:
    """Another file's is none, nor what a kill leaves behind."""
    name = name_mirror(12, "s3://b/t/a", "0123456789abcdef", "footer")
    assert find_mirror_name(f"s3://w/{name}") == (hash_path("s3://b/t/a"), "0123456789abcdef", "footer")
    for other in (f"{hash_path('u')}-{name}", f"{name}.crc", "a-mirror.parquet", name.replace("footer", "else")):
        assert find_mirror_name(f"s3://w/{other}") is None


def test_an_action_of_a_mirrored_file_is_one_of_its_mirror() -> None:
    """Any other stays as it is; back and forth, and in other processes."""
    mirrors = pickle.loads(pickle.dumps(mirrors_of(f"{LOCATION}/p=1/a")))
    add = add_of("p=1/a", mirrors)
    assert (add.path, add.size, add.uri) == (MIRROR, 130, "p=1/a")
    before = mirrors.undone(add)
    assert (before.path, before.size) == (f"{LOCATION}/p=1/a", 100)
    assert mirrors.applied(before) == add
    other = add_of("p=1/b", mirrors)
    assert (other.path, other.size, other.uri) == (f"{LOCATION}/p=1/b", 100, None)
    assert mirrors.surplus_bytes == 30


@pytest.mark.parametrize(
    ("live", "removed", "is_removed"),
    [
        ("x-y", "x-y", True),
        ("x-y", "k/../x-y", True),
        # Another spelling is another file for Delta.
        ("x-y", "x%2Dy", False),
        ("x%2Dy", "x-y", False),
        ("s3://b/t/x-y", "x-y", False),
        ("s3://b/t/x-y", "s3://b/t/x-y", True),
    ],
)
def test_spellings_are_judged_as_without_a_mirror(live: str, removed: str, is_removed: bool) -> None:
    """What a remove removes is independent of whether the file has a mirror."""
    for mirrors in (Mirrors(LOCATION, {}), mirrors_of(f"{LOCATION}/x-y")):
        add, remove = add_of(live, mirrors), remove_of(removed, mirrors)
        commit = Commit(version=2, timestamp_ms=0, removes=(remove,))
        change = fold_commits([commit], {add.path: add.identity})
        assert (change.removed == {add.path}) is is_removed


@pytest.mark.parametrize(("live", "removed"), [("a%3Cb", "a%3cb"), ("file:/x/y%3Cz", "file:///x/y%3cz")])
def test_what_nobody_can_tell_is_refused_as_without_a_mirror(live: str, removed: str) -> None:
    """Escapes in another case, and an empty authority."""
    for mirrors in (Mirrors(LOCATION, {}), mirrors_of(name_file(LOCATION, live)[0])):
        add, remove = add_of(live, mirrors), remove_of(removed, mirrors)
        assert add.path == remove.path
        with pytest.raises(StateMismatch):
            fold_commits([Commit(version=2, timestamp_ms=0, removes=(remove,))], {add.path: add.identity})
