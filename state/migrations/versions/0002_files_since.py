"""Since when each written file has its status, and its bytes; a resync that a person asked for."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_SINCE = """
update {table} set since_ms = coalesce(
    orphaned_at_ms, (select created_at_ms from intents where intents.id = {table}.intent_id), :now_ms
)
"""


def upgrade() -> None:
    op.add_column("tables", sa.Column("resync_wanted", sa.Boolean(), nullable=False, server_default="0"))
    # Column by column: a copy of the table, as Alembic's batch mode makes it, would let foreign keys empty others.
    for table in ("delete_files", "metadata_files"):
        op.add_column(table, sa.Column("since_ms", sa.BigInteger(), nullable=False, server_default="0"))
        if table == "metadata_files":
            op.add_column(table, sa.Column("size_bytes", sa.BigInteger()))
        # The two names of `format` are the ones above.
        op.execute(sa.text(_SINCE.format(table=table)).bindparams(now_ms=time.time_ns() // 1_000_000))
        op.drop_column(table, "orphaned_at_ms")
        op.drop_index(f"ix_{table}_table_id_status", table)
        kind = ["kind"] if table == "metadata_files" else []
        columns = ["table_id", "status", *kind, "since_ms", "size_bytes"]
        op.create_index("_".join(("ix", table, *columns)), table, columns)
