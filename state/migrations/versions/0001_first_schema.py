"""First schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "tables",
        _row_id(),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("delta_table_id", sa.Text()),
        sa.Column("synced_version", sa.BigInteger()),
        sa.Column("source_timestamp_ms", sa.BigInteger()),
        sa.Column("snapshot_id", sa.BigInteger()),
        sa.Column("metadata_location", sa.Text()),
        sa.Column("last_synced_at_ms", sa.BigInteger()),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("must_compare", sa.Boolean(), nullable=False),
        sa.Column("error", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", name="pk_tables"),
        sa.UniqueConstraint("name", name="uq_tables_name"),
        sqlite_autoincrement=True,
    )

    op.create_table(
        "intents",
        _row_id(autoincrement=False),
        _points_at("tables", "table_id", "fk_intents_table_id", ondelete="CASCADE"),
        sa.Column("from_version", sa.BigInteger()),
        sa.Column("to_version", sa.BigInteger(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("payload", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", name="pk_intents"),
    )
    op.create_index("ix_intents_table_id_status", "intents", ["table_id", "status"])

    op.create_table(
        "metadata_files",
        *_written_file("metadata_files"),
        sa.Column("kind", sa.String(32), nullable=False),
    )
    op.create_index("ix_metadata_files_intent_id", "metadata_files", ["intent_id"])
    op.create_index("ix_metadata_files_table_id_status", "metadata_files", ["table_id", "status"])

    op.create_table(
        "data_files",
        _row_id(),
        _points_at("tables", "table_id", "fk_data_files_table_id", ondelete="CASCADE"),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("record_count", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("spec_id", sa.BigInteger(), nullable=False),
        _points_at("metadata_files", "manifest_id", "fk_data_files_manifest_id"),
        sa.Column("dv_unique_id", sa.Text()),
        sa.Column("dv_storage_type", sa.String(1)),
        sa.Column("dv_path_or_inline_dv", sa.Text()),
        sa.Column("dv_size_in_bytes", sa.BigInteger()),
        sa.Column("dv_cardinality", sa.BigInteger()),
        sa.Column("dv_offset", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_data_files"),
        sa.UniqueConstraint("table_id", "path", name="uq_data_files_table_id_path"),
    )
    op.create_index("ix_data_files_manifest_id", "data_files", ["manifest_id"])
    op.create_index(
        "ix_data_files_table_id_record_count_dv_cardinality",
        "data_files",
        ["table_id", "record_count", "dv_cardinality"],
    )

    op.create_table(
        "delete_files",
        *_written_file("delete_files"),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("positions", sa.BigInteger()),
        sa.Column("spec_id", sa.BigInteger()),
        _points_at("metadata_files", "manifest_id", "fk_delete_files_manifest_id", nullable=True),
    )
    op.create_index("ix_delete_files_intent_id", "delete_files", ["intent_id"])
    op.create_index("ix_delete_files_manifest_id", "delete_files", ["manifest_id"])
    op.create_index("ix_delete_files_table_id_status", "delete_files", ["table_id", "status"])

    op.create_table(
        "dv_mappings",
        _points_at("delete_files", "delete_file_id", "fk_dv_mappings_delete_file_id", ondelete="CASCADE"),
        _points_at("data_files", "data_file_id", "fk_dv_mappings_data_file_id", ondelete="CASCADE"),
        sa.Column("dv_unique_id", sa.Text(), nullable=False),
        sa.Column("positions", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("delete_file_id", "data_file_id", name="pk_dv_mappings"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_dv_mappings_data_file_id", "dv_mappings", ["data_file_id"])

    op.create_table(
        "sync_runs",
        _row_id(),
        _points_at("tables", "table_id", "fk_sync_runs_table_id", ondelete="CASCADE"),
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
        sa.PrimaryKeyConstraint("id", name="pk_sync_runs"),
    )
    op.create_index("ix_sync_runs_table_id_started_at_ms", "sync_runs", ["table_id", "started_at_ms"])


def _row_id_type() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _row_id(*, autoincrement: bool = True) -> sa.Column[int]:
    return sa.Column("id", _row_id_type(), autoincrement=autoincrement, nullable=False)


def _points_at(
    table: str, column: str, name: str, *, ondelete: str | None = None, nullable: bool = False
) -> sa.Column[int]:
    foreign_key = sa.ForeignKey(f"{table}.id", name=name, ondelete=ondelete)
    return sa.Column(column, _row_id_type(), foreign_key, nullable=nullable)


def _written_file(table: str) -> list[sa.schema.SchemaItem]:
    return [
        _row_id(),
        _points_at("tables", "table_id", f"fk_{table}_table_id", ondelete="CASCADE"),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(32)),
        sa.Column("orphaned_at_ms", sa.BigInteger()),
        _points_at("intents", "intent_id", f"fk_{table}_intent_id", ondelete="SET NULL", nullable=True),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.UniqueConstraint("table_id", "path", name=f"uq_{table}_table_id_path"),
    ]
