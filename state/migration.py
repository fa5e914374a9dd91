"""Migrates a database to the newest schema with Alembic, whose import takes longer than opening a migrated store."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def is_known(revision: str) -> bool:
    """Whether this dvsync knows the revision of a schema."""
    return revision in {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def upgrade(connection: Connection) -> None:
    """Migrate from any known schema, or from nothing, to the newest one, in the caller's transaction."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    # Alembic interpolates `%`, which a path may hold.
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
