"""Deletion vectors as Delta's log has them: their unique id follows from the other columns."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.drop_column("data_files", "dv_unique_id")
    # An outcome that was written down before holds descriptors in another form. Without it, what has landed is read
    # anew from the Iceberg table.
    op.execute("update intents set payload = null")
