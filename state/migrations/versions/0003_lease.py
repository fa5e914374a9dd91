"""The lease: who may work on this state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    lease = op.create_table(
        "lease",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text()),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("has_lock", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_lease"),
    )
    op.bulk_insert(lease, [{"id": 1, "token": 0, "holder": None, "renewals": 0, "has_lock": False}])
