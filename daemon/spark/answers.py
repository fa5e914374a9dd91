"""Collects the rows of a Spark query batch by batch into a file, so that the state of a large table needs no memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from daemon.errors import PipelineAway
from daemon.spark.failures import known_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def collect(frame: DataFrame) -> pa.Table:
    """Return all rows of `frame`, in its order. They are in a deleted temporary file that is mapped into memory.

    The operating system can evict pages of the file when memory is short. The file vanishes with the last reference to
    the table. Raises what `known_errors` raises, and PipelineAway if the file cannot be written.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    schema = to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True)
    with _disk_errors():
        file = tempfile.NamedTemporaryFile(prefix="dvsync-")  # noqa: SIM115 - closed by the next block
    with file:
        order = _write(frame, file.name)
        if not order:
            return schema.empty_table()
        batches = pa.ipc.open_file(pa.memory_map(file.name))
        return pa.Table.from_batches([batches.get_batch(number) for number in order]).cast(schema)


def _write(frame: DataFrame, path: str) -> list[int]:
    """Write the rows as an Arrow file. Returns the numbers of its batches in the order of the rows."""
    order: list[int] = []
    writer = None
    with _served(frame) as stream:
        for each in stream:
            if isinstance(each, list):
                order = each
                continue
            with _disk_errors():
                writer = writer or pa.ipc.new_file(path, each.schema)
                writer.write_batch(each)
    if writer is not None:
        with _disk_errors():
            writer.close()
    return order


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        raise PipelineAway(
            f"Spark's answer cannot be stored in {folder}: {error.strerror or error}",
            path=folder,
            hint="A first sync, a resync or a comparison needs about 0.3 kB there for each data file. Free disk space, "
            "or set the environment variable TMPDIR to another folder.",
        ) from error


@contextmanager
def _served(frame: DataFrame) -> Iterator[Iterator[pa.RecordBatch | list[int]]]:
    """Yield the batches as Spark's driver sends them, and at the end their order. `DataFrame.toArrow` does so, too."""
    from pyspark.sql.pandas.serializers import ArrowCollectSerializer  # noqa: PLC0415
    from pyspark.util import _load_from_socket  # noqa: PLC0415

    with known_errors():
        port, secret, server = frame._jdf.collectAsArrowToPython()
        stream: Any = _load_from_socket((port, secret), ArrowCollectSerializer())  # type: ignore[no-untyped-call]
        try:
            yield stream
        except PipelineAway:
            # Do not wait for the driver's thread: it blocks until somebody reads, as long as the connection is open.
            stream.close()
            raise
        except Exception:
            _wait_for(server)
            raise
        _wait_for(server)


def _wait_for(server: Any) -> None:
    """Wait for the driver's thread. Raises the query's error, if it failed."""
    from pyspark.errors.exceptions.captured import unwrap_spark_exception  # noqa: PLC0415

    with unwrap_spark_exception():
        server.getResult()
