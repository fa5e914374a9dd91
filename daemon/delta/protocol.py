"""Which Delta tables we may read. Delta PROTOCOL.md, "Table Features": an unknown reader feature means stop."""

from __future__ import annotations

from daemon.delta.actions import Metadata, Protocol
from daemon.delta.features import (
    COORDINATOR,
    FEATURES,
    TABLE_FEATURES_READER,
    TABLE_FEATURES_WRITER,
    Decision,
    is_readable,
)
from daemon.errors import CorruptInput, Unsupported

READER_VERSION_MIN, READER_VERSION_MAX = 1, 3


def check_protocol(protocol: Protocol) -> None:
    """Raise `Unsupported` naming every reader feature that is not known or refused, and `CorruptInput` for a protocol
    that contradicts itself."""
    if not READER_VERSION_MIN <= protocol.min_reader_version <= READER_VERSION_MAX:
        raise Unsupported(
            f"Delta reader version {protocol.min_reader_version} is not known ({READER_VERSION_MIN} to "
            f"{READER_VERSION_MAX} are)",
            hint="Use a newer dvsync, or drop the feature that raised the table's protocol.",
        )
    _check_list("reader", protocol.min_reader_version, protocol.reader_features, TABLE_FEATURES_READER)
    _check_list("writer", protocol.min_writer_version, protocol.writer_features, TABLE_FEATURES_WRITER)
    refused = sorted(name for name in protocol.reader_features or () if not is_readable(name))
    if refused:
        known = (FEATURES[name] for name in refused if name in FEATURES)
        hints = dict.fromkeys(each.note for each in known if each.decision is Decision.REFUSED)
        raise Unsupported(
            f"reader feature {', '.join(refused)} is not supported",
            hint=" ".join(hints)
            or "Drop the feature from the Delta table (ALTER TABLE … DROP FEATURE), or stop syncing it.",
        )


def _check_list(side: str, version: int, features: list[str] | None, from_version: int) -> None:
    """Raise `CorruptInput` unless features are listed exactly from `from_version` on.

    PROTOCOL.md, "Protocol Evolution".
    """
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
