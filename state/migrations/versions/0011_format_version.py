"""The format version of each Iceberg table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    # Unknown until the next commit to the table.
    op.add_column("tables", sa.Column("format_version", sa.Integer()))
