"""Summarises Ivy's page-long report about missing jars in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

MISSING = re.compile(r":: (?P<group>[\w.-]+)#(?P<name>[\w.-]+);(?P<version>[^\s:!]+)")
CACHE = re.compile(r"Ivy Default Cache set to: (?P<folder>.+)")
REASON = re.compile(r"(?P<host>Host \S+ not found)\.|Server access error at url .*\((?P<error>.+)\)$")


def find_missing_jars(lines: Iterable[str]) -> str | None:
    """Return the missing jars, the places that Ivy searched and the reason; None if no jar is missing."""
    jars: dict[str, None] = {}
    repositories: dict[str, None] = {}
    cache = reason = None
    for line in lines:
        if missing := MISSING.match(line):
            jars[":".join(missing.groups())] = None
        elif found := CACHE.match(line):
            cache = found["folder"]
        elif said := REASON.search(line):
            reason = reason or said["host"] or said["error"]
        elif line.startswith(("http://", "https://")):
            parts = urlsplit(line)
            repositories[f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"] = None
    if not jars:
        return None
    places = ", ".join([*([cache] if cache else []), *repositories])
    return f"jars for Spark are missing: {', '.join(jars)} not found in {places}" + (f" ({reason})" if reason else "")
