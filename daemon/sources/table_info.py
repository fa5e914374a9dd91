"""A table as a catalog lists it."""

from __future__ import annotations

import msgspec

MANAGED = {"delta.feature.catalogManaged", "delta.feature.catalogOwned-preview"}


class TableInfo(msgspec.Struct):
    """The fields are those of Unity Catalog's `TableInfo`. Views and other kinds have no location."""

    name: str
    catalog_name: str
    schema_name: str
    table_id: str = ""
    table_type: str = ""
    data_source_format: str | None = None
    storage_location: str | None = None
    properties: dict[str, str | None] | None = None

    @property
    def other_kind(self) -> str | None:
        """A noun for what it is instead of a Delta table that can be followed; None if it is one."""
        if "VIEW" in self.table_type:
            return "view"
        if self.table_type == "FOREIGN" or self.data_source_format == "DELTASHARING":
            return "shared or foreign table"
        if self.data_source_format != "DELTA":
            return f"{self.data_source_format or 'unknown'} table"
        if self.table_type not in ("MANAGED", "EXTERNAL"):
            return self.table_type.replace("_", " ").lower() or "unknown Delta table"
        return None if self.storage_location else "unplaced Delta table"

    @property
    def is_managed(self) -> bool:
        """Whether only the catalog knows the newest commits. Older managed tables lack the feature for that."""
        is_listed = not self.properties or not MANAGED.isdisjoint(self.properties)
        return self.table_type == "MANAGED" and is_listed

    @property
    def full_name(self) -> str:
        return f"{self.catalog_name}.{self.schema_name}.{self.name}"
