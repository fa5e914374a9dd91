"""What a table's syncs wait for, and the identities of its last commits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("tables", sa.Column("wait", sa.LargeBinary()))
    # Learned from the log at the next listing.
    op.add_column("tables", sa.Column("recent_commits", sa.LargeBinary()))
