"""Checks Java before Spark starts: Spark's own messages about a wrong Java name classes, not the cause."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from daemon.errors import PipelineAway

JAVA_MIN = 17
VERSION = re.compile(r'version "(?:1\.)?(\d+)')
ANSWER_MAX_S = 20.0


def check_java() -> int:
    """Return the major version of the Java that Spark would start. Raises PipelineAway if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    place = f"JAVA_HOME ({home})" if home else "PATH"
    if java is None or not os.access(java, os.X_OK):
        raise PipelineAway(
            f"there is no Java on {place}, and Spark needs one",
            hint=f"Install Java {JAVA_MIN} (Debian: openjdk-17-jre-headless), or set JAVA_HOME.",
        )
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_MAX_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineAway(
            f"{java} does not run: {error}", hint=f"Install Java {JAVA_MIN}, or set JAVA_HOME."
        ) from error
    found = VERSION.search(answer.stderr + answer.stdout)
    major = int(found[1]) if found else 0
    if major < JAVA_MIN:
        raise PipelineAway(
            f"{java} is Java {major or 'of an unknown version'}, and Spark needs {JAVA_MIN} or newer",
            hint=f"Install Java {JAVA_MIN} and set JAVA_HOME to it.",
        )
    return major
