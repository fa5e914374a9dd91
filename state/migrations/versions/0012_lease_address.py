"""The address at which the holder of the lease answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("lease", sa.Column("address", sa.Text()))
