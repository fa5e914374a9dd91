"""Which Delta tables we may read. Delta PROTOCOL.md, "Table Features": an unknown reader feature means stop."""

from __future__ import annotations

from daemon.delta.actions import Metadata, Protocol
from daemon.errors import Unsupported

READER_VERSION_MAX = 3
# Reader version 2 stands for column mapping alone (PROTOCOL.md, "Reader Requirements for Column Mapping").
READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # A variant column is refused by its name, with the schema; a table that has none is like any other.
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
HINT_CATALOG_MANAGED = "Its commits are ratified by a catalog and may not be read by path."
HINTS = {"catalogManaged": HINT_CATALOG_MANAGED, "catalogOwned-preview": HINT_CATALOG_MANAGED}


def check_protocol(protocol: Protocol) -> None:
    """Raise `Unsupported` naming every reader feature that is not known here."""
    if protocol.min_reader_version > READER_VERSION_MAX:
        raise Unsupported(
            f"Delta reader version {protocol.min_reader_version} is not known (up to {READER_VERSION_MAX})",
            hint="Use a newer dvsync, or drop the feature that raised the table's protocol.",
        )
    unknown = sorted(set(protocol.reader_features or ()) - READER_FEATURES)
    if unknown:
        hints = [HINTS[feature] for feature in unknown if feature in HINTS]
        raise Unsupported(
            f"reader feature {', '.join(unknown)} is not supported",
            hint=" ".join(hints)
            or "Drop the feature from the Delta table (ALTER TABLE … DROP FEATURE), or stop syncing it.",
        )


def check_metadata(metadata: Metadata) -> None:
    """Raise `Unsupported` for a configuration whose files we would misread."""
    mode = metadata.column_mapping_mode
    if mode not in {"none", "name", "id"}:
        raise Unsupported(f"column mapping mode {mode} is not known", hint="Delta knows none, name and id.")
