"""PyIceberg opens Hive and Glue catalogs by dvsync's clients, whose modules need the extras of these names."""

from __future__ import annotations

from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType
from pyiceberg.typedef import Properties


def _open_hive(name: str, properties: Properties) -> Catalog:
    from daemon.iceberg.pyiceberg_ext.hive import Hive, let_exceptions_pass  # noqa: PLC0415 - see the module

    let_exceptions_pass()
    return Hive(name, **properties)


def _open_glue(name: str, properties: Properties) -> Catalog:
    from daemon.iceberg.pyiceberg_ext.glue import Glue, keep_what_others_set  # noqa: PLC0415 - see the module

    keep_what_others_set()
    return Glue(name, **properties)


def use_own_metastores() -> None:
    """Make `load_catalog` open Hive and Glue catalogs by dvsync's clients. Patches PyIceberg."""
    AVAILABLE_CATALOGS[CatalogType.HIVE] = _open_hive
    AVAILABLE_CATALOGS[CatalogType.GLUE] = _open_glue
