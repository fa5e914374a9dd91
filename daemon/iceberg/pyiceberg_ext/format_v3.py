"""Lets PyIceberg 0.12 write tables of format version 3, which it reads but refuses to write.

Goes with the release that has https://github.com/apache/iceberg-python/issues/3619 (metadata) and 3622 (upgrades).
"""

from __future__ import annotations

from pyiceberg.table import update
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.update import UpgradeFormatVersionUpdate

from daemon.iceberg.pyiceberg_ext.metadata_json import to_json


def allow_version_3() -> None:
    """Make this process write table metadata of version 3, and upgrade tables to it. Patches PyIceberg."""
    if update.SUPPORTED_TABLE_FORMAT_VERSION == 3:  # type: ignore[attr-defined]
        return
    TableMetadataV3.model_dump_json = to_json  # type: ignore[assignment, method-assign]
    update.SUPPORTED_TABLE_FORMAT_VERSION = 3  # type: ignore[attr-defined]
    upgrade = update._apply_table_update.dispatch(UpgradeFormatVersionUpdate)

    def with_row_ids(
        change: UpgradeFormatVersionUpdate, base: TableMetadata, context: update._TableMetadataUpdateContext
    ) -> TableMetadata:
        """Iceberg spec, "Row Lineage": the metadata of version 3 has a `next-row-id`, at first 0."""
        upgraded: TableMetadata = upgrade(change, base, context)
        if isinstance(upgraded, TableMetadataV3) and upgraded.next_row_id is None:
            return upgraded.model_copy(update={"next_row_id": 0})
        return upgraded

    update._apply_table_update.register(UpgradeFormatVersionUpdate)(with_row_ids)


def next_row_id(metadata: TableMetadata) -> int:
    """Return the first row id that no row of the table has; 0 for a table that has no row ids yet."""
    return (metadata.next_row_id or 0) if isinstance(metadata, TableMetadataV3) else 0
