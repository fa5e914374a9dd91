"""The records that the state store takes and returns. They are frozen, and never ORM objects.

Paths are plain absolute URIs, spelled as in the Iceberg manifests. Times are epoch milliseconds, UTC.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated

import msgspec

# Delta's "Int" and "Long". JSON numbers have no bounds, but database columns have.
Int = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class FileKind(StrEnum):
    """The files that dvsync itself writes."""

    DELETE_FILE = "delete-file"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest-list"
    METADATA = "metadata"
    MIRROR = "mirror"
    VECTORS = "vectors"  # in the Delta table's folder: see `VectorFile`


class FileStatus(StrEnum):
    """A file that dvsync writes is pending until its commit is recorded, live while it is in use, then orphaned.

    A delete file or a mirror is in use while the newest snapshot shows it, any other while a snapshot or the metadata
    refers to it.
    """

    PENDING = "pending"
    LIVE = "live"
    ORPHANED = "orphaned"
    DELETED = "deleted"


class OrphanReason(StrEnum):
    """Why a file that dvsync wrote is not in use. If it is `shown_by_older`, older snapshots may still use it."""

    DATA_FILES_GONE = "data-files-gone"
    DV_SHRUNK = "dv-shrunk"
    DV_REPLACED = "dv-replaced"
    COMPACTED = "compacted"
    # Written for an Iceberg table that was dropped, renamed or left for another catalog. The file is kept: a renamed
    # table may still use it.
    TABLE_REPLACED = "table-replaced"
    COMMIT_FAILED = "commit-failed"
    SNAPSHOT_EXPIRED = "snapshot-expired"
    FOUND = "found"  # by a scan; it had no row
    FOUND_IN_USE = "found-in-use"  # by a scan or a rebuild: it had no row, but a snapshot used it

    @property
    def shown_by_older(self) -> bool:
        """Whether the file only left the newest snapshot, so that older ones may still use it."""
        return self in (
            OrphanReason.DATA_FILES_GONE,
            OrphanReason.DV_SHRUNK,
            OrphanReason.DV_REPLACED,
            OrphanReason.COMPACTED,
            OrphanReason.FOUND_IN_USE,
        )


class DeletionVectorDescriptor(msgspec.Struct, frozen=True, rename="camel", dict=True):
    """Where a deletion vector's bytes are. Delta PROTOCOL.md, "Deletion Vector Descriptor Schema".

    The same in Delta's log and in the state store. `size_in_bytes` counts magic and bitmap only; `offset` points at the
    4-byte size field before them.
    """

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: Int
    cardinality: Long
    offset: Int | None = None

    @cached_property
    def unique_id(self) -> str:
        """PROTOCOL.md, "Derived Fields": storage type and path, with `@offset` when there is one."""
        place = self.storage_type + self.path_or_inline_dv
        return place if self.offset is None else f"{place}@{self.offset}"


# Delta reads no commit below its newest checkpoint, and writers make one every 10 commits, or every 100 (delta-rs).
RECENT_COMMITS_MAX = 100


class CommitIdentity(msgspec.Struct, frozen=True, array_like=True):
    """What tells a commit file of Delta's log from another one of the same version.

    `head` is a hash of its beginning, None if the file was listed and not read.
    """

    version: int
    size_bytes: int
    modified_ms: int
    head: int | None = None


class LiveFile(msgspec.Struct, frozen=True):
    """A data file that is live in Iceberg. `record_count` counts physical rows, deleted ones too.

    `partition` is the partition of its manifest entry under the spec `spec_id`: each value as a text, None for null.
    `uri` is by which Delta knows the file; None, as for nearly all files, if it is the one that Spark would write.
    """

    path: str
    record_count: int
    size_bytes: int
    spec_id: int
    manifest_path: str
    deletion_vector: DeletionVectorDescriptor | None = None
    partition: tuple[str | None, ...] = ()
    uri: str | None = None

    @property
    def dv_unique_id(self) -> str | None:
        return self.deletion_vector.unique_id if self.deletion_vector else None


class DvMapping(msgspec.Struct, frozen=True):
    """`positions` of the data file's deletion vector went into a delete file."""

    data_file: str
    dv_unique_id: str
    positions: int


class DeleteFileRecord(msgspec.Struct, frozen=True):
    """A delete file that is live in Iceberg, and the data files whose positions it holds.

    `dead` are the data files of which a Puffin file has a blob that is no longer used.
    """

    path: str
    size_bytes: int
    positions: int
    spec_id: int
    manifest_path: str
    mappings: tuple[DvMapping, ...]
    dead: tuple[str, ...] = ()

    @property
    def served(self) -> frozenset[str]:
        """The data files to which the delete file applies."""
        return frozenset(mapping.data_file for mapping in self.mappings)


class MirrorRecord(msgspec.Struct, frozen=True):
    """A file that Iceberg shows in the place of Delta's `data_file`, whose rows it has in the same order.

    `kind` is that of `daemon.errors.MirrorKind`. `size_bytes` is None until the file is whole, and safe from a power
    cut. `why` is what readers would misread in the data file; None if only the Iceberg table told of the mirror. The
    `data_file` of such an orphan is the hash in its name.
    """

    path: str
    data_file: str
    data_file_bytes: int
    kind: str
    size_bytes: int | None = None
    why: str | None = None
    status: FileStatus = FileStatus.PENDING
    since_ms: int = 0
    reason: OrphanReason | None = None


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that dvsync wrote for a table, in `status` since `since_ms`. `size_bytes` is None until it is known."""

    path: str
    kind: FileKind
    status: FileStatus
    since_ms: int
    reason: OrphanReason | None = None
    size_bytes: int | None = None


class VectorFile(msgspec.Struct, frozen=True):
    """A file of deletion vectors in the Delta table, which a commit after `read_version` may name.

    Recorded at `since_ms`, before it existed, and forgotten once it is known whether a commit names it.
    """

    path: str
    read_version: int
    since_ms: int


class Intent(msgspec.Struct, frozen=True):
    """The Iceberg snapshot that a sync is going to commit, to show Delta `to_version`. `id` is the snapshot id."""

    id: int
    table_id: int
    from_version: int | None
    to_version: int
    created_at_ms: int


class Outcome(msgspec.Struct, frozen=True):
    """What the store will hold once a version is synced. Stored before the commit, applied after it.

    `added_files` replaces rows of the same path. `moved_manifests` maps a rewritten manifest to its successor: live
    files and delete files that were in the old one and do not appear here are in the new one afterwards.
    `dead_vectors` are pairs of a delete file and a data file that it serves no longer, although it has a blob of it.
    `must_compare` holds until the next outcome: the store may be wrong until it was compared with Delta's whole state.
    `recent_commits` are remembered; see `state.cursor.join_commits`.
    """

    table_id: int
    delta_table_id: str
    from_version: int | None
    to_version: int
    source_timestamp_ms: int
    snapshot_id: int | None = None
    metadata_location: str | None = None
    format_version: int | None = None
    catalog: str | None = None
    table_uuid: str | None = None
    added_files: tuple[LiveFile, ...] = ()
    changed_dvs: tuple[tuple[str, DeletionVectorDescriptor | None], ...] = ()
    changed_uris: tuple[tuple[str, str | None], ...] = ()
    removed_files: tuple[str, ...] = ()
    added_delete_files: tuple[DeleteFileRecord, ...] = ()
    removed_delete_files: tuple[tuple[str, OrphanReason], ...] = ()
    dead_vectors: tuple[tuple[str, str], ...] = ()
    moved_manifests: tuple[tuple[str, str], ...] = ()
    unwritten_files: tuple[str, ...] = ()
    removed_mirrors: tuple[str, ...] = ()
    must_compare: bool = False
    recent_commits: tuple[CommitIdentity, ...] = ()


class SyncRun(msgspec.Struct, frozen=True):
    """The row of one sync. `outcome` is `advanced`, `rebuilt`, the error's kind, or `recovered` where no sync ended it.

    `from_version` is the first version that was not shown before, `to_version` the last, or the one that failed.
    `operation` is Delta's for the newest version of the sync, such as MERGE; None if it is not known.
    """

    table_id: int
    started_at_ms: int
    duration_ms: int
    outcome: str
    from_version: int | None = None
    to_version: int | None = None
    snapshot_id: int | None = None
    data_files_added: int = 0
    data_files_removed: int = 0
    delete_files_added: int = 0
    positions_added: int = 0
    message: str | None = None
    operation: str | None = None


class Lease(msgspec.Struct, frozen=True):
    """Who may work on the state. `token` grows with each holder, `renewals` with each renewal.

    `holder` is a text for people, None once the lease is given back. `has_lock` says that the holder also has a lock of
    the operating system, which ends with its process. `address` is where a daemon answers, such as
    http://127.0.0.1:8080. `reloads` counts how often a daemon was asked to read its configuration again.
    """

    token: int = 0
    holder: str | None = None
    renewals: int = 0
    has_lock: bool = False
    address: str | None = None
    reloads: int = 0


class TableError(msgspec.Struct, frozen=True):
    """The last error of a table. `since_ms` is when the first of the `consecutive` errors occurred."""

    kind: str
    message: str
    hint: str
    version: int | None
    since_ms: int
    consecutive: int
    parked: bool


class Wait(msgspec.Struct, frozen=True):
    """What has been seen at a table in each sync since `since_ms`, and is not acted upon before it lasts."""

    what: str
    since_ms: int


# A verification in parts divides the data files into so many shares, by a hash of their paths.
SHARES = 10_000


class Difference(msgspec.Struct, frozen=True):
    """One difference between Iceberg and Delta: its kind, the file, and what is wrong there.

    `level` is how deep it was found. `positions` are the first rows of the file that differ.
    """

    level: str
    fault: str
    path: str
    detail: str
    column: str | None = None
    positions: tuple[int, ...] = ()


class Differences(msgspec.Struct, frozen=True):
    """How many differences of each kind there are, and the first ones of each."""

    counts: dict[str, int] = {}
    first: tuple[Difference, ...] = ()


class ProofRecord(msgspec.Struct, frozen=True):
    """How far a table has been verified, and what differs. A pass compares all data files, in one part or in several.

    `version` and `snapshot_id` are those of the last part, which began at `at_ms`; then Delta had `files_total` files.
    The pass has compared `files`, by `covered` of SHARES. The last part of a pass over all began at `complete_at_ms`.
    `found` is what this pass found so far. `differences` holds until a pass is complete, or finds something itself.
    """

    level: str
    at_ms: int
    version: int
    snapshot_id: int
    files_total: int
    files: int
    covered: int
    complete_at_ms: int | None = None
    found: Differences = Differences()
    differences: Differences = Differences()


class Pause(msgspec.Struct, frozen=True):
    """A request that a table is not synced. `by` says where it came from. Without `until_ms`, only a person ends it."""

    since_ms: int
    by: str
    until_ms: int | None = None
    reason: str | None = None


class SourceEntry(msgspec.Struct, frozen=True):
    """A Delta table as a catalog of `sources` in the configuration knows it. `id` stays when the table is renamed."""

    source: str  # a name under `sources`
    catalog: str
    schema: str
    table: str
    id: str
    location: str
    is_managed: bool

    @property
    def full_name(self) -> str:
        """As `source` in the configuration has it: `prod:main.sales.orders`. A metastore has no catalogs."""
        return f"{self.source}:{'.'.join(filter(None, (self.catalog, self.schema, self.table)))}"


class TableRecord(msgspec.Struct, frozen=True):
    """A table's cursor and condition. `synced_version` is None until the first sync is recorded.

    `snapshot_id`, `metadata_location`, `format_version` and `table_uuid` are those of the Iceberg table, `catalog` is
    the name of its catalog in the configuration.

    `pause` and `resync_wanted` are a person's requests, valid until they are withdrawn or done. A pause whose time is
    over stays until someone calls `TableStore.end_pause`. `wait` is of the last syncs, also of earlier processes.
    `entry` is where the table was found in a catalog of Delta tables.
    """

    id: int
    name: str
    source: str
    target: str
    delta_table_id: str | None = None
    synced_version: int | None = None
    source_timestamp_ms: int | None = None
    snapshot_id: int | None = None
    metadata_location: str | None = None
    format_version: int | None = None
    catalog: str | None = None
    table_uuid: str | None = None
    last_synced_at_ms: int | None = None
    pause: Pause | None = None
    must_compare: bool = False
    resync_wanted: bool = False
    error: TableError | None = None
    proof: ProofRecord | None = None
    wait: Wait | None = None
    entry: SourceEntry | None = None

    def pause_at(self, now_ms: int) -> Pause | None:
        """The pause, unless its time is over."""
        until_ms = self.pause.until_ms if self.pause else None
        return None if until_ms is not None and until_ms <= now_ms else self.pause
