"""What an OpenLineage event says of places, columns and catalogs, whatever they are called."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, ListType, LongType, MapType, NestedField, StringType, StructType

from daemon.notices.notice import Deleted, Run, catalog_place, events_of
from daemon.notices.openlineage import dataset_name, render


@pytest.mark.parametrize(
    ("location", "namespace", "name"),
    [
        ("file:///data/lake/orders", "file", "/data/lake/orders"),
        ("/data/lake/orders", "file", "/data/lake/orders"),
        ("s3://lake/raw/orders", "s3://lake", "raw/orders"),
        ("s3a://lake/raw/orders", "s3://lake", "raw/orders"),
        ("gs://lake/orders", "gs://lake", "orders"),
        ("abfss://box@account.dfs.core.windows.net/a/b", "abfss://box@account.dfs.core.windows.net", "a/b"),
        ("s3://lake", "s3://lake", "/"),
    ],
)
def test_places_have_the_names_of_the_specification(location: str, namespace: str, name: str) -> None:
    """OpenLineage, "Naming", so that events of other programs name the same dataset."""
    assert dataset_name(location) == (namespace, name)


@pytest.mark.parametrize(
    ("properties", "place"),
    [
        ({"uri": "https://user:secret@h/api?token=secret", "warehouse": "name"}, "https://h/api"),
        ({"uri": "thrift://h:9083"}, "hive://h:9083"),
        ({"uri": "postgresql+psycopg://user:secret@h/db", "warehouse": "s3a://lake/house"}, "s3://lake/house"),
        ({}, None),
    ],
)
def test_a_catalog_is_named_without_its_secrets(properties: dict[str, str], place: str | None) -> None:
    assert catalog_place(properties) == place


def told(run: Run) -> list[dict[str, Any]]:
    return [json.loads(render(event)) for event in events_of(run)]


RUN = Run("orders", "s3://lake/orders", "lake.orders", 1_000, 2_500, version=7, snapshot_id=8, location="/w/orders")


def test_nested_columns_are_told_as_fields() -> None:
    inner = StructType(NestedField(5, "sum", DecimalType(9, 2), doc="net"))
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "parts", ListType(3, inner)),
        NestedField(6, "tags", MapType(7, StringType(), 8, StringType())),
    )
    (_, end) = told(Run(**{**vars(RUN), "schema": schema}))
    ident, parts, tags = end["outputs"][0]["facets"]["schema"]["fields"]
    assert (ident["type"], ident["ordinal_position"], ident["fields"]) == ("long", 1, [])
    assert (parts["type"], [each["name"] for each in parts["fields"]]) == ("list", ["element"])
    (net,) = parts["fields"][0]["fields"]
    assert (net["name"], net["type"], net["description"]) == ("sum", "decimal(9, 2)", "net")
    assert [each["name"] for each in tags["fields"]] == ["key", "value"]


def test_both_events_of_a_run_have_one_id_and_their_own_times() -> None:
    """An event that is made again is the same; the start does not know the snapshot yet."""
    start, end = told(RUN)
    assert start["run"]["runId"] == end["run"]["runId"] == told(RUN)[0]["run"]["runId"]
    assert [each["eventTime"] for each in (start, end)] == [
        "1970-01-01T00:00:01.000+00:00",
        "1970-01-01T00:00:02.500+00:00",
    ]
    assert [each["inputs"][0]["facets"]["version"]["datasetVersion"] for each in (start, end)] == ["7", "7"]
    assert "version" not in start["outputs"][0]["facets"]
    other = told(Run(**{**vars(RUN), "snapshot_id": 9}))[0]
    assert other["run"]["runId"] != start["run"]["runId"]


def test_a_table_that_never_had_an_iceberg_table_has_no_output() -> None:
    start, end = told(Run(**{**vars(RUN), "version": None, "location": None, "error": "refused"}))
    assert (end["eventType"], start["outputs"], end["outputs"]) == ("FAIL", [], [])
    assert end["run"]["facets"]["errorMessage"]["message"] == "refused"
    assert "errorMessage" not in start["run"]["facets"]


def test_rows_deleted_from_delta_are_a_run_of_another_job() -> None:
    """It writes what the table's job reads; where nobody deleted them in Iceberg before, it reads nothing."""
    start, end = told(Run(**{**vars(RUN), "deleted": Deleted(3, "snapshot 8, by somebody")}))
    assert start["job"]["name"] == end["job"]["name"] == "orders.delete"
    (source,), (target,) = end["inputs"], end["outputs"]
    assert (source["name"], source["facets"]["version"]["datasetVersion"]) == ("/w/orders", "8")
    assert (target["namespace"], target["name"]) == ("s3://lake", "orders")
    assert target["facets"]["version"]["datasetVersion"] == "7"
    assert "version" not in start["outputs"][0]["facets"]
    tags = {each["key"]: each["value"] for each in end["run"]["facets"]["tags"]["tags"]}
    assert tags == {"deletedRows": "3", "deletedBy": "snapshot 8, by somebody"}
    (_, end) = told(Run(**{**vars(RUN), "location": None, "deleted": Deleted(3, "somebody")}))
    assert (end["inputs"], end["outputs"][0]["name"]) == ([], "orders")
    assert end["run"]["runId"] != start["run"]["runId"]
