"""What live files' add actions say that dvsync does not need to follow a table, and must not lose when it writes one.

Delta PROTOCOL.md, "Add File and Remove File". A second reading of the log, for a few files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.delta.actions import LogicalFile
from daemon.delta.checkpoint import read_sidecars
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import LogSegment
from daemon.delta.table_state import resolve_rows
from daemon.delta.uri import name_file, resolve_path
from daemon.errors import CorruptInput, ObjectMissing
from state.records import DeletionVectorDescriptor, Long


class AddDetails(msgspec.Struct, frozen=True, rename="camel"):
    """`path` is as the log has it."""

    path: str
    modification_time: Long = 0
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    default_row_commit_version: Long | None = None
    clustering_provider: str | None = None


class _Line(msgspec.Struct, frozen=True):
    add: AddDetails | None = None


_decode = msgspec.json.Decoder(_Line).decode
COLUMNS: Final = [
    f"add.{each}"
    for each in ("path", "modificationTime", "tags", "deletionVector", "defaultRowCommitVersion", "clusteringProvider")
]


def load_details(log: DeltaLog, segment: LogSegment, wanted: Collection[LogicalFile]) -> dict[LogicalFile, AddDetails]:
    """Return the details of each of these live files, by their newest adds. Requests: as `replay`, until all are found.

    Raises `ObjectMissing` if log cleanup was faster, and `CorruptInput` if the log does not have them.
    """
    found: dict[LogicalFile, AddDetails] = {}
    for details in _newest_first(log, segment, {path for path, _ in wanted}):
        place, uri = name_file(log.location, details.path)
        file = (place, (uri, details.deletion_vector.unique_id if details.deletion_vector else None))
        if file in wanted:
            found.setdefault(file, details)
            if len(found) == len(wanted):
                return found
    if missing := sorted(path for path, _ in set(wanted) - found.keys()):
        raise CorruptInput(
            "the log has no add action of the live file",
            version=segment.version,
            path=missing[0],
            hint="Restore the log's older files.",
        )
    return found


def _newest_first(log: DeltaLog, segment: LogSegment, paths: set[str]) -> Iterator[AddDetails]:
    """Yield the adds of the log, the newest first; at least those of the files at `paths`."""
    for file in reversed(segment.commits):
        if file.is_compacted:
            # As for `replay`, it only saves requests.
            with suppress(CorruptInput, ObjectMissing):
                if adds := [*_of_lines(log, log.compacted_path(file.from_version, file.to_version))]:
                    yield from adds
                    continue
        for version in range(file.to_version, file.from_version - 1, -1):
            yield from _of_lines(log, log.commit_path(version))
    if segment.checkpoint is None:
        return
    sidecars = read_sidecars(log.storage, segment.checkpoint)
    for path in (
        *(file.path for file in segment.checkpoint.files),
        *(resolve_path(f"{log.folder}/_sidecars", sidecar.path) for sidecar in sidecars),
    ):
        yield from _of_lines(log, path) if path.endswith(".json") else _of_parquet(log, path, paths)


def _of_lines(log: DeltaLog, path: str) -> Iterable[AddDetails]:
    try:
        lines = (_decode(line) for line in log.storage.read(path).split(b"\n") if line.strip())
        return [line.add for line in lines if line.add]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _corrupt(path, error) from error


def _of_parquet(log: DeltaLog, path: str, paths: set[str]) -> Iterator[AddDetails]:
    wanted = pa.array(sorted(paths), pa.string())
    with log.storage.open_input(path) as source:
        try:
            for batch in pq.ParquetFile(source, pre_buffer=True).iter_batches(columns=COLUMNS, use_threads=False):
                if "add" not in batch.schema.names:
                    return
                adds = batch.column("add")
                adds = adds.filter(pc.is_valid(pc.struct_field(adds, "path")))
                named = pa.RecordBatch.from_arrays([pc.struct_field(adds, "path").cast(pa.string())], ["path"])
                places = resolve_rows(log.location, named)["path"]
                for row in adds.filter(pc.is_in(places, wanted)).to_pylist(maps_as_pydicts="strict"):
                    # Some writers write a struct with null fields instead of a null struct.
                    if (vector := row.get("deletionVector")) and vector["storageType"] is None:
                        row["deletionVector"] = None
                    yield msgspec.convert({name: each for name, each in row.items() if each is not None}, AddDetails)
        except (pa.ArrowException, OSError, KeyError, msgspec.ValidationError) as error:
            raise _corrupt(path, error) from error


def _corrupt(path: str, error: Exception) -> CorruptInput:
    return CorruptInput(f"the file of the log cannot be read: {error}", path=path, hint="Restore the file.")
