"""The records in which the state store answers what operators ask about a table: sums, and the worst files."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from state.records import FileKind, FileStatus, LiveFile

# A reason may name a value, so there may be one for each file.
MIRROR_REASONS_MAX = 20
OTHER_REASONS = "other reasons"


class WrittenCount(msgspec.Struct, frozen=True):
    """The files of one kind and status: how many, and since when the oldest has the status.

    `size_bytes` is the sum of the known sizes, None if none is known.
    """

    kind: FileKind
    status: FileStatus
    files: int
    size_bytes: int | None
    oldest_since_ms: int


class MirrorCount(msgspec.Struct, frozen=True):
    """The mirrors of one kind and for one reason that the newest snapshot shows: how many, and their bytes.

    `why` is what readers would misread in their data files; None if the state store was rebuilt since they were made.
    """

    kind: str
    why: str | None
    files: int
    size_bytes: int


def most_frequent(mirrors: Iterable[MirrorCount]) -> tuple[MirrorCount, ...]:
    """Return the MIRROR_REASONS_MAX with the most files, then the others of each kind as one, for OTHER_REASONS."""
    ordered = sorted(mirrors, key=lambda each: (-each.files, each.kind, each.why or ""))
    kept, others = ordered[:MIRROR_REASONS_MAX], ordered[MIRROR_REASONS_MAX:]
    for kind in sorted({each.kind for each in others}):
        of_kind = [each for each in others if each.kind == kind]
        sums = sum(each.files for each in of_kind), sum(each.size_bytes for each in of_kind)
        kept.append(MirrorCount(kind, OTHER_REASONS, *sums))
    return tuple(kept)


class TableCounts(msgspec.Struct, frozen=True):
    """Sums for operators. `live_rows` = physical rows minus deleted positions. For `mirrors` see `most_frequent`."""

    live_data_files: int
    live_rows: int
    deleted_positions: int
    live_bytes: int
    written: tuple[WrittenCount, ...] = ()
    mirrors: tuple[MirrorCount, ...] = ()

    @property
    def live_delete_files(self) -> int:
        """Delete files that the newest snapshot shows."""
        return sum(
            each.files for each in self.written if (each.kind, each.status) == (FileKind.DELETE_FILE, FileStatus.LIVE)
        )

    @property
    def orphans(self) -> tuple[WrittenCount, ...]:
        """The files that wait for cleanup, by kind."""
        return tuple(each for each in self.written if each.status is FileStatus.ORPHANED)


class VectorCount(msgspec.Struct, frozen=True):
    """The deletion vectors of one storage type: how many, their bytes and their positions."""

    storage_type: str
    vectors: int
    size_bytes: int
    positions: int


class PartitionCount(msgspec.Struct, frozen=True):
    """The live data files of one partition. `rows` are physical rows, of which `deleted_positions` are deleted."""

    spec_id: int
    partition: tuple[str | None, ...]
    data_files: int
    rows: int
    deleted_positions: int


class ServingFile(msgspec.Struct, frozen=True):
    """A delete file that is live since `since_ms`, and the number of data files whose positions it holds."""

    path: str
    size_bytes: int
    positions: int
    since_ms: int
    data_files: int


class Deletions(msgspec.Struct, frozen=True):
    """What is deleted in a table. Lists are cut; `vectors` is whole.

    `files` and `partitions` have deleted rows; those with the largest share of them come first. `delete_files` begin
    with the most positions.
    """

    vectors: tuple[VectorCount, ...]
    files: tuple[LiveFile, ...]
    partitions: tuple[PartitionCount, ...]
    delete_files: tuple[ServingFile, ...]
