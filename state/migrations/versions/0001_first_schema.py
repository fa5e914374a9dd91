"""First schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    lease = op.create_table(
        "lease",
        _id(),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text()),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("has_lock", sa.Boolean(), nullable=False),
        sa.Column("address", sa.Text()),
        sa.Column("reloads", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("share", sa.Integer()),
        *_columns(sa.Text(), "place", "identity"),
    )
    op.bulk_insert(lease, [{"id": 1, "token": 0, "renewals": 0, "has_lock": False}])

    op.create_table(
        "tables",
        _id(autoincrement=True),
        *_columns(sa.Text(), "name", "source", "target", nullable=False),
        sa.Column("delta_table_id", sa.Text()),
        *_columns(sa.BigInteger(), "synced_version", "source_timestamp_ms", "snapshot_id"),
        sa.Column("metadata_location", sa.Text()),
        sa.Column("format_version", sa.Integer()),
        *_columns(sa.Text(), "catalog", "table_uuid"),
        sa.Column("last_synced_at_ms", sa.BigInteger()),
        sa.Column("must_compare", sa.Boolean(), nullable=False),
        sa.Column("resync_wanted", sa.Boolean(), nullable=False, server_default="0"),
        *_columns(sa.LargeBinary(), "pause", "error", "proof", "wait", "entry", "recent_commits"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )

    op.create_table(
        "intents",
        _id(),
        _points_at("tables", "table_id", ondelete="CASCADE", nullable=False),
        sa.Column("from_version", sa.BigInteger()),
        *_columns(sa.BigInteger(), "to_version", "created_at_ms", nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("payload", sa.LargeBinary()),
        sa.Index(None, "table_id", "status"),
    )

    op.create_table(
        "metadata_files",
        *_written_file(),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Index(None, "table_id", "status", "kind", "since_ms", "size_bytes"),
    )

    op.create_table(
        "data_files",
        _id(autoincrement=True),
        _points_at("tables", "table_id", ondelete="CASCADE", nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        *_columns(sa.BigInteger(), "record_count", "size_bytes", "spec_id", nullable=False),
        _points_at("metadata_files", "manifest_id", nullable=False, index=True),
        sa.Column("dv_storage_type", sa.String(1)),
        sa.Column("dv_path_or_inline_dv", sa.Text()),
        *_columns(sa.BigInteger(), "dv_size_in_bytes", "dv_cardinality", "dv_offset"),
        sa.Column("partition", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("uri", sa.Text()),
        sa.UniqueConstraint("table_id", "path"),
        sa.Index(None, "table_id", "record_count", "dv_cardinality", "size_bytes"),
    )

    op.create_table(
        "delete_files",
        *_written_file(),
        *_columns(sa.BigInteger(), "positions", "spec_id"),
        _points_at("metadata_files", "manifest_id", index=True),
        sa.Index(None, "table_id", "status", "since_ms", "size_bytes"),
    )

    op.create_table(
        "mirrors",
        *_written_file(),
        sa.Column("data_file", sa.Text(), nullable=False, server_default=""),
        sa.Column("data_file_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("kind", sa.Text(), nullable=False, server_default=""),
        sa.Column("why", sa.Text()),
        sa.Index(None, "table_id", "data_file"),
        sa.Index(None, "table_id", "status", "since_ms", "size_bytes"),
    )

    op.create_table(
        "vector_files",
        _id(autoincrement=True),
        _points_at("tables", "table_id", ondelete="CASCADE", nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        *_columns(sa.BigInteger(), "read_version", "since_ms", nullable=False),
        sa.UniqueConstraint("table_id", "path"),
    )

    op.create_table(
        "dv_mappings",
        _points_at("delete_files", "delete_file_id", ondelete="CASCADE", primary_key=True),
        _points_at("data_files", "data_file_id", ondelete="CASCADE", primary_key=True, index=True),
        sa.Column("dv_unique_id", sa.Text(), nullable=False),
        sa.Column("positions", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )

    op.create_table(
        "dead_vectors",
        _points_at("delete_files", "delete_file_id", ondelete="CASCADE", primary_key=True),
        sa.Column("data_file", sa.Text(), primary_key=True, index=True),
        sqlite_with_rowid=False,
    )

    op.create_table(
        "sync_runs",
        _id(autoincrement=True),
        _points_at("tables", "table_id", ondelete="CASCADE", nullable=False),
        *_columns(sa.BigInteger(), "started_at_ms", "duration_ms", nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        *_columns(sa.BigInteger(), "from_version", "to_version", "snapshot_id"),
        *_columns(
            sa.BigInteger(),
            "data_files_added",
            "data_files_removed",
            "delete_files_added",
            "positions_added",
            nullable=False,
        ),
        *_columns(sa.Text(), "message", "operation"),
        sa.Index(None, "table_id", "started_at_ms"),
    )


def _row_number() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _id(*, autoincrement: bool = False) -> sa.Column[int]:
    return sa.Column("id", _row_number(), primary_key=True, autoincrement=autoincrement)


def _points_at(table: str, column: str, *, ondelete: str | None = None, **options: Any) -> sa.Column[int]:
    return sa.Column(column, _row_number(), sa.ForeignKey(f"{table}.id", ondelete=ondelete), **options)


def _columns(kind: sa.types.TypeEngine[Any], *names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=nullable) for name in names]


def _written_file() -> list[sa.schema.SchemaItem]:
    return [
        _id(autoincrement=True),
        _points_at("tables", "table_id", ondelete="CASCADE", nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(32)),
        sa.Column("since_ms", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("size_bytes", sa.BigInteger()),
        _points_at("intents", "intent_id", ondelete="SET NULL", index=True),
        sa.UniqueConstraint("table_id", "path"),
    ]
