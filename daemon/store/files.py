"""What is said of a file, wherever it is, and the errors of its store."""

from __future__ import annotations

from dataclasses import dataclass

from daemon.errors import ObjectMissing, ObjectStoreAway


@dataclass(frozen=True)
class Span:
    """A half-open range of bytes: `size` bytes from `offset`."""

    offset: int
    size: int


@dataclass(frozen=True)
class FileMeta:
    """Metadata of one file, from a listing or `stat`. `modified_ms` is by the store's clock, epoch, UTC."""

    path: str
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[1]


def file_missing(path: str) -> ObjectMissing:
    return ObjectMissing(
        "the file is not there",
        path=path,
        hint="Restore it, or take it out of the Delta table with RESTORE or an overwrite: dvsync continues by itself.",
    )


def store_away(path: str, error: OSError) -> ObjectStoreAway:
    if isinstance(error, PermissionError):
        hint = "Give the user that runs dvsync the right to read the file and its folders, or to write there."
        return ObjectStoreAway(f"the store refuses: {error}", path=path, hint=hint)
    return ObjectStoreAway(
        f"the store does not answer: {error}", path=path, hint="Check the store, the network and the credentials."
    )
