"""The tables of the state database. Rows stay inside `state/`: what leaves the store is a frozen record.

Paths are long URIs, so each is stored once, and other tables point at it by a small integer. A change here needs a
migration beside it; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from sqlalchemy import (
    BigInteger,
    Enum,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from state.records import FileKind, FileStatus, OrphanReason


class IntentStatus(StrEnum):
    OPEN = "open"
    SYNCED = "synced"
    ABANDONED = "abandoned"


def _words(words: type[StrEnum]) -> Enum:
    # Stored as readable words, without a CHECK constraint: a new word needs no migration.
    return Enum(words, native_enum=False, length=32, values_callable=lambda members: [word.value for word in members])


# SQLite numbers rows by itself only for a column of type INTEGER, which holds 64 bits there.
BigRowId = BigInteger().with_variant(Integer(), "sqlite")
RowId = Annotated[int, mapped_column(BigRowId, primary_key=True)]
TableId = Annotated[int, mapped_column(ForeignKey("tables.id", ondelete="CASCADE"))]


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy declares it without ClassVar
        int: BigInteger,
        str: Text,
        bytes: LargeBinary,
        FileKind: _words(FileKind),
        FileStatus: _words(FileStatus),
        IntentStatus: _words(IntentStatus),
        OrphanReason: _words(OrphanReason),
    }


class TableRow(Base):
    __tablename__ = "tables"
    # A table that starts afresh must not get the id of the one that was forgotten for it.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012

    id: Mapped[RowId]
    name: Mapped[str] = mapped_column(unique=True)
    source: Mapped[str]
    target: Mapped[str]
    delta_table_id: Mapped[str | None]
    synced_version: Mapped[int | None]
    source_timestamp_ms: Mapped[int | None]
    snapshot_id: Mapped[int | None]
    metadata_location: Mapped[str | None]
    last_synced_at_ms: Mapped[int | None]
    paused: Mapped[bool]
    must_compare: Mapped[bool]
    resync_wanted: Mapped[bool] = mapped_column(server_default="0")
    # A `TableError` as JSON: it is written and cleared as a whole, and never searched.
    error: Mapped[bytes | None]


class LeaseRow(Base):
    """One row, made with the schema."""

    __tablename__ = "lease"

    id: Mapped[int] = mapped_column(BigRowId, primary_key=True, autoincrement=False)
    token: Mapped[int]
    holder: Mapped[str | None]
    renewals: Mapped[int]
    has_lock: Mapped[bool]


class IntentRow(Base):
    __tablename__ = "intents"
    __table_args__ = (Index(None, "table_id", "status"),)

    id: Mapped[int] = mapped_column(BigRowId, primary_key=True, autoincrement=False)
    table_id: Mapped[TableId]
    from_version: Mapped[int | None]
    to_version: Mapped[int]
    created_at_ms: Mapped[int]
    status: Mapped[IntentStatus]
    # The prepared `Outcome` as JSON; emptied when the intent ends, because only an open one is ever applied.
    payload: Mapped[bytes | None]


class WrittenFile:
    """The columns of every file that dvsync itself writes. `intent_id` is the snapshot it was written for.

    `since_ms` is when it got its status, `size_bytes` null until it is known.
    """

    id: Mapped[RowId]
    table_id: Mapped[TableId]
    path: Mapped[str]
    status: Mapped[FileStatus]
    reason: Mapped[OrphanReason | None]
    since_ms: Mapped[int] = mapped_column(server_default="0")
    size_bytes: Mapped[int | None]
    intent_id: Mapped[int | None] = mapped_column(ForeignKey("intents.id", ondelete="SET NULL"), index=True)


class MetadataFileRow(WrittenFile, Base):
    """Manifests, manifest lists and metadata files."""

    __tablename__ = "metadata_files"
    __table_args__ = (
        UniqueConstraint("table_id", "path"),
        # `count` reads the index alone, without the long paths.
        Index(None, "table_id", "status", "kind", "since_ms", "size_bytes"),
    )

    kind: Mapped[FileKind]


class DataFileRow(Base):
    """The live data files; a removed one has no row."""

    __tablename__ = "data_files"
    __table_args__ = (
        UniqueConstraint("table_id", "path"),
        # `count` adds up these columns from the index alone; the rows with their long paths are not read.
        Index(None, "table_id", "record_count", "dv_cardinality", "size_bytes"),
    )

    id: Mapped[RowId]
    table_id: Mapped[TableId]
    path: Mapped[str]
    record_count: Mapped[int]
    size_bytes: Mapped[int]
    spec_id: Mapped[int]
    manifest_id: Mapped[int] = mapped_column(ForeignKey("metadata_files.id"), index=True)
    dv_unique_id: Mapped[str | None]
    dv_storage_type: Mapped[str | None] = mapped_column(String(1))
    dv_path_or_inline_dv: Mapped[str | None]
    dv_size_in_bytes: Mapped[int | None]
    dv_cardinality: Mapped[int | None]
    dv_offset: Mapped[int | None]
    # The values of `LiveFile.partition` as JSON; files are never searched by it.
    partition: Mapped[str] = mapped_column(server_default="[]")


class DeleteFileRow(WrittenFile, Base):
    """Delete files. Until one is live, its size, positions, spec and manifest are not known."""

    __tablename__ = "delete_files"
    __table_args__ = (
        UniqueConstraint("table_id", "path"),
        # As in `MetadataFileRow`.
        Index(None, "table_id", "status", "since_ms", "size_bytes"),
    )

    positions: Mapped[int | None]
    spec_id: Mapped[int | None]
    manifest_id: Mapped[int | None] = mapped_column(ForeignKey("metadata_files.id"), index=True)


class DvMappingRow(Base):
    """Which live delete file holds how many positions of which live data file; gone when either is."""

    __tablename__ = "dv_mappings"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012

    delete_file_id: Mapped[int] = mapped_column(ForeignKey("delete_files.id", ondelete="CASCADE"), primary_key=True)
    data_file_id: Mapped[int] = mapped_column(
        ForeignKey("data_files.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    dv_unique_id: Mapped[str]
    positions: Mapped[int]


class SyncRunRow(Base):
    __tablename__ = "sync_runs"
    __table_args__ = (Index(None, "table_id", "started_at_ms"),)

    id: Mapped[RowId]
    table_id: Mapped[TableId]
    started_at_ms: Mapped[int]
    duration_ms: Mapped[int]
    outcome: Mapped[str]
    from_version: Mapped[int | None]
    to_version: Mapped[int | None]
    snapshot_id: Mapped[int | None]
    data_files_added: Mapped[int]
    data_files_removed: Mapped[int]
    delete_files_added: Mapped[int]
    positions_added: Mapped[int]
    message: Mapped[str | None]
