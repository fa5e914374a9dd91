"""The unused blobs of Puffin files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "dead_vectors",
        sa.Column("delete_file_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("data_file", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["delete_file_id"],
            ["delete_files.id"],
            name=op.f("fk_dead_vectors_delete_file_id_delete_files"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("delete_file_id", "data_file", name=op.f("pk_dead_vectors")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_dead_vectors_data_file"), "dead_vectors", ["data_file"])
