"""`dvsync doctor`: finds out, before the first sync, whether dvsync can follow a Delta table. It writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec
from pyiceberg.schema import index_by_id, index_name_by_id
from pyiceberg.types import DoubleType, IcebergType, ListType, MapType, StructType

from daemon.config.settings import TableSettings
from daemon.delta.actions import Metadata
from daemon.delta.features import FEATURES, FOR_WRITERS, check_features, check_protocol, is_readable, used_features
from daemon.delta.log import DeltaLog
from daemon.delta.table_state import TableState
from daemon.delta_writer.deletion import check_writable
from daemon.doctor.examination import Examination, ExaminationTask
from daemon.errors import CorruptInput, LogMissing, SyncError, Unsupported
from daemon.iceberg.pyiceberg_ext.variant import VariantType
from daemon.mirror.defaults import defaults_of
from daemon.pipeline.data_manifests import manifests_needed
from daemon.pipeline.mirrors import KINDS, MirrorPlanner
from daemon.pipeline.runner import Runner
from daemon.spark.session import SparkPipeline
from daemon.store.durable import is_local
from daemon.store.storage import FileIOStorage
from daemon.translate.definition import VECTORIZED_READS, shape_for
from daemon.translate.delta_types import parse_struct, physical_name
from daemon.translate.existing_table import check_places
from daemon.translate.readers import Fault, misreaders, others_misread
from daemon.translate.schema import TableSchema, translate_schema

# What a format version changes in the notes on Delta's features.
NOTES = {3: {"deletionVectors": "are copied into Puffin files", "rowTracking": "_row_id is Delta's row id"}}
# PyIceberg's setting `downcast-ns-timestamp-to-us-on-write`, which it also obeys when it reads.
DOWNCAST = "PYICEBERG_DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE"
ROW_IDS_UNMAPPED = "_row_id is Iceberg's own: with column mapping, Delta's row ids have no field id in the files"
# What the choice of the format version means for readers. docs/formats.md has it in figures.
VECTOR_READERS = "Spark 4.1 with Iceberg 1.12, PyIceberg 0.12, Polars 2.1 and DuckDB 1.5.5"
FORMAT_VERSIONS = {
    2: "2: position-delete files, which all readers of Iceberg tables know. With format_version: 3, deletions become "
    f"vectors, one for each data file, which stay fast to read without compaction; {VECTOR_READERS} read them",
    3: f"3: deletion vectors, which {VECTOR_READERS} read. Readers that know only version 2 cannot read the table, and "
    "there is no way back",
}
CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"


class Verdict(StrEnum):
    FOLLOWED = "followed"
    NOTE = "note"
    REFUSED = "refused"


class Finding(msgspec.Struct, frozen=True):
    """One fact about the table. `hint` says what to do about a refusal."""

    verdict: Verdict
    subject: str
    text: str
    hint: str | None = None


class ReaderTrouble(msgspec.Struct, frozen=True):
    """A problem that these readers of the Iceberg table will have, with these columns or with the whole table."""

    readers: tuple[str, ...]
    text: str
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{', '.join(self.columns)}: {self.text}" if self.columns else self.text


class Diagnosis(msgspec.Struct, frozen=True):
    """The findings on a table at a version. `version` is None if Delta itself cannot read the table.

    The counts are those of the data files that can be read: `rows` with deleted ones, and files with deletion vectors.
    """

    source: str
    version: int | None
    findings: tuple[Finding, ...]
    readers: tuple[ReaderTrouble, ...] = ()
    data_files: int = 0
    rows: int = 0
    deletion_vectors: int = 0

    @property
    def is_followed(self) -> bool:
        return all(finding.verdict is not Verdict.REFUSED for finding in self.findings)


def diagnose(settings: TableSettings, log: DeltaLog, pipeline: SparkPipeline) -> Diagnosis:
    """Examine a Delta table. Its faults are findings; raised are Retryable and LogMissing."""
    try:
        with Runner(pipeline, settings.engine).open_state(log) as state:
            return _diagnose(settings, state, log.storage)
    except LogMissing as error:
        hint = "Check the path: a Delta table is a folder with a folder `_delta_log`."
        raise LogMissing("there is no Delta table", path=error.path, hint=hint) from error
    except (CorruptInput, Unsupported) as error:
        return Diagnosis(settings.shown_source, None, (_refused("table", error),))


def _diagnose(settings: TableSettings, state: TableState, storage: FileIOStorage) -> Diagnosis:
    findings = [*_checked("place", partial(check_places, settings.location or "", {}, settings.source))]
    findings += _of_protocol(state, settings)
    findings += _of_writing(state, settings)
    schema, refused, of_columns = _of_columns(state.metadata, settings)
    findings += of_columns
    if schema is None:
        return Diagnosis(settings.shown_source, state.version, tuple(findings))
    findings += _checked("features", lambda: check_features(state.protocol, used_features(state.metadata)))
    planner = MirrorPlanner(storage, schema, KINDS["rewrite"], state.metadata.id, defaults_of(state.metadata))
    place = settings.delete_files_location or settings.location or storage.properties.get("warehouse", "")
    # The catalog may choose another place. The warehouse of a REST catalog may be a name.
    mirrors = place.rstrip("/") if "://" in place else settings.source
    files, task = Examination(), ExaminationTask(settings.source, mirrors, planner, KINDS[settings.mirrors])
    try:
        for each in state.map_adds(task, max(1, manifests_needed(state.files))):
            files.add(each)
    except (CorruptInput, Unsupported) as error:
        return Diagnosis(settings.shown_source, state.version, (*findings, _refused("data files", error)))
    findings += _of_files(files, settings, refused, mirrors)
    return Diagnosis(
        settings.shown_source,
        state.version,
        tuple(findings),
        tuple(_readers(state, schema, files, settings)),
        files.files,
        files.physical_rows,
        files.files_with_deletions,
    )


def _refused(subject: str, error: SyncError) -> Finding:
    return Finding(Verdict.REFUSED, subject, str(error), error.hint)


def _noted(fault: Fault, column: str) -> Finding:
    return Finding(Verdict.NOTE, f"column {column}", f"followed, because `readers` leaves out {others_misread(fault)}")


def _checked(subject: str, check: Callable[[], object]) -> Iterator[Finding]:
    try:
        check()
    except SyncError as error:
        yield _refused(subject, error)


def _of_protocol(state: TableState, settings: TableSettings) -> Iterator[Finding]:
    protocol, notes = state.protocol, dict(NOTES.get(settings.format_version, {}))
    if notes and state.metadata.column_mapping_mode != "none":
        notes["rowTracking"] = ROW_IDS_UNMAPPED
    if settings.is_managed:
        notes |= dict.fromkeys(("catalogManaged", "catalogOwned-preview"), "the catalog says what is committed")
    yield from _checked("protocol", partial(check_protocol, protocol, is_managed=settings.is_managed))
    if "deletionVectors" in (protocol.reader_features or ()):
        yield Finding(Verdict.FOLLOWED, "format version", FORMAT_VERSIONS[settings.format_version])
    for feature in sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())}):
        if is_readable(feature, is_managed=settings.is_managed) or feature not in (protocol.reader_features or ()):
            note = FEATURES.get(feature, FOR_WRITERS).note
            yield Finding(Verdict.FOLLOWED, f"feature {feature}", notes.get(feature, note))


def _of_writing(state: TableState, settings: TableSettings) -> Iterator[Finding]:
    """What dvsync may write to the Delta table, and whether it could."""
    subject, ways = "writes to Delta", list[str]()
    if settings.may_delete:
        ways.append("`dvsync delete`")
    if settings.foreign_deletes_max:
        ways.append(f"what others delete in Iceberg, up to {settings.deletes} of the rows at a time")
    for why in _checked(subject, partial(check_writable, state.protocol, state.metadata)) if ways else ():
        yield Finding(Verdict.NOTE, subject, f"dvsync may delete rows, and could not: {why.text}", why.hint)
        return
    if ways:
        yield Finding(Verdict.FOLLOWED, subject, f"deletes rows, by {' and '.join(ways)}")


def _of_columns(metadata: Metadata, settings: TableSettings) -> tuple[TableSchema | None, set[str], list[Finding]]:
    """Translate each column by itself. Returns a schema, the refused ones' names, and findings.

    The schema has the accepted columns, and those that would be with mirrors: their files are examined, too.
    """
    try:
        struct = parse_struct(metadata.schema_string)
    except SyncError as error:
        return None, set(), [_refused("columns", error)]
    shown, refused, findings = [], set(), []
    for field in struct["fields"]:
        translate = partial(
            translate_schema,
            _with_fields(metadata, [field]),
            readers=settings.readers,
            format_version=settings.format_version,
        )
        try:
            translate(numbers_contents=True)
            shown.append(field)
            found = translate(numbers_contents=settings.has_mirrors)
            findings += [_noted(fault, field["name"]) for fault in sorted(found.faults)]
        except SyncError as error:
            refused.add(physical_name(field))
            findings.append(_refused(f"column {field['name']}", error))
    followed = len(struct["fields"]) - len(refused)
    findings.append(Finding(Verdict.FOLLOWED, "columns", f"{followed} of {len(struct['fields'])}"))
    try:
        with_mirrors = settings.model_copy(update={"mirrors": "footer"})
        table = shape_for(_with_fields(metadata, shown), None, with_mirrors).table
    except SyncError as error:
        return None, refused, [*findings, _refused("columns", error)]
    kinds = {field["name"]: (field.get("metadata") or {}).get(CHAR_TYPE, field["type"]) for field in shown}
    chars = [name for name, kind in kinds.items() if str(kind).startswith("char(")]
    if chars:
        text = "Spark pads CHAR values with spaces when it reads Delta; Iceberg shows the stored values"
        findings.append(Finding(Verdict.NOTE, f"column {', '.join(chars)}", text))
    return table, refused, findings


def _with_fields(metadata: Metadata, fields: Sequence[Mapping[str, Any]]) -> Metadata:
    names = {field["name"] for field in fields}
    return msgspec.structs.replace(
        metadata,
        schema_string=json.dumps({"type": "struct", "fields": fields}),
        partition_columns=[name for name in metadata.partition_columns if name in names],
    )


def _of_files(files: Examination, settings: TableSettings, refused: Container[str], mirrors: str) -> Iterator[Finding]:
    followed = files.files - files.refusals.total()
    yield Finding(Verdict.FOLLOWED, "data files", f"{followed} of {files.files}, {files.physical_rows} rows")
    if files.files_with_deletions:
        text = f"{files.deleted_rows} rows of {files.files_with_deletions} files"
        yield Finding(Verdict.FOLLOWED, "deletion vectors", text)
    for (message, hint), count in sorted(files.refusals.items()):
        more = f" and {count - 1} more" if count > 1 else ""
        yield Finding(Verdict.REFUSED, f"file {files.refused[message, hint]}{more}", message, hint)
    for kind, count in files.mirrors.items():
        is_allowed = kind in KINDS[settings.mirrors]
        if kind == "rewrite":
            cost = "at a guess, whose rows are read and written again"
        elif passing_bytes := files.passing_bytes[kind]:
            cost = f"in all, of which {passing_bytes:,} are copied through dvsync"
        else:
            cost = f"in all, copied {'by the file system' if is_local(mirrors) else 'server-side, by the store'}"
        text = f"{'' if is_allowed else f'with mirrors: {kind}, '}{count} of {files.files} files have mirrors of "
        text += f"{files.mirror_bytes[kind]:,} bytes {cost}"
        yield Finding(Verdict.FOLLOWED if is_allowed else Verdict.NOTE, "mirrors", text)
    yield from (_noted(fault, column) for fault, column in sorted(files.faults))
    if files.files_without_stats:
        text = f"{files.files_without_stats} files have none: readers cannot skip these files"
        yield Finding(Verdict.NOTE, "statistics", text)
    for column in sorted(files.partitions_without_zone):
        text = f"values without a time zone are read as {settings.partition_time_zone} (partition_time_zone)"
        yield Finding(Verdict.NOTE, f"partition column {column}", text)
    hidden = [column for column in sorted(files.hidden_columns) if column.split(".")[0] not in refused]
    if hidden:
        text = f"{', '.join(hidden)}: in the files but not in Delta's schema; readers do not see them"
        yield Finding(Verdict.NOTE, "hidden columns", text)


def _readers(
    state: TableState, schema: TableSchema, files: Examination, settings: TableSettings
) -> Iterator[ReaderTrouble]:
    mode = state.metadata.column_mapping_mode
    if mode == "none":
        yield ReaderTrouble(("Daft",), "cannot read files without field ids, and these files have none")
    if files.int96_columns and settings.format_version > 2:
        text = f"in format version 3, INT96 timestamps need the environment variable {DOWNCAST}=true"
        yield ReaderTrouble(("PyIceberg", "Polars (with PyIceberg)"), text, tuple(sorted(files.int96_columns)))
    if files.int96_columns and misreaders(Fault.INT96_RANGE, settings.readers):
        text = "INT96 values before 1677 or after 2262 are shown wrongly; dvsync refuses such files"
        yield ReaderTrouble(("PyIceberg", "Polars"), text, tuple(sorted(files.int96_columns)))
    if files.int96_columns:
        text = "INT96 timestamps are taken for local times: SET TimeZone = 'UTC'"
        yield ReaderTrouble(("DuckDB",), text, tuple(sorted(files.int96_columns)))
    if files.millis_columns:
        text = "timestamps in milliseconds are wrong in vectorized reads; dvsync turns them off for the table "
        yield ReaderTrouble(("Spark",), f"{text}({VECTORIZED_READS})", tuple(sorted(files.millis_columns)))
    if files.view_columns:
        text = "stored as Arrow's string views, as delta-rs does in DELETE, UPDATE and MERGE; fails if other files "
        text += "store strings, or if rows are deleted, until OPTIMIZE"
        yield ReaderTrouble(("PyIceberg", "Polars (with PyIceberg)"), text, tuple(sorted(files.view_columns)))
    fields, partitions = schema.schema.fields, schema.spec.fields
    doubles = [each.name for each in partitions if isinstance(schema.schema.find_type(each.source_id), DoubleType)]
    if doubles:
        text = "filters on double partition columns compare the values as floats"
        yield ReaderTrouble(("PyIceberg", "Polars"), text, tuple(doubles))
    if partitions:
        text = "filters on unselected partition columns return wrong rows from files without these columns"
        yield ReaderTrouble(("PyIceberg",), text)
    if dotted := tuple(field.name for field in fields if "." in field.name):
        yield ReaderTrouble(("PyIceberg",), "filters on columns with a dot in their name fail", dotted)
    keyed = tuple(field.name for field in fields if _has_struct_keys(field.field_type))
    if keyed and mode != "none":
        yield ReaderTrouble(("Polars (native)",), "cannot read maps with structs in their keys", keyed)
    names, inside = index_name_by_id(schema.schema), index_by_id(schema.schema)
    if variants := tuple(names[each] for each in inside if isinstance(inside[each].field_type, VariantType)):
        yield ReaderTrouble(("DuckDB",), "the null of JSON is shown as no value at all", variants)
    if emptied := tuple(name for field in fields for name in _emptied(field.field_type, field.name)):
        text = "a null list of structs, or map to structs, is shown as empty"
        yield ReaderTrouble(("PyIceberg", "Polars (with PyIceberg)"), text, emptied)


def _emptied(kind: IcebergType, name: str) -> Iterator[str]:
    """Yield the lists and maps whose nulls PyIceberg 0.12 loses: those that contain structs.

    PyIceberg rebuilds them field by field, without their nulls. It casts other lists and maps as a whole
    (ArrowProjectionVisitor).
    """
    match kind:
        case StructType():
            for field in kind.fields:
                yield from _emptied(field.field_type, f"{name}.{field.name}")
        case ListType(element_type=StructType()):
            yield name
            yield from _emptied(kind.element_type, f"{name}.element")
        case MapType(value_type=StructType()):
            yield name
            yield from _emptied(kind.key_type, f"{name}.key")
            yield from _emptied(kind.value_type, f"{name}.value")


def _has_struct_keys(kind: IcebergType) -> bool:
    return any(
        isinstance(inner, MapType) and any(isinstance(each, StructType) for each in _flat(inner.key_type))
        for inner in _flat(kind)
    )


def _flat(kind: IcebergType) -> list[IcebergType]:
    """Return the type itself and every type nested in it."""
    return [kind, *(field.field_type for field in index_by_id(kind).values())]


def as_lines(diagnosis: Diagnosis) -> Sequence[str]:
    at = "" if diagnosis.version is None else f" at version {diagnosis.version}"
    lines = [f"{diagnosis.source}{at}: {'can be followed' if diagnosis.is_followed else 'would be refused'}"]
    for finding in sorted(diagnosis.findings, key=lambda finding: list(Verdict).index(finding.verdict)):
        lines.append(f"  {finding.verdict:<8}  {finding.subject}: {finding.text}")
        if finding.hint:
            lines.append(f"            {finding.hint}")
    lines += [f"  reader    {', '.join(trouble.readers)}: {trouble}" for trouble in diagnosis.readers]
    return lines
