"""The partition of each live data file, as its manifest entry has it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("data_files", sa.Column("partition", sa.Text(), nullable=False, server_default="[]"))
    # Nothing tells it of the files that are there: without its snapshot, what is remembered of a table is read anew.
    op.execute("update tables set snapshot_id = null, metadata_location = null")
