"""First schema."""

from __future__ import annotations

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
        sa.Column("share", sa.Integer()),
        sa.Column("place", sa.Text()),
        sa.Column("identity", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_lease"),
    )
    op.bulk_insert(lease, [{"id": 1, "token": 0, "renewals": 0, "has_lock": False}])

    op.create_table(
        "tables",
        _id(autoincrement=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("delta_table_id", sa.Text()),
        sa.Column("synced_version", sa.BigInteger()),
        sa.Column("source_timestamp_ms", sa.BigInteger()),
        sa.Column("snapshot_id", sa.BigInteger()),
        sa.Column("metadata_location", sa.Text()),
        sa.Column("format_version", sa.Integer()),
        sa.Column("catalog", sa.Text()),
        sa.Column("table_uuid", sa.Text()),
        sa.Column("last_synced_at_ms", sa.BigInteger()),
        sa.Column("must_compare", sa.Boolean(), nullable=False),
        sa.Column("resync_wanted", sa.Boolean(), nullable=False, server_default="0"),
        sa.Column("pause", sa.LargeBinary()),
        sa.Column("error", sa.LargeBinary()),
        sa.Column("proof", sa.LargeBinary()),
        sa.Column("wait", sa.LargeBinary()),
        sa.Column("recent_commits", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", name="pk_tables"),
        sa.UniqueConstraint("name", name="uq_tables_name"),
        sqlite_autoincrement=True,
    )

    op.create_table(
        "intents",
        _id(),
        _points_at("tables", "table_id", of="intents", ondelete="CASCADE"),
        sa.Column("from_version", sa.BigInteger()),
        sa.Column("to_version", sa.BigInteger(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("payload", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", name="pk_intents"),
    )
    _index("intents", "table_id", "status")

    op.create_table(
        "metadata_files", *_written_file("metadata_files"), sa.Column("kind", sa.String(32), nullable=False)
    )
    _index("metadata_files", "intent_id")
    _index("metadata_files", "table_id", "status", "kind", "since_ms", "size_bytes")

    op.create_table(
        "data_files",
        _id(autoincrement=True),
        _points_at("tables", "table_id", of="data_files", ondelete="CASCADE"),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("record_count", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("spec_id", sa.BigInteger(), nullable=False),
        _points_at("metadata_files", "manifest_id", of="data_files"),
        sa.Column("dv_storage_type", sa.String(1)),
        sa.Column("dv_path_or_inline_dv", sa.Text()),
        sa.Column("dv_size_in_bytes", sa.BigInteger()),
        sa.Column("dv_cardinality", sa.BigInteger()),
        sa.Column("dv_offset", sa.BigInteger()),
        sa.Column("partition", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("uri", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_data_files"),
        sa.UniqueConstraint("table_id", "path", name="uq_data_files_table_id_path"),
    )
    _index("data_files", "manifest_id")
    _index("data_files", "table_id", "record_count", "dv_cardinality", "size_bytes")

    op.create_table(
        "delete_files",
        *_written_file("delete_files"),
        sa.Column("positions", sa.BigInteger()),
        sa.Column("spec_id", sa.BigInteger()),
        _points_at("metadata_files", "manifest_id", of="delete_files", nullable=True),
    )
    _index("delete_files", "intent_id")
    _index("delete_files", "manifest_id")
    _index("delete_files", "table_id", "status", "since_ms", "size_bytes")

    op.create_table(
        "dv_mappings",
        _points_at("delete_files", "delete_file_id", of="dv_mappings", ondelete="CASCADE"),
        _points_at("data_files", "data_file_id", of="dv_mappings", ondelete="CASCADE"),
        sa.Column("dv_unique_id", sa.Text(), nullable=False),
        sa.Column("positions", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("delete_file_id", "data_file_id", name="pk_dv_mappings"),
        sqlite_with_rowid=False,
    )
    _index("dv_mappings", "data_file_id")

    op.create_table(
        "dead_vectors",
        _points_at("delete_files", "delete_file_id", of="dead_vectors", ondelete="CASCADE"),
        sa.Column("data_file", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("delete_file_id", "data_file", name="pk_dead_vectors"),
        sqlite_with_rowid=False,
    )
    _index("dead_vectors", "data_file")

    op.create_table(
        "sync_runs",
        _id(autoincrement=True),
        _points_at("tables", "table_id", of="sync_runs", ondelete="CASCADE"),
        sa.Column("started_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("from_version", sa.BigInteger()),
        sa.Column("to_version", sa.BigInteger()),
        sa.Column("snapshot_id", sa.BigInteger()),
        sa.Column("data_files_added", sa.BigInteger(), nullable=False),
        sa.Column("data_files_removed", sa.BigInteger(), nullable=False),
        sa.Column("delete_files_added", sa.BigInteger(), nullable=False),
        sa.Column("positions_added", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text()),
        sa.Column("operation", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_sync_runs"),
    )
    _index("sync_runs", "table_id", "started_at_ms")


def _row_number() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _id(*, autoincrement: bool = False) -> sa.Column[int]:
    return sa.Column("id", _row_number(), autoincrement=autoincrement, nullable=False)


def _points_at(
    table: str, column: str, *, of: str, ondelete: str | None = None, nullable: bool = False
) -> sa.Column[int]:
    foreign_key = sa.ForeignKey(f"{table}.id", name=f"fk_{of}_{column}", ondelete=ondelete)
    return sa.Column(column, _row_number(), foreign_key, nullable=nullable)


def _index(table: str, *columns: str) -> None:
    op.create_index("_".join(("ix", table, *columns)), table, columns)


def _written_file(table: str) -> list[sa.schema.SchemaItem]:
    return [
        _id(autoincrement=True),
        _points_at("tables", "table_id", of=table, ondelete="CASCADE"),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(32)),
        sa.Column("since_ms", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("size_bytes", sa.BigInteger()),
        _points_at("intents", "intent_id", of=table, ondelete="SET NULL", nullable=True),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.UniqueConstraint("table_id", "path", name=f"uq_{table}_table_id_path"),
    ]
