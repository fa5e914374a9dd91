"""Sends dvsync's own modules to the executors of a cluster."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from zipfile import ZipFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("daemon", "state")


def send_modules(spark: SparkSession) -> None:
    """Let Python workers import dvsync's modules as they are here, whether or not their node has dvsync installed.

    Other packages (pyarrow, pyiceberg) have compiled parts, and must be installed on the nodes.
    """
    from pyspark import SparkFiles  # noqa: PLC0415

    # Executors fetch the archive when they start. Spark removes this folder when the session ends.
    archive = Path(mkdtemp(dir=SparkFiles.getRootDirectory()), "dvsync.zip")
    with ZipFile(archive, "w") as zipped:
        for name in PACKAGES:
            package = find_spec(name)
            assert package is not None and package.origin is not None, "it is a package of ours"
            folder = Path(package.origin).parent
            for module in sorted(folder.rglob("*.py")):
                zipped.write(module, module.relative_to(folder.parent))
    spark.sparkContext.addPyFile(str(archive))
    # PySpark also lets this process import from the archive, which is gone after the session.
    sys.path.remove(str(Path(SparkFiles.getRootDirectory(), archive.name)))
