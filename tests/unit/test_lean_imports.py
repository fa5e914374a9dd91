"""What the daemon imports and does not use: parsers of PyIceberg that are loaded at their first use."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys
import daemon.cli.commands
from daemon.lean_imports import import_arrow

import_arrow()
import daemon.service.run
import pyiceberg.catalog.sql
from pyiceberg.expressions import parser
from pyiceberg.table import _parse_row_filter

print(sorted({"numpy", "pandas", "pyparsing", "rich.console"} & sys.modules.keys()), os.environ["MIMALLOC_ALLOW_THP"])
print(_parse_row_filter("a > 1"), hasattr(parser, "no_such_name"), "pyparsing" in sys.modules)
import strictyaml

print(strictyaml.load("a: 1").data)
"""


def test_seldom_used_parsers_are_loaded_when_they_are_used() -> None:
    """In a process of its own, as the daemon's: importing them takes 6 MB, which it would hold for ever."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [
        "[] 0",
        "GreaterThan(term=Reference(name='a'), literal=LongLiteral(1)) False True",
        "{'a': '1'}",
    ]
