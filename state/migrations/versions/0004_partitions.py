"""The partition of each live data file, as its manifest entry has it, and their sizes for the account."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("data_files", sa.Column("partition", sa.Text(), nullable=False, server_default="[]"))
    op.drop_index("ix_data_files_table_id_record_count_dv_cardinality", "data_files")
    op.create_index(
        "ix_data_files_table_id_record_count_dv_cardinality_size_bytes",
        "data_files",
        ["table_id", "record_count", "dv_cardinality", "size_bytes"],
    )
    # The partitions of existing rows are unknown: without a snapshot, a table's memory is rebuilt from Iceberg.
    op.execute("update tables set snapshot_id = null, metadata_location = null")
