"""Who paused a table, since when, until when, and why."""

from __future__ import annotations

import time

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("tables", sa.Column("pause", sa.LargeBinary()))
    # Nobody knows when an older pause began.
    pause = {"since_ms": time.time_ns() // 1_000_000, "by": "an older dvsync"}
    tables = sa.table("tables", sa.column("pause", sa.LargeBinary()), sa.column("paused", sa.Boolean()))
    op.execute(tables.update().where(tables.c.paused).values(pause=msgspec.json.encode(pause)))
    op.drop_column("tables", "paused")
