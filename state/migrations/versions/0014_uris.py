"""The URIs by which Delta knows data files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    # Null: the URI that Spark would write.
    op.add_column("data_files", sa.Column("uri", sa.Text()))
