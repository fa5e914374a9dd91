"""The format version of each Iceberg table, and where the database is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    # Unknown until the next commit to the table.
    op.add_column("tables", sa.Column("format_version", sa.Integer()))
    op.add_column("lease", sa.Column("place", sa.Text()))
    op.add_column("lease", sa.Column("identity", sa.Text()))
