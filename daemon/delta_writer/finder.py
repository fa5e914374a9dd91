"""Finds the rows that fulfil a predicate: in this process in a table of small size, and on Spark in a large one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote

from daemon.delta.actions import AddFile
from daemon.delta.snapshot import ReplayedState
from daemon.delta.table_state import adds_from_batches
from daemon.delta_writer.commit import FoundRows
from daemon.errors import ConfigInvalid, CorruptInput
from daemon.predicate.files import may_match, partition_values, read_stats
from daemon.predicate.parser import parse_predicate
from daemon.predicate.rows import holds_for, matching_positions, rows_of
from daemon.predicate.tree import Field, Predicate, Value, fields_in
from daemon.spark.bitmaps import decode_bitmap
from daemon.spark.session import OpenSession
from daemon.store.locations import canonical
from daemon.store.storage import FileIOStorage, map_files

# With the engine `auto`, Spark searches more files than that, or more bytes of them.
LOCAL_DATA_FILES_MAX: Final = 5_000
LOCAL_SEARCHED_BYTES_MAX: Final = 4 << 30
# Files whose positions are in memory at the same time.
FILES_AT_ONCE: Final = 64

Candidate = tuple[AddFile, dict[Field, Value | None]]


class PredicateFinder:
    """A `Finder` of the rows for which a predicate is true.

    In this process, and with the engine `auto` in any case, it is one of docs/deletes.md. `time_zone` is that of
    timestamp partition values without one.
    """

    def __init__(
        self, text: str, storage: FileIOStorage, *, time_zone: str, engine: str, open_spark: OpenSession | None
    ) -> None:
        self._text, self._storage, self._time_zone = text, storage, time_zone
        self._engine, self._open_spark = engine, open_spark
        self._parsed: Predicate | None = None
        self._candidates: set[str] = set()

    def find(self, state: ReplayedState) -> Iterator[FoundRows]:
        """Raises `ConfigInvalid` for the predicate, and as `matching_positions` and Spark do."""
        if self._engine == "spark":
            yield from self._find_on_spark(state)
            return
        self._parsed = parsed = parse_predicate(self._text, state.metadata)
        adds = adds_from_batches(state.rows.to_batches())
        candidates = [each for each in map(self._with_partition, adds) if may_match(parsed, *each)]
        self._candidates = {add.path for add, _ in candidates}
        is_small = len(candidates) <= LOCAL_DATA_FILES_MAX
        is_small = is_small and sum(add.size for add, _ in candidates) <= LOCAL_SEARCHED_BYTES_MAX
        if is_small or self._engine == "local":
            yield from self._find_here(candidates)
        else:
            yield from self._find_on_spark(state)

    def depends_on(self, path: str, add: AddFile | None) -> bool:
        if self._parsed is None or path in self._candidates:
            return True
        return add is not None and may_match(self._parsed, *self._with_partition(add))

    def _with_partition(self, add: AddFile) -> Candidate:
        assert self._parsed is not None, "the predicate was parsed"
        return add, partition_values(self._parsed, add, self._time_zone)

    def _find_here(self, candidates: Sequence[Candidate]) -> Iterator[FoundRows]:
        assert self._parsed is not None, "the predicate was parsed"
        find = self._rows_at
        if all(field.is_partition for field in fields_in(self._parsed)):
            find = self._whole_file
        for start in range(0, len(candidates), FILES_AT_ONCE):
            found = map_files(find, candidates[start : start + FILES_AT_ONCE], lambda each: each[0].path)
            yield from (each for each in found if each)

    def _rows_at(self, candidate: Candidate) -> FoundRows | None:
        add, partition = candidate
        assert self._parsed is not None, "the predicate was parsed"
        record_count, positions = matching_positions(self._storage, add.path, self._parsed, partition)
        return FoundRows(add, record_count, positions) if positions else None

    def _whole_file(self, candidate: Candidate) -> FoundRows | None:
        add, partition = candidate
        assert self._parsed is not None, "the predicate was parsed"
        if not holds_for(self._parsed, partition):
            return None
        record_count = read_stats(add).get("numRecords")
        # Of files with a vector, some writers count live rows there (trinodb/trino#30343).
        if type(record_count) is not int or add.deletion_vector:
            record_count = rows_of(self._storage, add.path)
        return FoundRows(add, record_count, None)

    def _find_on_spark(self, state: ReplayedState) -> Iterator[FoundRows]:
        if self._open_spark is None:
            raise ConfigInvalid(
                "the table is too large to be searched without Spark", hint="Give a session of Spark, or engine=local."
            )
        adds = {canonical(add.path): add for add in adds_from_batches(state.rows.to_batches())}
        with self._open_spark() as spark:
            from daemon.spark.matching import find_matches  # noqa: PLC0415 - imports PySpark, which may be missing

            for row in find_matches(spark, state, self._text, self._storage.properties, self._time_zone):
                path = canonical(unquote(row["file"]))
                if path not in adds:
                    hint = "Delete with --engine local."
                    raise CorruptInput("Spark has found rows of a file that is not live", path=path, hint=hint)
                add = adds[path]
                yield FoundRows(add, rows_of(self._storage, add.path), decode_bitmap(**row))
