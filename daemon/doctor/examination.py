"""Examines a table's files for `dvsync doctor`: Spark tasks read every footer and report every fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.types import TimestamptzType

from daemon.delta.actions import AddFile, resolve_path
from daemon.errors import SyncError
from daemon.pipeline.data_manifests import manifests_needed
from daemon.pipeline.inspection import Inspector
from daemon.spark.table_state import TableState, adds_from_batch
from daemon.spark.tasks import run_on_spark
from daemon.storage import FileIOStorage
from daemon.translate.schema import TableSchema

FACTS = pa.schema(
    [
        pa.field("fact", pa.string()),
        pa.field("text", pa.string()),
        pa.field("path", pa.string()),
        pa.field("n", pa.int64()),
    ]
)
# The kinds of facts. `text` holds the name of a column or the text of a refusal.
FILES, ROWS, DELETED_FROM, DELETED_ROWS, WITHOUT_STATS = (
    "files",
    "rows",
    "deleted from",
    "deleted rows",
    "without stats",
)
INT96, HIDDEN, NO_ZONE, REFUSED = "int96", "hidden", "no zone", "refused"
# Separates a refusal's message from its hint in `text`.
SEPARATOR = "\n"


@dataclass(frozen=True)
class Refusal:
    """A reason why files are refused, the number of these files, and the path of one of them."""

    message: str
    hint: str
    path: str
    files: int


@dataclass(frozen=True)
class Examination:
    """A summary of a table's live files. Columns have their full names."""

    files: int
    physical_rows: int
    files_with_deletions: int
    deleted_rows: int
    files_without_stats: int
    int96_columns: tuple[str, ...]
    hidden_columns: tuple[str, ...]
    partitions_without_zone: tuple[str, ...]
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class ExaminationTask:
    """What a Spark task needs to inspect files."""

    table: TableSchema
    table_location: str
    properties: Mapping[str, str]
    may_overflow: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        inspector = Inspector(FileIOStorage(self.properties), self.table, may_overflow=self.may_overflow)
        counts: Counter[tuple[str, str]] = Counter()
        examples: dict[tuple[str, str], str] = {}
        for batch in batches:
            for add in adds_from_batch(batch):
                path = resolve_path(self.table_location, add.path)
                for fact, text, number in self._facts(inspector, path, add):
                    counts[fact, text] += number
                    examples.setdefault((fact, text), path)
        rows = [
            {"fact": fact, "text": text, "path": examples[fact, text], "n": number}
            for (fact, text), number in counts.items()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=FACTS)

    def _facts(self, inspector: Inspector, path: str, add: AddFile) -> Iterator[tuple[str, str, int]]:
        yield FILES, "", 1
        if add.deletion_vector:
            yield DELETED_FROM, "", 1
            yield DELETED_ROWS, "", add.deletion_vector.cardinality
        if not add.stats:
            yield WITHOUT_STATS, "", 1
        try:
            metrics, file = inspector.look(path, add)
        except SyncError as error:
            yield REFUSED, error.message + SEPARATOR + error.hint, 1
            return
        yield ROWS, "", metrics.record_count
        for field_id in file.int96:
            yield INT96, str(self.table.schema.find_column_name(field_id)), 1
        for column in file.hidden:
            yield HIDDEN, ".".join(column), 1
        for field in self.table.spec.fields:
            value = add.partition_values.get(self.table.physical_names[field.source_id])
            zoned = isinstance(self.table.schema.find_type(field.source_id), TimestamptzType)
            if value and zoned and not value.endswith("Z"):
                yield NO_ZONE, field.name, 1


def examine_files(state: TableState, task: ExaminationTask) -> Examination:
    """Inspect every live file of `state` in Spark tasks. Raises `PipelineAway`."""
    frame = state.adds.repartition(max(1, manifests_needed(state.files)))
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for batch in run_on_spark(frame, task, FACTS):
        for row in batch.to_pylist():
            counts[row["fact"], row["text"]] += row["n"]
            examples.setdefault((row["fact"], row["text"]), row["path"])

    def names(fact: str) -> tuple[str, ...]:
        return tuple(sorted(text for kind, text in counts if kind == fact))

    return Examination(
        files=counts[FILES, ""],
        physical_rows=counts[ROWS, ""],
        files_with_deletions=counts[DELETED_FROM, ""],
        deleted_rows=counts[DELETED_ROWS, ""],
        files_without_stats=counts[WITHOUT_STATS, ""],
        int96_columns=names(INT96),
        hidden_columns=names(HIDDEN),
        partitions_without_zone=names(NO_ZONE),
        refusals=tuple(
            Refusal(message, hint, examples[REFUSED, text], counts[REFUSED, text])
            for text in names(REFUSED)
            for message, _, hint in [text.partition(SEPARATOR)]
        ),
    )
