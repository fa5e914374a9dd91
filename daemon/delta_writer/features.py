"""Which Delta tables dvsync may delete from: an allow list of table features by name, and of properties.

Delta PROTOCOL.md, "Table Features": a writer must support each feature that is listed. What is no list of names here is
refused.
"""

from __future__ import annotations

from typing import Final

from daemon.delta.actions import Metadata, Protocol
from daemon.delta.features import (
    TABLE_FEATURES_READER,
    TABLE_FEATURES_WRITER,
    check_features,
    check_metadata,
    check_protocol,
    used_features,
)
from daemon.errors import Unsupported

DELETION_VECTORS: Final = "delta.enableDeletionVectors"
# A commit that deletes rows writes neither data files nor metadata, so what these ask of those concerns it not.
NOT_CONCERNED: Final = {
    *("allowColumnDefaults", "checkConstraints", "generatedColumns", "identityColumns", "invariants"),
    *("columnMapping", "materializePartitionColumns", "timestampNtz", "typeWidening", "typeWidening-preview"),
    # Checkpoints are written and removed by Delta only; so is the log cleaned up.
    *("checkpointProtection", "v2Checkpoint", "vacuumProtocolCheck"),
    # No action of a domain is written, so all stay.
    *("clustering", "domainMetadata"),
}
# Those that `check_writable`, or the commit itself, does what they ask for. By the vectors, readers of the change data
# feed find the deleted rows, as after Delta's own DELETE. The IcebergCompat features count once they are active.
RESPECTED: Final = {
    *("appendOnly", "changeDataFeed", "deletionVectors", "inCommitTimestamp", "rowTracking"),
    *("icebergCompatV1", "icebergCompatV2", "icebergCompatV3"),
}
REFUSED: Final = {
    "catalogManaged": "its commits must go through its catalog, which dvsync cannot do",
    "catalogOwned-preview": "its commits must go through its catalog, which dvsync cannot do",
}
# Properties that, if they are set so, forbid what a deletion does, or ask for more than it does.
FORBIDDING: Final = {
    "delta.appendOnly": ("true", "is set, so that no row may be deleted"),
    **{
        f"delta.enableIceberg{name}": ("true", "is set, and Iceberg's readers by this way would show the deleted rows")
        for name in ("CompatV1", "CompatV2", "CompatV3", "WriterCompatV1", "WriterCompatV3")
    },
    "delta.compatibility.symlinkFormatManifest.enabled": ("true", "is set, and manifests do not know deletion vectors"),
    "delta.universalFormat.enabledFormats": (None, "is set, and only Delta writes the other format's metadata"),
}


def check_writable(protocol: Protocol, metadata: Metadata) -> None:
    """Raise `Unsupported` naming what forbids to delete rows by deletion vectors, `CorruptInput` as readers do."""
    check_protocol(protocol)
    check_metadata(metadata)
    check_features(protocol, used_features(metadata))
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    unknown = sorted(listed - NOT_CONCERNED - RESPECTED)
    if unknown:
        why = "; ".join(f"{name}: {REFUSED[name]}" for name in unknown if name in REFUSED)
        raise Unsupported(
            f"dvsync does not write tables with the feature {', '.join(unknown)}" + (f" ({why})" if why else ""),
            hint="Delete the rows with Delta, or drop the feature (ALTER TABLE … DROP FEATURE).",
        )
    versions = (protocol.min_reader_version, protocol.min_writer_version)
    has_vectors = "deletionVectors" in listed and versions == (TABLE_FEATURES_READER, TABLE_FEATURES_WRITER)
    if not has_vectors or metadata.configuration.get(DELETION_VECTORS, "").lower() != "true":
        raise Unsupported(
            f"the table does not allow new deletion vectors ({DELETION_VECTORS} is not true)",
            hint=f"ALTER TABLE … SET TBLPROPERTIES ('{DELETION_VECTORS}' = 'true') in Delta. Then all readers of the "
            "table must know deletion vectors.",
        )
    for name, (value, why) in FORBIDDING.items():
        found = metadata.configuration.get(name)
        if found and (value is None or found.lower() == value):
            raise Unsupported(
                f"{name} {why}", hint=f"Delete the rows with Delta, or ALTER TABLE … UNSET TBLPROPERTIES ('{name}')."
            )


def needs_row_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Return whether each add must have a base row id. PROTOCOL.md, "Writer Requirements for Row Tracking"."""
    is_suspended = metadata.configuration.get("delta.rowTrackingSuspended", "").lower() == "true"
    return "rowTracking" in (protocol.writer_features or ()) and not is_suspended
