"""Files that need mirrors, and what readers that are not ours see in them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from daemon.config.settings import TESTED_READERS, Reader
from daemon.delta.actions import Metadata
from daemon.mirror.compact import Struct
from daemon.mirror.copying import MirrorCopy, copy_bytes
from daemon.mirror.decision import MirrorPlan, plan_mirror
from daemon.mirror.footer import annotated_variants
from daemon.mirror.parquet import encode_footer, from_arrow, load_footer
from daemon.store.storage import FileIOStorage
from daemon.translate.file_schema import FileSchema, check_file_schema
from daemon.translate.schema import TableSchema, translate_schema
from tests.kit.readers import duckdb_connection


def column(name: str, kind: Any, number: int | None = None, nested: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A column of a Delta schema; with column mapping, `number` is its id, and `nested` has those inside it."""
    metadata: dict[str, Any] = {}
    if number is not None:
        metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}
    if nested:
        metadata["delta.columnMapping.nested.ids"] = nested
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct_of(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns)}


def list_of(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def map_of(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def table_of(
    *columns: dict[str, Any],
    partitions: Iterable[str] = (),
    mode: str | None = None,
    readers: Collection[Reader] = TESTED_READERS,
) -> TableSchema:
    ids = any("delta.columnMapping.id" in each["metadata"] for each in columns)
    configuration = {"delta.columnMapping.mode": mode or "name", "delta.columnMapping.maxColumnId": "99"} if ids else {}
    metadata = Metadata("t", json.dumps(struct_of(*columns)), list(partitions), configuration)
    return translate_schema(metadata, readers=readers, format_version=3)


def field(name: str, kind: pa.DataType, number: int | None = None) -> pa.Field:
    return pa.field(name, kind, metadata=None if number is None else {"PARQUET:field_id": str(number)})


def check_schema(footer: pq.FileMetaData, table: TableSchema) -> FileSchema:
    """As the inspection of a file does."""
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    variants = annotated_variants(from_arrow(footer))
    return check_file_schema(footer.schema.to_arrow_schema().remove_metadata(), table, paths, variants)


def planned(path: Path | str, table: TableSchema) -> MirrorPlan | None:
    footer = load_footer(FileIOStorage(), str(path)).metadata
    return plan_mirror(str(path), footer, table, lambda footer: check_schema(footer, table))


def mirrored(path: Path, footer: Struct) -> Path:
    """Make a mirror with another footer."""
    mirror, start = path.with_name(f"mirror-of-{path.name}"), load_footer(FileIOStorage(), str(path)).start
    copy_bytes(MirrorCopy(str(path), start, encode_footer(footer), str(mirror)), FileIOStorage(), {})
    assert mirror.read_bytes()[:start] == path.read_bytes()[:start]
    return mirror


def rows_by_readers(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of a Parquet file in their order, with the names in the file, and maps as lists of pairs."""
    by_duckdb = duckdb_connection().sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table()
    tables = {"pyarrow": pq.ParquetFile(path).read(), "duckdb": by_duckdb, "polars": pl.read_parquet(path).to_arrow()}
    return {name: [_plain(row) for row in table.to_pylist()] for name, table in tables.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if (
        isinstance(value, list)
        and value
        and all(isinstance(each, dict) and set(each) == {"key", "value"} for each in value)
    ):
        return [(_plain(each["key"]), _plain(each["value"])) for each in value]
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def ids_of(schema: pa.Schema) -> dict[str, int | None]:
    """The field ids of a file, by the paths of its fields."""
    found: dict[str, int | None] = {}

    def walk(each: pa.Field, path: str) -> None:
        number = (each.metadata or {}).get(b"PARQUET:field_id")
        found[path] = None if number is None else int(number)
        kind = each.type
        inner = [kind.key_field, kind.item_field] if pa.types.is_map(kind) else []
        inner = [kind.value_field] if pa.types.is_list(kind) else list(kind) if pa.types.is_struct(kind) else inner
        for part in inner:
            walk(part, f"{path}.{part.name}")

    for each in schema:
        walk(each, each.name)
    return found
