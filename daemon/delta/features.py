"""Which Delta tables we may read: what dvsync does with each table feature, and whether all that are used are listed.

Delta PROTOCOL.md, "Table Features": a feature that is used must be listed. Delta refuses a table if one is missing
(DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH). The rules for metadata and features follow Delta's TableFeature.scala.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from daemon.delta.actions import Metadata, Protocol
from daemon.errors import CorruptInput, Unsupported

READER_VERSION_MIN, READER_VERSION_MAX = 1, 3
TABLE_FEATURES_READER, TABLE_FEATURES_WRITER = 3, 7


class Decision(StrEnum):
    """`IF_UNUSED`: the protocol may list the feature, and a table that uses it is refused by what uses it."""

    FOLLOWED = "followed"
    IF_UNUSED = "followed if unused"
    BY_CATALOG = "followed if found in its catalog"
    REFUSED = "refused"


@dataclass(frozen=True)
class Feature:
    """What dvsync does with tables that list a feature. The note of a refused feature is the hint of the refusal."""

    note: str
    decision: Decision = Decision.FOLLOWED
    of_readers: bool = True  # False: readers may ignore it


def _of_writers(note: str, decision: Decision = Decision.FOLLOWED) -> Feature:
    return Feature(note, decision, of_readers=False)


FOR_WRITERS = _of_writers("concerns writers only")
_WIDENING = Feature("dvsync follows int to long, float to double, wider decimals, and refuses files of other widenings")
_VARIANT = Feature("dvsync follows variant columns in format version 3, if all of the table's readers read them")
_GEOSPATIAL = Feature("dvsync refuses geometry and geography columns by name", Decision.IF_UNUSED)
_CATALOG_MANAGED = Feature(
    "The table's commits are ratified by its catalog: name it under `sources`, and the table by its name there.",
    Decision.BY_CATALOG,
)
_ICEBERG_IDS = _of_writers("dvsync uses its ids of elements, keys and values")
# Of Delta 4.4 on Spark, Delta's kernels and proposals. docs/compatibility.md says the same, and a test holds it against
# Delta's own list. Of other features, those that readers must know are refused, and those for writers are ignored.
FEATURES: dict[str, Feature] = {
    "adaptiveMetadata-preview": Feature(
        "The table's files are listed in manifests of Iceberg v4, and not in the Delta log.", Decision.REFUSED
    ),
    "allowColumnDefaults": FOR_WRITERS,
    "appendOnly": FOR_WRITERS,
    "catalogManaged": _CATALOG_MANAGED,
    "catalogOwned-preview": _CATALOG_MANAGED,
    "changeDataFeed": _of_writers("dvsync ignores the cdc files, which hold no rows of the table"),
    "checkConstraints": FOR_WRITERS,
    "checkpointProtection": FOR_WRITERS,
    "clustering": _of_writers("no effect: Iceberg shows the same files"),
    "collations": _of_writers("columns with collations are strings"),
    "collations-preview": _of_writers("columns with collations are strings"),
    "columnMapping": Feature("Iceberg gets Delta's field ids; dvsync follows renames and drops"),
    "coordinatedCommits-preview": _of_writers("dvsync refuses a table with a coordinator", Decision.IF_UNUSED),
    "deletionVectors": Feature("become position-delete files"),
    "domainMetadata": FOR_WRITERS,
    "generatedColumns": FOR_WRITERS,
    "geospatial": _GEOSPATIAL,
    "geospatial-dev": _GEOSPATIAL,
    "icebergCompatV1": FOR_WRITERS,
    "icebergCompatV2": _ICEBERG_IDS,
    "icebergCompatV3": _ICEBERG_IDS,
    "icebergWriterCompatV1": FOR_WRITERS,
    "icebergWriterCompatV3": FOR_WRITERS,
    "identityColumns": FOR_WRITERS,
    "inCommitTimestamp": _of_writers("snapshots carry the in-commit time"),
    "invariants": FOR_WRITERS,
    "materializePartitionColumns": FOR_WRITERS,
    "redirectReaderWriter-preview": Feature(
        "Readers are redirected to another table: sync that one.", Decision.REFUSED
    ),
    "redirectWriterOnly-preview": FOR_WRITERS,
    "rowTracking": _of_writers("its hidden columns stay hidden"),
    "timestampNtz": Feature("timestamps without a time zone"),
    "timestampWithoutTimezone": Feature("timestamps without a time zone, by a name that Delta on Spark does not know"),
    "typeWidening": _WIDENING,
    "typeWidening-preview": _WIDENING,
    "v2Checkpoint": Feature("Delta itself reads the checkpoints"),
    "vacuumProtocolCheck": Feature("changes no rows"),
    "variantShredding": _VARIANT,
    "variantShredding-preview": _VARIANT,
    "variantType": _VARIANT,
    "variantType-preview": _VARIANT,
}
# Properties of the table that use a feature when they are true.
SWITCHES = {
    "delta.appendOnly": "appendOnly",
    "delta.enableChangeDataFeed": "changeDataFeed",
    "delta.enableDeletionVectors": "deletionVectors",
    "delta.enableIcebergCompatV1": "icebergCompatV1",
    "delta.enableIcebergCompatV2": "icebergCompatV2",
    "delta.enableIcebergCompatV3": "icebergCompatV3",
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableTypeWidening": "typeWidening",
    "delta.enableVariantShredding": "variantShredding-preview",
}
# Types of columns that use a feature.
TYPES = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
COORDINATOR = "delta.coordinatedCommits.commitCoordinator-preview"
IDENTITY = {"delta.identity.start", "delta.identity.step", "delta.identity.allowExplicitInsert"}
# The other features that a feature requires.
REQUIRED = {
    "catalogManaged": ("inCommitTimestamp", "vacuumProtocolCheck"),
    "clustering": ("domainMetadata",),
    "coordinatedCommits-preview": ("inCommitTimestamp", "vacuumProtocolCheck"),
    "icebergCompatV1": ("columnMapping",),
    "icebergCompatV2": ("columnMapping",),
    "icebergCompatV3": ("columnMapping", "rowTracking"),
    "rowTracking": ("domainMetadata",),
    "variantShredding": ("variantType",),
}
# A listed preview name counts as the final feature; so does a name that some writers list instead (issue 2557 of
# delta-kernel-rs).
PREVIEW = "-preview"
OTHER_NAMES = {"timestampWithoutTimezone": "timestampNtz"}


def is_readable(name: str, *, is_managed: bool = False) -> bool:
    """Return whether a protocol may list a feature for readers; `is_managed` as for `check_protocol`."""
    feature = FEATURES.get(name)
    refused = {Decision.REFUSED} if is_managed else {Decision.REFUSED, Decision.BY_CATALOG}
    return feature is not None and feature.of_readers and feature.decision not in refused


def used_features(metadata: Metadata) -> frozenset[str]:
    """Return the table features that valid metadata uses. Raises `CorruptInput` for a value unknown to Delta."""
    properties = metadata.configuration
    used = {feature for key, feature in SWITCHES.items() if _value(metadata, key, ("false", "true")) == "true"}
    if metadata.column_mapping_mode != "none":
        used.add("columnMapping")
    if _value(metadata, "delta.checkpointPolicy", ("classic", "v2")) == "v2":
        used.add("v2Checkpoint")
    if COORDINATOR in properties:
        used.add("coordinatedCommits-preview")
    if any(key.startswith("delta.constraints.") for key in properties):
        used.add("checkConstraints")
    schema = json.loads(metadata.schema_string)
    for field in schema["fields"]:
        marks = (field.get("metadata") or {}).keys()
        used |= {"generatedColumns"} if "delta.generationExpression" in marks else set()
        used |= {"identityColumns"} if marks >= IDENTITY else set()
    types: list[Any] = [{**schema, "type": "struct"}]
    while types:
        kind = types.pop()
        types += inner_types(kind)
        used |= {TYPES[kind]} if isinstance(kind, str) and kind in TYPES else set()
        for field in fields_of(kind):
            if not field["nullable"] or "delta.invariants" in (field.get("metadata") or {}):
                used.add("invariants")
    return frozenset(used)


def _value(metadata: Metadata, key: str, known: tuple[str, ...]) -> str:
    """Return the value of a property; the first of `known` is the default."""
    text = metadata.configuration.get(key, known[0])
    value = text.lower() if "true" in known else text
    if value not in known:
        raise CorruptInput(
            f"the table property {key} is {text!r}, but Delta knows only {' and '.join(known)}",
            hint="Delta cannot read this table either. Correct the property, then `dvsync resume` the table.",
        )
    return value


def inner_types(kind: Any) -> Iterator[Any]:
    """Yield the types directly inside a type, in the JSON of a schema. What is no type of Delta's has none."""
    match kind:
        case {"type": "array", "elementType": element}:
            yield element
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from (key, value)
    yield from (field["type"] for field in fields_of(kind) if "type" in field)


def fields_of(kind: Any) -> Sequence[dict[str, Any]]:
    """Return the fields of a struct; none for any other type, even if it has a key `fields`."""
    match kind:
        case {"type": "struct", "fields": [*fields]}:
            return [field for field in fields if isinstance(field, dict)]
    return ()


def check_features(protocol: Protocol, used: Iterable[str]) -> None:
    """Raise `CorruptInput` naming every feature that is used, or required by a listed one, but not listed."""
    # Protocol versions older than table features list none; each of these versions implies its features.
    if protocol.min_reader_version < TABLE_FEATURES_READER and protocol.min_writer_version < TABLE_FEATURES_WRITER:
        return
    listed = set(protocol.writer_features or ())
    final = {OTHER_NAMES.get(feature, feature.removesuffix(PREVIEW)) for feature in listed}
    needed = _with_required({*used, *listed}) - listed
    missing = sorted(feature for feature in needed if feature.removesuffix(PREVIEW) not in final)
    if missing:
        raise CorruptInput(
            f"the table uses {', '.join(missing)}, and its protocol does not list "
            f"{'this feature' if len(missing) == 1 else 'these features'}",
            hint="Delta cannot read this table either. Let its writer list the used features, or restore the metadata "
            "and the protocol. Then `dvsync resume` the table.",
        )


def _with_required(features: set[str]) -> set[str]:
    found = features.union(*(REQUIRED.get(feature, ()) for feature in features))
    return found if found == features else _with_required(found)


def check_protocol(protocol: Protocol, *, is_managed: bool = False) -> None:
    """Raise `Unsupported` naming each reader feature that is unknown or refused, `CorruptInput` for a contradiction.

    With `is_managed`, the log is read as the table's catalog has ratified it.
    """
    if not READER_VERSION_MIN <= protocol.min_reader_version <= READER_VERSION_MAX:
        raise Unsupported(
            f"Delta reader version {protocol.min_reader_version} is not known ({READER_VERSION_MIN} to "
            f"{READER_VERSION_MAX} are)",
            hint="Use a newer dvsync, or drop the feature that raised the table's protocol.",
        )
    _check_list("reader", protocol.min_reader_version, protocol.reader_features, TABLE_FEATURES_READER)
    _check_list("writer", protocol.min_writer_version, protocol.writer_features, TABLE_FEATURES_WRITER)
    refused = sorted(name for name in protocol.reader_features or () if not is_readable(name, is_managed=is_managed))
    if refused:
        known = (FEATURES[name] for name in refused if name in FEATURES)
        hints = dict.fromkeys(each.note for each in known if each.decision in (Decision.REFUSED, Decision.BY_CATALOG))
        raise Unsupported(
            f"reader feature {', '.join(refused)} is not supported",
            hint=" ".join(hints)
            or "Drop the feature from the Delta table (ALTER TABLE … DROP FEATURE), or stop syncing it.",
        )


def _check_list(side: str, version: int, features: list[str] | None, from_version: int) -> None:
    """Raise `CorruptInput` unless features are listed exactly from `from_version` on: "Protocol Evolution"."""
    if (version >= from_version) != (features is not None):
        raise CorruptInput(
            f"the protocol has {side} version {version} {'without' if features is None else 'with'} a list of {side} "
            "features",
            hint=f"Delta cannot read this table either: it lists {side} features from version {from_version} on. "
            "Correct the protocol action, then `dvsync resume` the table.",
        )


def check_metadata(metadata: Metadata) -> None:
    """Raise `Unsupported` for a configuration whose files we would misread, or whose newest commits we cannot see."""
    if COORDINATOR in metadata.configuration:
        raise Unsupported(
            f"the table's commits go through a coordinator ({COORDINATOR})",
            hint="Its newest commits may not be in _delta_log yet. Drop the feature (ALTER TABLE … DROP FEATURE "
            "'coordinatedCommits-preview'), or stop syncing the table.",
        )
    mode = metadata.column_mapping_mode
    if mode not in {"none", "name", "id"}:
        raise Unsupported(
            f"column mapping mode {mode} is not known", hint="Set it to none, name or id, the only modes of Delta."
        )
