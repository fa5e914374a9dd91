"""Run by Alembic for each command. The caller gives the connection and owns its transaction."""

from __future__ import annotations

from alembic import context

from state.sql.models import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    # SQLite alters a column only by copying the table, which batch mode writes out.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
