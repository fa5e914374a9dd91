"""The lines of a commit that deletes rows. Delta PROTOCOL.md, "Actions". Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from daemon.delta.actions import AddFile, Metadata
from daemon.delta.add_details import AddDetails
from daemon.delta.checkpoint import OTHER_YEARS
from daemon.delta.features import fields_of
from daemon.predicate.files import read_stats
from daemon.predicate.tree import Path
from daemon.translate.delta_types import parse_struct, physical_name
from state.records import DeletionVectorDescriptor

# How Arrow writes a timestamp, with milliseconds and what Delta cuts off.
MOMENT = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2}) (?P<time>[0-9:]{8})(?P<ms>\.[0-9]{3})?[0-9]*Z?")
_encoder = msgspec.json.Encoder(decimal_format="number")
Json = dict[str, Any]


@dataclass
class Counts:
    """What a deletion changes."""

    deleted_rows: int = 0
    files_removed: int = 0
    vectors_added: int = 0
    vectors_updated: int = 0
    vectors_removed: int = 0

    def metrics(self, *, scan_ms: int, rewrite_ms: int) -> dict[str, str]:
        """Return Delta's operation metrics of a DELETE. A file counts as removed if it is not added again.

        A vector that is updated counts as removed and added, too (DeltaOperations.transformDeletionVectorMetrics).
        """
        numbers = {
            "numDeletedRows": self.deleted_rows,
            "numRemovedFiles": self.files_removed,
            "numDeletionVectorsAdded": self.vectors_added + self.vectors_updated,
            "numDeletionVectorsUpdated": self.vectors_updated,
            "numDeletionVectorsRemoved": self.vectors_removed + self.vectors_updated,
            "numAddedFiles": 0,
            "numAddedChangeFiles": 0,
            "numCopiedRows": 0,
            "numAddedBytes": 0,
            "numRemovedBytes": 0,
            "scanTimeMs": scan_ms,
            "rewriteTimeMs": rewrite_ms,
            "executionTimeMs": scan_ms + rewrite_ms,
        }
        return {name: str(number) for name, number in numbers.items()}


def remove_line(add: AddFile, details: AddDetails, record_count: int, now_ms: int) -> Json:
    # Extended: partition values and size are there. Of the statistics, Delta keeps this one.
    more = {"deletionTimestamp": now_ms, "extendedFileMetadata": True, "stats": _encode({"numRecords": record_count})}
    return {"remove": _shared(add, details, add.deletion_vector) | more}


def add_line(add: AddFile, details: AddDetails, vector: DeletionVectorDescriptor, stats: str) -> Json:
    """`stats` is of `wide_stats`."""
    action = {**_shared(add, details, vector), "modificationTime": details.modification_time, "stats": stats}
    return {"add": action | _given({"clusteringProvider": details.clustering_provider})}


def _shared(add: AddFile, details: AddDetails, vector: DeletionVectorDescriptor | None) -> Json:
    action = {"path": details.path, "partitionValues": add.partition_values, "size": add.size, "dataChange": True}
    return action | _given(
        {
            "tags": details.tags,
            "deletionVector": _given(msgspec.to_builtins(vector)) if vector else None,
            "baseRowId": add.base_row_id,
            "defaultRowCommitVersion": details.default_row_commit_version,
        }
    )


def _given(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def zones_of(metadata: Metadata) -> dict[Path, str]:
    """Return the zone that each column of timestamps has in statistics: `Z`, or none. By the path of physical names."""
    zones = dict[Path, str]()
    structs: list[tuple[Path, Any]] = [((), {**parse_struct(metadata.schema_string), "type": "struct"})]
    while structs:
        parent, kind = structs.pop()
        for field in fields_of(kind):
            path = (*parent, physical_name(field))
            structs.append((path, field["type"]))
            if field["type"] in ("timestamp", "timestamp_ntz"):
                zones[path] = "Z" if field["type"] == "timestamp" else ""
    return zones


def kept_stats(add: AddFile, record_count: int) -> Json:
    """Return the statistics that the log has of a file; empty if it has none, or of another number of rows."""
    found = read_stats(add)
    return found if found.get("numRecords") == record_count else {}


def wide_stats(add: AddFile, record_count: int, zones: Mapping[Path, str], found: Json) -> str:
    """Return a file's statistics once more of its rows are deleted: bounds are wide, and counts those of all rows.

    PROTOCOL.md, "Per-file Statistics": with wide bounds, a null count says that all rows are null, or none, or nothing.
    `zones` is of `zones_of`, `found` of `kept_stats`, or of `load_stats` for a file without them.
    """
    live = record_count - (add.deletion_vector.cardinality if add.deletion_vector else 0)
    stats = {**found, "numRecords": record_count, "tightBounds": False}
    for name in {"minValues", "maxValues"} & found.keys():
        stats[name] = _in_form_of_json(found[name], (), zones)
    if "nullCount" in found and found.get("tightBounds", True):
        stats["nullCount"] = _physical_counts(found["nullCount"], live, record_count)
    return _encode(stats)


def _encode(stats: Json) -> str:
    return _encoder.encode(stats).decode()


def _in_form_of_json(values: Any, path: Path, zones: Mapping[Path, str]) -> Any:
    """Return bounds as Delta has them in commits. Our reader of checkpoints gives timestamps another form there, and a
    word that stands for no value to those that it cannot express.
    """
    if isinstance(values, dict):
        inner = {name: _in_form_of_json(each, (*path, name), zones) for name, each in values.items()}
        return {name: each for name, each in inner.items() if each != OTHER_YEARS}
    if path in zones and isinstance(values, str) and (found := MOMENT.fullmatch(values)):
        return f"{found['day']}T{found['time']}{found['ms'] or '.000'}{zones[path]}"
    return values


def _physical_counts(counts: Any, live: int, record_count: int) -> Any:
    if isinstance(counts, dict):
        return {name: _physical_counts(each, live, record_count) for name, each in counts.items()}
    return record_count if counts == live else counts


def encode_commit(commit_info: Json, lines: Iterable[Json]) -> bytes:
    """Return the bytes of a commit file. PROTOCOL.md, "In-Commit Timestamps": `commitInfo` is first."""
    return b"".join(_encoder.encode(line) + b"\n" for line in ({"commitInfo": commit_info}, *lines))
