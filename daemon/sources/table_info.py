"""A table as a catalog lists it."""

from __future__ import annotations

import msgspec


class TableInfo(msgspec.Struct):
    """The fields are those of Unity Catalog's `TableInfo`. Views and other kinds have no location."""

    name: str
    catalog_name: str
    schema_name: str
    table_id: str = ""
    table_type: str = ""
    data_source_format: str | None = None
    storage_location: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.catalog_name}.{self.schema_name}.{self.name}"
