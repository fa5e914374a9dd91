"""The command line in this process: each command is the same code as in a process of its own, without its imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from unittest.mock import patch

import typer.testing
from typer.main import get_command
from typer.testing import CliRunner, Result

from daemon.cli.commands import app

# Typer would build all commands for each one that is run.
_build = cache(get_command)


def invoke(words: Sequence[str], env: Mapping[str, str] | None = None) -> Result:
    """Run `dvsync` with these words."""
    with patch.object(typer.testing, "_get_command", _build):
        return CliRunner().invoke(app, words, env=env)
