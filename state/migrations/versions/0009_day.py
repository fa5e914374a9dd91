"""The last day of each table, and the Delta operation of each sync."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("sync_runs", sa.Column("operation", sa.Text()))
    op.create_table(
        "samples",
        sa.Column("table_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("lag_seconds", sa.Float()),
        sa.Column("deleted_positions", sa.BigInteger()),
        sa.Column("delete_files", sa.BigInteger()),
        sa.Column("orphans", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.id"], name=op.f("fk_samples_table_id_tables"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("table_id", "at_ms", name=op.f("pk_samples")),
        sqlite_with_rowid=False,
    )
