"""Maps exceptions from Spark to our error kinds: bad or unsupported input, a missing file, a failing store or Spark.

Delta's error classes and the types of Java's exceptions decide, never the words of a message:

- Exceptions of a store's client and Java's network exceptions are `ObjectStoreAway`, whatever wraps them. A missing
  file is `ObjectMissing`.
- Delta's error classes are broken input, because Delta would refuse the table again, unless `KINDS` has them.
- Exceptions from decoding bytes (JSON, Parquet, a codec, a checksum), and any other `RuntimeException` or failed
  assertion, are broken input, because a retry would fail in the same way. Delta throws `UnsupportedOperationException`
  for unknown types and column mapping modes.
- Any other `IOException`, and the rest (memory, a lost executor, an interrupt), may succeed when retried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from daemon.delta.bitmap_format import DVPlace
from daemon.delta.features import FEATURES
from daemon.delta.log import COMMIT_FILE
from daemon.errors import CorruptInput, ObjectMissing, ObjectStoreAway, PipelineAway, SyncError, Unsupported
from daemon.store.locations import canonical

# Delta's error classes that are no broken input (error/delta-error-classes.json in its jar).
KINDS: Mapping[str, type[SyncError]] = {
    f"DELTA_{name}": kind
    for kind, names in (
        # This version of Delta cannot read the table.
        (
            Unsupported,
            "ADAPTIVE_METADATA_REQUIRES_COLUMN_MAPPING_ID_MODE ADAPTIVE_METADATA_REQUIRES_DEPENDENT_FEATURE_ENABLED "
            "GEOSPATIAL_NOT_SUPPORTED GEOSPATIAL_SRID_NOT_SUPPORTED INVALID_PROTOCOL_VERSION "
            "NO_REDIRECT_RULES_VIOLATED OPERATION_NOT_SUPPORTED_FOR_DATATYPES "
            "PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED TABLE_UNRECOGNIZED_REDIRECT_SPEC "
            "UNSUPPORTED_CATALOG_MANAGED_TABLE_OPERATION UNSUPPORTED_DATA_TYPES UNSUPPORTED_FEATURES_FOR_READ "
            "UNSUPPORTED_TYPE_CHANGE_IN_PREVIEW UNSUPPORTED_TYPE_CHANGE_IN_SCHEMA",
        ),
        # The table, or this version of it, does not exist.
        (
            ObjectMissing,
            "EMPTY_DIRECTORY FILE_NOT_FOUND FILE_OR_DIR_NOT_FOUND MISSING_DELTA_TABLE PATH_DOES_NOT_EXIST "
            "TABLE_NOT_FOUND VERSION_NOT_FOUND",
        ),
        # The Spark session is not configured as Delta needs it.
        (
            PipelineAway,
            "ACTIVE_SPARK_SESSION_NOT_FOUND CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG "
            "INCONSISTENT_LOGSTORE_CONFS INCORRECT_LOG_STORE_IMPLEMENTATION INVALID_LOGSTORE_CONF "
            "SPARK_SESSION_NOT_SET SPARK_THREAD_NOT_FOUND TABLE_FOUND_IN_EXECUTOR",
        ),
    )
    for name in names.split()
}
DELTAS = "DELTA_"
# One of our functions failed in a Python worker with an exception that is no SyncError.
IN_PYTHON = "org.apache.spark.api.python.PythonException"
# Classes or package prefixes of store and network exceptions. Not all of the clients' exceptions are IOExceptions.
STORES = (
    *("software.amazon.awssdk.", "com.amazonaws.", "com.google.cloud.", "com.google.api.", "com.azure."),
    *("org.apache.hadoop.fs.s3a.", "org.apache.hadoop.fs.azure", "org.apache.hadoop.security.AccessControlException"),
    *("org.apache.hadoop.ipc.", "java.net.SocketException", "java.net.SocketTimeoutException"),
    *("java.net.UnknownHostException", "java.net.HttpRetryException", "javax.net.ssl.", "java.nio.file."),
)
MISSING = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")
DECODERS = (
    *("com.fasterxml.jackson.", "org.apache.parquet.", "shaded.parquet.", "org.xerial.snappy.", "net.jpountz."),
    *("com.github.luben.zstd.", "io.airlift.compress.", "org.apache.hadoop.fs.ChecksumException"),
    "java.io.EOFException",
)
# Throws a bare IOException if a file is longer or shorter than Iceberg's metadata says.
ICEBERG_IO = "org.apache.iceberg.io."
# RuntimeExceptions of a Spark that is stopping or lacks resources.
SPARKS = (
    *("org.apache.spark.TaskKilledException", "org.apache.spark.rpc.", "org.apache.spark.scheduler."),
    *("org.apache.spark.network.", "org.apache.spark.shuffle.", "org.apache.spark.storage.", "java.util.concurrent."),
)
# The innermost exception decides: the first line that lists one of its classes gives the kind.
BY_TYPE: tuple[tuple[tuple[str, ...], type[SyncError]], ...] = (
    (MISSING, ObjectMissing),
    (DECODERS, CorruptInput),
    ((*SPARKS, "java.io.IOException"), PipelineAway),
    (("java.lang.UnsupportedOperationException",), Unsupported),
    (("java.lang.RuntimeException", "java.lang.AssertionError", "java.net.URISyntaxException"), CorruptInput),
    (("org.apache.spark.sql.AnalysisException",), CorruptInput),
)
# As DeletionMarker.java says it.
DAMAGED_VECTOR = re.compile(r"CorruptInput: (?P<what>.*) \[file (?P<path>.*), offset (?P<offset>-?\d+)\]", re.DOTALL)
# As Python's worker reports an error of ours that a function of `DataFrame.mapInArrow` raised.
OURS = re.compile(r"daemon\.errors\.CorruptInput: (.*)")
CAUSES_MAX = 20
REASON_MAX = 300
UNREADABLE = "Spark cannot read the table"
# What has happened, and what to do.
TEXTS: Mapping[type[SyncError], tuple[str, str]] = {
    CorruptInput: (
        UNREADABLE,
        "Restore the missing or damaged file, or correct its contents, then run `dvsync resume`.",
    ),
    Unsupported: (
        UNREADABLE,
        "Use a newer dvsync, or drop the feature from the Delta table, then run `dvsync resume`.",
    ),
    ObjectMissing: (
        "a file that Spark needs is not there",
        "If VACUUM, log cleanup or a person removed the file, restore it. dvsync tries again.",
    ),
    ObjectStoreAway: (
        "the store does not answer Spark",
        "Check the store, the network and the credentials. dvsync tries again.",
    ),
    PipelineAway: ("Spark failed", "See Spark's own log. dvsync tries again."),
}
HINT_OF = {
    "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED": FEATURES["catalogManaged"].note,
    # What dvsync does not know either, it names before.
    "DELTA_UNSUPPORTED_FEATURES_FOR_READ": "dvsync knows the feature, and can follow the table without Spark: set "
    "`engine: local`.",
}
# `[CLASS.SUBCLASS] text. SQLSTATE: 42K03`
FRAME = re.compile(r"^\[[A-Z0-9_.]+\]\s+|\s*SQLSTATE: \w+(?: \(line.*\))?$")
LONG_LIST = re.compile(r"\(([^()]{60})[^()]+\)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`'\"])")


@dataclass(frozen=True)
class Thrown:
    """One Java exception: its class and superclasses, the class that threw it, and its error class with parameters."""

    lineage: tuple[str, ...]
    message: str = ""
    thrower: str = ""
    condition: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    def is_of(self, names: tuple[str, ...]) -> bool:
        return any(name.startswith(names) for name in self.lineage)

    def has(self, condition: str) -> bool:
        return self.condition is not None and self.condition.startswith(condition)


def as_known_error(error: Exception, path: str | None = None, version: int | None = None) -> Exception:
    """Convert an exception of PySpark or Py4J to one of our error kinds.

    If the exception names a file or a version, these replace `path` and `version`. If one of our own functions failed
    in a worker by any other error than a `CorruptInput`, the result is a RuntimeError, which is no error kind.
    """
    chain = _chain_of(error)
    if damaged := next(filter(None, (DAMAGED_VECTOR.fullmatch(thrown.message) for thrown in chain)), None):
        return DVPlace(damaged["path"], int(damaged["offset"])).corrupt(damaged["what"])
    if any(thrown.is_of((IN_PYTHON,)) for thrown in chain):
        said = next(thrown.message for thrown in reversed(chain) if thrown.is_of((IN_PYTHON,)))
        last = said.strip().rpartition("\n")[2]
        if ours := OURS.fullmatch(last):
            return CorruptInput(ours[1], hint="Correct the rows that this query reads.")
        return RuntimeError(f"a task in Spark failed: {last}")
    kind = kind_of(chain)
    source = next((thrown for thrown in chain if thrown.has(DELTAS) or thrown.has("FAILED_READ_FILE")), Thrown(()))
    path = canonical(source.parameters["path"]) if "path" in source.parameters else path
    if path and (commit := COMMIT_FILE.fullmatch(path.rpartition("/")[2])):
        version = int(commit[1])
    elif "version" in source.parameters:
        version = int(source.parameters["version"])
    what, hint = TEXTS[kind]
    hint = HINT_OF.get(source.condition or "", hint)
    return kind(f"{what}: {reason_of(chain) or error}", hint=hint, path=path, version=version)


@contextmanager
def known_errors(path: str | None = None) -> Iterator[None]:
    """Raise exceptions of PySpark and Py4J as one of our error kinds, about `path` if they name no file."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise as_known_error(error, path) from error


def kind_of(chain: Sequence[Thrown]) -> type[SyncError]:
    """Return the error kind for an exception and its causes; `chain` begins with the outermost."""
    root = chain[-1] if chain else Thrown(())
    if root.is_of(STORES) and not root.is_of(MISSING):
        return ObjectStoreAway
    classes = [thrown.condition for thrown in chain if thrown.condition is not None and thrown.has(DELTAS)]
    if classes:
        return KINDS.get(classes[0], CorruptInput)
    if root.thrower.startswith((*DECODERS, ICEBERG_IO)):
        return CorruptInput
    return next((kind for names, kind in BY_TYPE if root.is_of(names)), PipelineAway)


def reason_of(chain: Sequence[Thrown]) -> str:
    """Return the reason in one sentence: Delta's own, else that of the innermost exception with a message."""
    delta = [thrown for thrown in chain if thrown.has(DELTAS)]
    telling = delta or [thrown for thrown in chain[::-1] if thrown.message]
    if not telling:
        return chain[-1].lineage[0] if chain else ""
    best = telling[0]
    text = " ".join(FRAME.sub("", best.message).split())
    if best.condition is None:
        # A message such as `null` or a host name needs the class. The lines after the first are Java's stack.
        first_line = best.message.strip().splitlines()[0]
        text = f"{best.lineage[0].rpartition('.')[2]}: {first_line}"
    text = LONG_LIST.sub(r"(\1…)", text.removeprefix(f"{best.parameters.get('path')}: "))
    sentence = SENTENCE_END.split(text, maxsplit=1)[0].removesuffix(".")
    return sentence if len(sentence) <= REASON_MAX else f"{sentence[:REASON_MAX]}…"


def _chain_of(error: Exception) -> list[Thrown]:
    """Return the Java exception behind a Python exception, and its causes. Empty if Python itself raised it."""
    from pyspark.errors import PythonException  # noqa: PLC0415

    if isinstance(error, PythonException):
        return [Thrown((IN_PYTHON,), str(getattr(error, "_desc", error)))]
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    chain: list[Thrown] = []
    while thrown is not None and len(chain) < CAUSES_MAX:
        chain.append(_thrown_of(thrown))
        thrown = thrown.getCause()
    return chain


def _thrown_of(thrown: Any) -> Thrown:
    from py4j.java_gateway import is_instance_of  # noqa: PLC0415
    from pyspark import SparkContext  # noqa: PLC0415

    lineage, above = [], thrown.getClass()
    while above is not None:
        lineage.append(above.getName())
        above = above.getSuperclass()
    frames = thrown.getStackTrace()
    gateway: Any = SparkContext._gateway
    has_class = is_instance_of(gateway, thrown, "org.apache.spark.SparkThrowable")
    classes = gateway.jvm.PythonErrorUtils
    return Thrown(
        lineage=tuple(lineage),
        message=thrown.getMessage() or "",
        thrower=frames[0].getClassName() if len(frames) else "",
        condition=classes.getCondition(thrown) if has_class else None,
        parameters=dict(classes.getMessageParameters(thrown)) if has_class else {},
    )
