"""What an exception from Spark comes to, by error classes and types; the chains are those that Delta 4.4 has raised.

`tests/integration/test_broken_logs.py` has the real exceptions.
"""

from __future__ import annotations

import pytest

from daemon.errors import CorruptInput, ObjectMissing, ObjectStoreAway, PipelineAway, SyncError, Unsupported
from daemon.spark.failures import REASON_MAX, Thrown, kind_of, reason_of

EXCEPTION = ("java.lang.Exception", "java.lang.Throwable", "java.lang.Object")
RUNTIME = ("java.lang.RuntimeException", *EXCEPTION)
IO = ("java.io.IOException", *EXCEPTION)
SPARK = ("org.apache.spark.SparkException", *EXCEPTION)
JOB = Thrown(SPARK, "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times")
UNREAD = Thrown(
    SPARK, "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file x.", "", "FAILED_READ_FILE.NO_HINT"
)


def of(name: str, *above: str, message: str = "why", thrower: str = "") -> Thrown:
    return Thrown((name, *above), message, thrower)


def deltas(condition: str, message: str = "why") -> Thrown:
    name = "org.apache.spark.sql.delta.DeltaIllegalStateException"
    return Thrown((name, "java.lang.IllegalStateException", *RUNTIME), f"[{condition}] {message}", "", condition)


@pytest.mark.parametrize(
    ("chain", "kind"),
    [
        ([deltas("DELTA_VERSIONS_NOT_CONTIGUOUS")], CorruptInput),
        ([deltas("DELTA_STATE_RECOVER_ERROR")], CorruptInput),
        ([deltas("DELTA_MISSING_PART_FILES"), of("java.io.FileNotFoundException", *IO)], CorruptInput),
        ([JOB, deltas("DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH")], CorruptInput),
        ([deltas("DELTA_OF_TOMORROW")], CorruptInput),
        ([deltas("DELTA_GEOSPATIAL_NOT_SUPPORTED")], Unsupported),
        ([deltas("DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED")], Unsupported),
        ([deltas("DELTA_SPARK_SESSION_NOT_SET")], PipelineAway),
        ([deltas("DELTA_TABLE_NOT_FOUND")], ObjectMissing),
        # Bytes that cannot be taken apart, by their class or by who threw a plain IOException.
        ([UNREAD, of("com.fasterxml.jackson.core.JsonParseException", *IO)], CorruptInput),
        ([UNREAD, of("shaded.parquet.org.apache.thrift.protocol.TProtocolException", *EXCEPTION)], CorruptInput),
        ([UNREAD, of(*IO, thrower="org.xerial.snappy.SnappyNative")], CorruptInput),
        ([UNREAD, of("org.apache.hadoop.fs.ChecksumException", *IO)], CorruptInput),
        ([UNREAD, of("java.io.EOFException", *IO)], CorruptInput),
        ([UNREAD, of(*IO, thrower="org.apache.iceberg.io.EagerInputFile")], CorruptInput),
        # What says the same at the next try.
        ([UNREAD, of(*RUNTIME)], CorruptInput),
        ([of("java.lang.NullPointerException", *RUNTIME)], CorruptInput),
        ([of("scala.MatchError", *RUNTIME)], CorruptInput),
        ([of("java.lang.AssertionError", "java.lang.Error")], CorruptInput),
        ([JOB, of("java.net.URISyntaxException", *EXCEPTION)], CorruptInput),
        ([of("org.apache.spark.sql.AnalysisException", *EXCEPTION)], CorruptInput),
        ([of("x.ColumnMappingUnsupportedException", "java.lang.UnsupportedOperationException", *RUNTIME)], Unsupported),
        # Files that are not there.
        ([UNREAD, of("java.io.FileNotFoundException", *IO)], ObjectMissing),
        ([UNREAD, of("java.nio.file.NoSuchFileException", *IO)], ObjectMissing),
        # The store and the network, whatever has wrapped them.
        ([JOB, UNREAD, of("java.net.ConnectException", "java.net.SocketException", *IO)], ObjectStoreAway),
        ([UNREAD, of("java.net.SocketTimeoutException", *IO)], ObjectStoreAway),
        ([of("java.net.UnknownHostException", *IO)], ObjectStoreAway),
        ([of("org.apache.hadoop.fs.s3a.AWSBadRequestException", *IO)], ObjectStoreAway),
        ([of("java.nio.file.AccessDeniedException", *IO)], ObjectStoreAway),
        ([of("org.apache.hadoop.security.AccessControlException", *IO)], ObjectStoreAway),
        ([of("software.amazon.awssdk.core.exception.SdkClientException", *RUNTIME)], ObjectStoreAway),
        ([deltas("DELTA_STATE_RECOVER_ERROR"), of("java.net.SocketException", *IO)], ObjectStoreAway),
        # Spark's own.
        ([JOB], PipelineAway),
        ([JOB, of("java.lang.OutOfMemoryError", "java.lang.Error")], PipelineAway),
        ([UNREAD, of(*IO, message="No space left on device")], PipelineAway),
        ([of("java.lang.InterruptedException", *EXCEPTION)], PipelineAway),
        ([of("java.util.concurrent.RejectedExecutionException", *RUNTIME)], PipelineAway),
        ([of("org.apache.spark.TaskKilledException", *RUNTIME)], PipelineAway),
        ([], PipelineAway),
    ],
)
def test_the_kind_is_told_by_classes_and_types(chain: list[Thrown], kind: type[SyncError]) -> None:
    """Broken is told from away by Delta's error class, else by the innermost cause; a store away comes first."""
    assert kind_of(chain) is kind


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        (
            [deltas("DELTA_VERSIONS_NOT_CONTIGUOUS", "Versions (0, 1, 3) are not contiguous.\nA gap was detected.")],
            "Versions (0, 1, 3) are not contiguous",
        ),
        (
            [
                deltas(
                    "DELTA_STATE_RECOVER_ERROR", "It could not be recovered while Reconstructing\nversion: 3. Did you?"
                )
            ],
            "It could not be recovered while Reconstructing version: 3",
        ),
        (
            [
                deltas(
                    "DELTA_UNSUPPORTED_FEATURES_FOR_READ", 'Delta Lake "4.4.0": fancy. Please see `x`. SQLSTATE: 56038'
                )
            ],
            'Delta Lake "4.4.0": fancy',
        ),
        (
            [deltas("DELTA_MISSING_PART_FILES", "No parts."), of("java.io.FileNotFoundException", *IO, message="gone")],
            "No parts",
        ),
        ([Thrown(RUNTIME, "[INVALID_JSON] Not '[]'. Please correct. SQLSTATE: 2203G", "", "INVALID_JSON")], "Not '[]'"),
        ([of(*RUNTIME, message="No mode `x`. Please upgrade.")], "RuntimeException: No mode `x`"),
        ([UNREAD, of(*RUNTIME, message="not Parquet\n\tat x.y(Z.java:1)")], "RuntimeException: not Parquet"),
        ([UNREAD, of("x.SilentException", *RUNTIME, message="")], "Encountered error while reading file x"),
        ([of("x.SilentException", *RUNTIME, message="")], "x.SilentException"),
        ([], ""),
    ],
)
def test_the_reason_is_one_sentence(chain: list[Thrown], reason: str) -> None:
    """Delta's own first sentence, else the innermost message, with its class where it has no error class."""
    assert reason_of(chain) == reason


def test_a_long_reason_is_cut() -> None:
    """A list of versions is cut inside, so that the end of the sentence stays; a text without one at its end."""
    versions = ", ".join(str(version) for version in range(5_000))
    listed = reason_of([deltas("DELTA_VERSIONS_NOT_CONTIGUOUS", f"Versions ({versions}) are not contiguous.")])
    assert listed.startswith("Versions (0, 1, 2,")
    assert listed.endswith("…) are not contiguous")
    assert reason_of([of(*RUNTIME, message="x" * 5_000)]).endswith("x…")
    assert all(len(text) <= REASON_MAX + 1 for text in (listed, reason_of([of(*RUNTIME, message="x" * 5_000)])))
