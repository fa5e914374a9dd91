"""The share of the tables that this database remembers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("lease", sa.Column("share", sa.Integer()))
    # A daemon that was alone becomes the first share.
    op.execute("update lease set share = 1 where exists (select 1 from tables)")
