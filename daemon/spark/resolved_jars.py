"""The jars that Spark's packages were resolved to: the next start takes them from the disk, without Ivy.

To resolve them again takes half of the time of Spark's start, and two processes that do so at the same time can leave
jars cut short. For local masters only: a cluster gets its jars from the driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from daemon.spark.jars import ivy_folder, joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = "spark.jars.packages"
# What decides to which jars packages are resolved.
RESOLVED_BY = (PACKAGES, "spark.jars.excludes", "spark.jars.repositories", "spark.jars.ivySettings")
# `group:name:version`, where the version is one, and not whichever is the newest.
FIXED = re.compile(r"[^:]+:[^:]+:(?!.*(?i:latest|snapshot))[\w.-]+")


def with_resolved_jars(conf: Mapping[str, str]) -> dict[str, str]:
    """Return `conf` with the jars of an earlier start in place of its packages, if all of them are still there."""
    record, jars = _record_of(conf), list[str]()
    if record:
        with suppress(OSError):
            jars = record.read_text().splitlines()
    if not jars or not all(map(os.path.isfile, jars)):
        return dict(conf)
    resolved = {key: value for key, value in conf.items() if key not in RESOLVED_BY}
    # With the scheme `local`, Spark does not serve them to itself.
    return {**resolved, "spark.jars": joined(conf.get("spark.jars"), *(f"local:{jar}" for jar in jars))}


def remember_resolved_jars(conf: Mapping[str, str], spark: SparkSession) -> None:
    """Record the jars of the packages in `conf`, with which the session was started; nothing if it has none."""
    record = _record_of(conf)
    if record is None:
        return
    own = conf.get("spark.jars", "").split(",")
    uris = [uri for uri in spark.sparkContext.getConf().get("spark.jars", "").split(",") if uri not in own]
    staged = record.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # The next start resolves them again.
        staged.write_text("".join(f"{unquote(urlsplit(uri).path)}\n" for uri in uris))
        staged.rename(record)


def _record_of(conf: Mapping[str, str]) -> Path | None:
    """Return the file in Ivy's folder that has the jars of these packages; None if those may change."""
    if not all(map(FIXED.fullmatch, conf.get(PACKAGES, "").split(","))):
        return None
    key = sha256("\n".join(conf.get(each, "") for each in RESOLVED_BY).encode()).hexdigest()
    return ivy_folder(conf) / f"dvsync-{key[:16]}.jars"
