"""Our classes in Java. Spark's own compiler, Janino, compiles them at their first use: no other one is needed."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_CLASSES = ("DeletionMarker", "DeltaFiles", "RatifiedCommits")
_classes_lock = threading.Lock()


def new_object(spark: SparkSession, name: str, *arguments: Any) -> Any:
    """Construct an object of one of JAVA_CLASSES. At the first use in a JVM, drivers and executors get the classes."""
    jvm: Any = spark._jvm
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    with _classes_lock:
        if loader.getResource(f"dvsync/{name}.class") is None:
            _add_classes(spark, loader)
    # Py4J finds classes by the loader of its thread, which in other threads than this one may not have the jar.
    constructor = loader.loadClass(f"dvsync.{name}").getConstructors()[0]
    gateway: Any = spark.sparkContext._gateway
    values = gateway.new_array(jvm.java.lang.Object, len(arguments))
    for number, argument in enumerate(arguments):
        values[number] = argument
    return constructor.newInstance(values)


def _add_classes(spark: SparkSession, loader: Any) -> None:
    from pyspark import SparkFiles  # noqa: PLC0415

    jvm: Any = spark._jvm
    # Executors fetch the jar when they start a task. Spark removes this folder when the session ends.
    jar = Path(mkdtemp(dir=SparkFiles.getRootDirectory()), "dvsync.jar")
    with ZipFile(jar, "w") as zipped:
        for name in JAVA_CLASSES:
            source = Path(__file__).with_name(f"{name}.java")
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(loader)
            compiler.cook(source.name, jvm.java.io.StringReader(source.read_text()))
            for compiled, code in compiler.getBytecodes().items():
                zipped.writestr(f"{compiled.replace('.', '/')}.class", bytes(code))
    spark._jsparkSession.sessionState().resourceLoader().addJar(jar.as_uri())
