"""OpenLineage's events, built by OpenLineage's own client, which is an extra. A hook's thread imports this module."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib.metadata import version

from openlineage.client import event_v2
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, RunEvent
from openlineage.client.facet_v2 import (
    DatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    storage_dataset,
    symlinks_dataset,
    tags_run,
)
from openlineage.client.serde import Serde
from openlineage.client.uuid import generate_static_uuid
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from daemon.masking import scrub
from daemon.notices.notice import Run, RunState
from daemon.store.locations import canonical

# The program that made an event, as a URI, which leads nowhere.
event_v2.set_producer("urn:dvsync")

Field = schema_dataset.SchemaDatasetFacetFields


def render(run: Run) -> bytes:
    """Return a RunEvent as JSON. The job has the table's name; the one that deletes rows from Delta is `….delete`."""
    namespace, is_start = os.environ.get("OPENLINEAGE_NAMESPACE") or "dvsync", run.event is RunState.START
    started = datetime.fromtimestamp(run.started_ms / 1000, UTC)
    at = started if is_start else datetime.fromtimestamp(run.ended_ms / 1000, UTC)
    identity = f"{namespace} {run.table} {run.version} {run.snapshot_id} {run.error} {run.deleted}"
    engine = processing_engine_run.ProcessingEngineRunFacet(version("dvsync"), "dvsync", version("openlineage-python"))
    facets: dict[str, RunFacet] = {"processing_engine": engine}
    if run.error is not None and not is_start:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(scrub(run.error), "PYTHON")
    inputs, outputs = _read_and_written(run, is_start=is_start)
    if run.deleted:
        told = {"deletedRows": str(run.deleted.rows), "deletedBy": scrub(run.deleted.by)}
        tags = [tags_run.TagsRunFacetFields(key, value, "DVSYNC") for key, value in told.items()]
        facets["tags"] = tags_run.TagsRunFacet(tags)
    rendered = RunEvent(
        eventType=event_v2.RunState(run.event.value),
        eventTime=at.isoformat(timespec="milliseconds"),
        # An event that is sent again has the same id.
        run=event_v2.Run(str(generate_static_uuid(started, identity.encode())), facets),
        job=Job(
            namespace,
            f"{run.table}.delete" if run.deleted else run.table,
            {"jobType": job_type_job.JobTypeJobFacet("BATCH", "DVSYNC", "JOB")},
        ),
        inputs=inputs,
        outputs=outputs,
    )
    return Serde.to_json(rendered).encode()


def _read_and_written(run: Run, *, is_start: bool) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Before its end, a run has no version of what it writes."""
    delta, iceberg, location = _delta_facets(run), _iceberg_facets(run), run.location
    if is_start:
        (delta if run.deleted else iceberg).pop("version", None)
    if run.deleted:
        inputs = [InputDataset(*dataset_name(location), facets=iceberg)] if location else []
        return inputs, [OutputDataset(*dataset_name(run.source), facets=delta)]
    statistics: dict[str, OutputDatasetFacet] = {}
    if not is_start and run.written:
        statistics["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            run.written.rows, run.written.size_bytes, run.written.files
        )
    outputs = [OutputDataset(*dataset_name(location), facets=iceberg, outputFacets=statistics)] if location else []
    return [InputDataset(*dataset_name(run.source), facets=delta)], outputs


def _delta_facets(run: Run) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {"storage": storage_dataset.StorageDatasetFacet("delta", "parquet")}
    if run.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(run.version))
    return facets


def _iceberg_facets(run: Run) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {"storage": storage_dataset.StorageDatasetFacet("iceberg", "parquet")}
    if run.catalog:
        identifier = symlinks_dataset.Identifier(run.catalog, run.target, "TABLE")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([identifier])
    if run.schema:
        fields = [_field(each, place) for place, each in enumerate(run.schema.fields, start=1)]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields)
    if run.snapshot_id is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(run.snapshot_id))
    return facets


def dataset_name(location: str) -> tuple[str, str]:
    """Return the namespace and the name of a place by OpenLineage's naming of datasets.

    `s3a://lake/orders` -> `s3://lake`, `orders`; `file:///data/orders` -> `file`, `/data/orders`.
    """
    scheme, _, rest = canonical(location).partition("://")
    authority, _, path = rest.partition("/")
    if scheme == "file":
        return "file", f"/{path}"
    return f"{scheme}://{authority}", path or "/"


def _field(field: NestedField, place: int | None = None) -> Field:
    inner = _fields_within(field.field_type)
    # A nested type has its fields; its whole text would grow with each level.
    kind = type(field.field_type).__name__.removesuffix("Type").lower() if inner else str(field.field_type)
    return Field(name=field.name, type=kind, description=field.doc, ordinal_position=place, fields=inner)


def _fields_within(kind: IcebergType) -> list[Field]:
    match kind:
        case StructType():
            return [_field(each) for each in kind.fields]
        case ListType():
            return [_field(kind.element_field)]
        case MapType():
            return [_field(kind.key_field), _field(kind.value_field)]
        case _:
            return []
