"""The URIs by which Delta knows data files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    # Null: the URI that Spark would write. For files that are there already it is unknown, so states are compared.
    op.add_column("data_files", sa.Column("uri", sa.Text()))
    tables = sa.table("tables", sa.column("must_compare", sa.Boolean()), sa.column("synced_version"))
    op.execute(tables.update().where(tables.c.synced_version.is_not(None)).values(must_compare=True))
