"""Bringing a database to the newest schema, by Alembic: its import takes longer than to open a store that has it."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

MIGRATIONS = Path(__file__).parent / "migrations"


def make_config() -> Config:
    config = Config()
    # Alembic interpolates `%`, which a path may hold.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def is_known(revision: str) -> bool:
    """Whether the schema of this revision is one of ours; otherwise a newer dvsync has made it."""
    return revision in {script.revision for script in ScriptDirectory.from_config(make_config()).walk_revisions()}


def upgrade(connection: Connection) -> None:
    """All steps to the newest schema, from any known one or from nothing, inside of the caller's transaction."""
    config = make_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
