"""Migrates a database to the newest schema with Alembic, whose import takes longer than opening a migrated store.

There is no way down: the state is a memory that is rebuilt from Iceberg and Delta, so an older dvsync is given a
new file instead.
"""

from __future__ import annotations

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
    config.set_main_option("script_location", "state:migrations")
    return config
