"""The Spark session: starts at its first use, is shared by all tables, and ends with its JVM when it is idle."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import structlog

from daemon.clock import Clock, SystemClock
from daemon.config.settings import SparkSettings
from daemon.errors import PipelineAway
from daemon.masking import SECRET_KEY
from daemon.observe import log as events
from daemon.spark.jars import DELTA_JAR, check_pipeline, check_session, joined
from daemon.spark.jvm import JvmOutput, end_jvm, find_missing_jars, launch_jvm
from daemon.spark.resolved_jars import remember_resolved_jars, with_resolved_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.app.name": "dvsync",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # Delta's default of 50 partitions for a table's state takes seconds on a small machine, even for a tiny table.
    "spark.databricks.delta.snapshotPartitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # No limit: a table's state passes through the driver in parts, and the driver never holds all of it.
    "spark.driver.maxResultSize": "0",
    # Without this, Spark also treats the jars of its packages as Python archives; workers read all before each task.
    "spark.submit.pyFiles": "",
    # A speculative attempt would write the files of the first attempt again.
    "spark.speculation": "false",
}
# For tiny tables: to start up costs more than to run, for Spark's jobs, for generated code and for the JVM's compiler.
FOR_TINY_TABLES = {
    # One compiler alone has room for 48 MB of code. Spark makes more: methods would be dropped and compiled again.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "2",
}
LOCAL_DEFAULTS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

# Settings that spark-submit reads: those of the driver's JVM, of jars and of the cluster manager.
AT_LAUNCH = (
    *("spark.master", "spark.app.name", "spark.submit.", "spark.log.level", "spark.driver.", "spark.executor."),
    *("spark.jars", "spark.files", "spark.archives", "spark.kerberos.", "spark.yarn.", "spark.kubernetes."),
)
LAST_LINES = 5
# The session stops after this long without work.
IDLE_TIMEOUT_S = 600.0
STACK_FRAME = re.compile(r"at [\w.$]+|\.\.\. \d+ more")
SETUP_HINT = (
    "Run `dvsync setup` once with network access, as the same user. For a proxy, set JAVA_TOOL_OPTIONS="
    "'-Dhttps.proxyHost=… -Dhttps.proxyPort=…'; for a mirror, set spark.jars.repositories in spark.conf."
)
_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


OpenSession = Callable[[], "AbstractContextManager[SparkSession]"]


def session_conf(settings: SparkSettings) -> dict[str, str]:
    """Return the session's settings: ours, overridden by the user's. Lists of packages and extensions are joined."""
    conf = {**DEFAULTS, **(LOCAL_DEFAULTS if settings.master.startswith("local") else {}), **settings.conf}
    conf.setdefault("spark.sql.catalog.spark_catalog", CATALOG)
    conf["spark.sql.extensions"] = joined(conf.get("spark.sql.extensions"), EXTENSION)
    if "delta-spark" not in conf.get("spark.jars", ""):
        conf["spark.jars.packages"] = joined(conf.get("spark.jars.packages"), DELTA_JAR)
    return conf


def launch_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the JVM needs at its start, without secrets: every user can see its command line.

    The other settings reach Spark over the connection to the JVM.
    """
    return {key: value for key, value in conf.items() if key.startswith(AT_LAUNCH) and not SECRET_KEY.search(key)}


class SparkPipeline:
    """Holds at most one Spark session. If the process already has an active session, uses it and never ends it."""

    def __init__(self, settings: SparkSettings, clock: Clock | None = None, *, retries: bool = True) -> None:
        """Without `retries`, a failed start is the answer to every later call as well."""
        self._settings = settings
        self._retries = retries
        self._failed: PipelineAway | None = None
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._session: SparkSession | None = None
        self._owned = False
        self._users = 0
        self._last_used_s = 0.0

    @property
    def is_running(self) -> bool:
        return self._session is not None

    @property
    def is_on_cluster(self) -> bool:
        """Whether tasks run in other processes than the driver's, which may lose sight of them."""
        return not self._settings.master.startswith("local")

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Provide the session for the duration of the block, in any thread.

        Raises `PipelineAway` if Spark cannot be started, or if it dies while the block runs.
        """
        with self._lock:
            if self._session is not None and _is_stopped(self._session):
                self._end()
            spark = self._session or self._try_start()
            self._users += 1
        try:
            _activate(spark)
            yield spark
        except Exception as error:
            if not _is_stopped(spark):
                raise
            reason = _text_of(error)
            with self._lock:
                # Another thread may have noticed the same failure and started a new session already.
                if self._session is spark:
                    self._end()
            raise PipelineAway(
                f"the Spark session died: {reason}",
                hint="dvsync starts a new session next time. If Spark ran out of memory, raise spark.driver.memory. On "
                "a cluster, see the master's page and the logs of the executors.",
            ) from error
        finally:
            with self._lock:
                self._users -= 1
                self._last_used_s = self._clock.monotonic_s()

    def _try_start(self) -> SparkSession:
        if self._failed is not None:
            raise self._failed
        try:
            return self._start()
        except PipelineAway as error:
            self._failed = None if self._retries else error
            raise

    def _start(self) -> SparkSession:
        check_pipeline(self._settings)
        from pyspark.sql import SparkSession  # noqa: PLC0415

        running = SparkSession.getActiveSession()
        if running is not None:
            self._session, self._owned = running, False
            return running
        # PySpark itself ignores this setting here, and would start its workers with the first python3 on PATH.
        python = self._settings.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
        os.environ["PYSPARK_PYTHON"] = python or sys.executable
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if not self.is_on_cluster:
            # Otherwise Spark resolves the machine's own name, and does not start if that fails.
            os.environ.setdefault("SPARK_LOCAL_IP", LOCAL_DEFAULTS["spark.driver.bindAddress"])
        builder = SparkSession.builder.master(self._settings.master)
        conf = session_conf(self._settings)
        if not self.is_on_cluster:
            conf = with_resolved_jars(conf)
        for key, value in conf.items():
            builder = builder.config(key, value)
        output = JvmOutput()
        interrupt = signal.getsignal(signal.SIGINT)
        try:
            launch_jvm(launch_conf(conf), output)
            session = builder.getOrCreate()
            check_session(session)
            if self.is_on_cluster:
                send_modules(session)
            else:
                remember_resolved_jars(conf, session)
            self._session, self._owned = session, True
            if threading.current_thread() is threading.main_thread():
                # Restore our handler: PySpark installs its own, which cancels jobs and raises KeyboardInterrupt.
                signal.signal(signal.SIGINT, interrupt)
        except PipelineAway:
            end_jvm()
            raise
        except Exception as error:
            reason = _text_of(error)
            end_jvm()
            lines = output.read_lines()
            missing = find_missing_jars(lines)
            if missing:
                raise PipelineAway(missing, hint=SETUP_HINT) from error
            said = [line for line in lines if not STACK_FRAME.match(line)][-LAST_LINES:]
            raise PipelineAway(
                f"Spark could not be started: {reason}; its last output: {' / '.join(said) or 'none'}",
                hint="See Spark's last output in the message, and its log. dvsync tries again.",
            ) from error
        return self._session

    def stop_if_idle(self) -> None:
        """End the session if nobody has used it for IDLE_TIMEOUT_S."""
        with self._lock:
            idle_s = self._clock.monotonic_s() - self._last_used_s
            if self._session and self._owned and not self._users and idle_s >= IDLE_TIMEOUT_S:
                self._end()
                _log.info(events.PIPELINE_IDLED)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is None or not self._owned:
            return
        with suppress(Exception):
            session.stop()
        end_jvm()


def send_modules(spark: SparkSession) -> None:
    """Let a cluster's Python workers import dvsync's modules as they are here, also on a node without dvsync.

    Other packages (pyarrow, pyiceberg) have compiled parts, and must be installed on the nodes.
    """
    from pyspark import SparkFiles  # noqa: PLC0415

    # Executors fetch the archive when they start. Spark removes this folder when the session ends.
    archive = Path(mkdtemp(dir=SparkFiles.getRootDirectory()), "dvsync.zip")
    with ZipFile(archive, "w") as zipped:
        for name in ("daemon", "state"):
            package = find_spec(name)
            assert package is not None and package.origin is not None, "it is a package of ours"
            folder = Path(package.origin).parent
            for module in sorted(folder.rglob("*.py")):
                zipped.write(module, module.relative_to(folder.parent))
    spark.sparkContext.addPyFile(str(archive))
    # PySpark also lets this process import from the archive, which is gone after the session.
    sys.path.remove(str(Path(SparkFiles.getRootDirectory(), archive.name)))


def _activate(session: SparkSession) -> None:
    """Make `session` the active session of the JVM thread that serves the current Python thread.

    Spark keeps an active session for each thread, and sets it only in the thread that created the session. Delta needs
    it to replay a log without a checksum file, and otherwise fails with DELTA_SPARK_SESSION_NOT_SET.
    """
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def _is_stopped(session: SparkSession) -> bool:
    """Return whether the session's context has stopped. A cluster can stop it while the JVM lives on."""
    context: Any = session.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except Exception:  # Py4J raises many kinds of exceptions when the JVM does not answer.
        return True


def _text_of(error: Exception) -> str:
    """Return the text of an error. Py4J asks the JVM for that of an error in Java, and the JVM may be dead."""
    try:
        return str(error)
    except Exception:
        return f"{type(error).__name__}, and its JVM ended"
