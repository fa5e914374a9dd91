"""The UUID of each Iceberg table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    # Unknown until the next sync of the table.
    op.add_column("tables", sa.Column("table_uuid", sa.Text()))
