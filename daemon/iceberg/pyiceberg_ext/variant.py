"""Lets PyIceberg 0.12 read and write metadata with the type variant of format version 3. It reads no values of it.

Goes with the release that has https://github.com/apache/iceberg-python/issues/1819.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Literal

from pydantic import Field
from pyiceberg.typedef import TableVersion
from pyiceberg.types import ListType, MapType, NestedField, PrimitiveType

# Iceberg spec, "Appendix C: JSON serialization": the keys of a type in the JSON of a field, of a list and of a map.
TYPE_KEYS = ("type", "element", "key", "value")


class VariantType(PrimitiveType):
    """Iceberg spec, "Semi-structured Types". It is a class of primitive types for PyIceberg's visitors of schemas."""

    root: Literal["variant"] = Field(default="variant")

    @property
    def is_primitive(self) -> bool:
        # So nothing is partitioned or sorted by it.
        return False

    def minimum_format_version(self) -> TableVersion:
        return 3


@cache
def know_variant() -> None:
    """Make this process know the type in the JSON of schemas. Patches PyIceberg."""
    # Its parser of type names is compiled into each model that has a schema. All of them call these.
    for model in (NestedField, ListType, MapType):
        model.__init__ = _with_variant(model.__init__)  # type: ignore[method-assign]


def _with_variant(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def init(self: Any, *values: Any, **data: Any) -> None:
        found = {key: VariantType() for key in TYPE_KEYS if data.get(key) == "variant"}
        make(self, *values, **{**data, **found})

    return init
