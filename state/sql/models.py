"""The tables of the state database. Rows stay inside `state/`: what leaves the store is a frozen record.

Tables alone, without SQLAlchemy's ORM, whose import takes a tenth of the time of a command that asks the state.
Paths are long URIs, so each is stored once, and other tables point at it by a small integer. A change here needs a
migration beside it; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Enum,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from state.records import FileKind, FileStatus, OrphanReason


class IntentStatus(StrEnum):
    OPEN = "open"
    SYNCED = "synced"
    ABANDONED = "abandoned"


METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)
# SQLite numbers rows by itself only for a column of type INTEGER, which holds 64 bits there.
_ROW_ID = BigInteger().with_variant(Integer(), "sqlite")


def _row_id(*, given: bool = False) -> Column[int]:
    return Column("id", _ROW_ID, primary_key=True, autoincrement=False if given else "auto")


# A foreign key column gets the type of the column that it refers to.
def _table_id() -> Column[int]:
    return Column("table_id", ForeignKey("tables.id", ondelete="CASCADE"), nullable=False)


def _columns(kind: Any, *names: str, nullable: bool = True) -> list[Column[Any]]:
    return [Column(name, kind, nullable=nullable) for name in names]


def _words(words: type[StrEnum]) -> Enum:
    # Stored as readable words, without a CHECK constraint: a new word needs no migration.
    return Enum(words, native_enum=False, length=32, values_callable=lambda members: [word.value for word in members])


def _written_file_columns() -> list[Column[Any]]:
    """The columns of every file that dvsync itself writes. `intent_id` is the snapshot it was written for.

    `since_ms` is when it got its status, `size_bytes` null until it is known.
    """
    return [
        _row_id(),
        _table_id(),
        Column("path", Text, nullable=False),
        Column("status", _words(FileStatus), nullable=False),
        Column("reason", _words(OrphanReason)),
        Column("since_ms", BigInteger, nullable=False, server_default="0"),
        Column("size_bytes", BigInteger),
        Column("intent_id", ForeignKey("intents.id", ondelete="SET NULL"), index=True),
    ]


TABLES = Table(
    "tables",
    METADATA,
    _row_id(),
    Column("name", Text, nullable=False, unique=True),
    *_columns(Text, "source", "target", nullable=False),
    Column("delta_table_id", Text),
    *_columns(BigInteger, "synced_version", "source_timestamp_ms", "snapshot_id"),
    Column("metadata_location", Text),
    Column("format_version", Integer),
    *_columns(Text, "catalog", "table_uuid"),
    Column("last_synced_at_ms", BigInteger),
    Column("must_compare", Boolean, nullable=False),
    Column("resync_wanted", Boolean, nullable=False, server_default="0"),
    # As JSON, a `Pause`, `TableError`, `ProofRecord`, `Wait` and `SourceEntry`: each is written and cleared as a whole,
    # and never searched.
    *_columns(LargeBinary, "pause", "error", "proof", "wait", "entry"),
    # A list of `CommitIdentity` as JSON, some kilobytes: no part of a `TableRecord`, which is read more often.
    Column("recent_commits", LargeBinary),
    # A recreated row must not get the id of the deleted row.
    sqlite_autoincrement=True,
)

# One row, made with the schema.
LEASE = Table(
    "lease",
    METADATA,
    _row_id(given=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", Text),
    Column("renewals", BigInteger, nullable=False),
    Column("has_lock", Boolean, nullable=False),
    Column("address", Text),
    Column("reloads", BigInteger, nullable=False, server_default="0"),
    # The number of the daemon's share; null until a process has opened the database for one.
    Column("share", Integer),
    # Where the database was when it was last opened, and what tells its copies from other databases at that place.
    *_columns(Text, "place", "identity"),
)

INTENTS = Table(
    "intents",
    METADATA,
    _row_id(given=True),
    _table_id(),
    Column("from_version", BigInteger),
    *_columns(BigInteger, "to_version", "created_at_ms", nullable=False),
    Column("status", _words(IntentStatus), nullable=False),
    # The prepared `Outcome` as JSON; emptied when the intent ends, because only an open one is ever applied.
    Column("payload", LargeBinary),
    Index(None, "table_id", "status"),
)

# Manifests, manifest lists and metadata files.
METADATA_FILES = Table(
    "metadata_files",
    METADATA,
    *_written_file_columns(),
    Column("kind", _words(FileKind), nullable=False),
    UniqueConstraint("table_id", "path"),
    # `count` reads the index alone, without the long paths.
    Index(None, "table_id", "status", "kind", "since_ms", "size_bytes"),
)

# The live data files; a removed one has no row.
DATA_FILES = Table(
    "data_files",
    METADATA,
    _row_id(),
    _table_id(),
    Column("path", Text, nullable=False),
    *_columns(BigInteger, "record_count", "size_bytes", "spec_id", nullable=False),
    Column("manifest_id", ForeignKey("metadata_files.id"), nullable=False, index=True),
    Column("dv_storage_type", String(1)),
    Column("dv_path_or_inline_dv", Text),
    *_columns(BigInteger, "dv_size_in_bytes", "dv_cardinality", "dv_offset"),
    # The values of `LiveFile.partition` as JSON; files are never searched by it.
    Column("partition", Text, nullable=False, server_default="[]"),
    # Null for nearly all files: see `LiveFile.uri`.
    Column("uri", Text),
    UniqueConstraint("table_id", "path"),
    # `count` adds up these columns from the index alone; the rows with their long paths are not read.
    Index(None, "table_id", "record_count", "dv_cardinality", "size_bytes"),
)

# Until a delete file is live, its size, positions, spec and manifest are not known.
DELETE_FILES = Table(
    "delete_files",
    METADATA,
    *_written_file_columns(),
    *_columns(BigInteger, "positions", "spec_id"),
    Column("manifest_id", ForeignKey("metadata_files.id"), index=True),
    UniqueConstraint("table_id", "path"),
    # As in METADATA_FILES.
    Index(None, "table_id", "status", "since_ms", "size_bytes"),
)

# Files that Iceberg shows in the place of Delta's data files.
MIRRORS = Table(
    "mirrors",
    METADATA,
    *_written_file_columns(),
    # Not known of files that a scan found.
    Column("data_file", Text, nullable=False, server_default=""),
    Column("data_file_bytes", BigInteger, nullable=False, server_default="0"),
    Column("kind", Text, nullable=False, server_default=""),
    Column("why", Text),
    UniqueConstraint("table_id", "path"),
    Index(None, "table_id", "data_file"),
    # As in METADATA_FILES.
    Index(None, "table_id", "status", "since_ms", "size_bytes"),
)

# As `VectorFile`. Apart from the files above, whose fate the Iceberg table decides.
VECTOR_FILES = Table(
    "vector_files",
    METADATA,
    _row_id(),
    _table_id(),
    Column("path", Text, nullable=False),
    *_columns(BigInteger, "read_version", "since_ms", nullable=False),
    UniqueConstraint("table_id", "path"),
)

# Which live delete file holds how many positions of which live data file; gone when either is.
DV_MAPPINGS = Table(
    "dv_mappings",
    METADATA,
    Column("delete_file_id", ForeignKey("delete_files.id", ondelete="CASCADE"), primary_key=True),
    Column("data_file_id", ForeignKey("data_files.id", ondelete="CASCADE"), primary_key=True, index=True),
    Column("dv_unique_id", Text, nullable=False),
    Column("positions", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Of which data files, live or not, a live Puffin file has a blob that is no longer used.
DEAD_VECTORS = Table(
    "dead_vectors",
    METADATA,
    Column("delete_file_id", ForeignKey("delete_files.id", ondelete="CASCADE"), primary_key=True),
    Column("data_file", Text, primary_key=True, index=True),
    sqlite_with_rowid=False,
)

SYNC_RUNS = Table(
    "sync_runs",
    METADATA,
    _row_id(),
    _table_id(),
    *_columns(BigInteger, "started_at_ms", "duration_ms", nullable=False),
    Column("outcome", Text, nullable=False),
    *_columns(BigInteger, "from_version", "to_version", "snapshot_id"),
    *_columns(
        BigInteger, "data_files_added", "data_files_removed", "delete_files_added", "positions_added", nullable=False
    ),
    *_columns(Text, "message", "operation"),
    Index(None, "table_id", "started_at_ms"),
)
