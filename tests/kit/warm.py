"""What the processes of a test run would each do again, done once: before a server forks them, if there is one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pyiceberg.avro import file as avro_file
from pyiceberg.avro.file import AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.schema import Schema
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

STATEMENTS_MAX = 5_000
SCHEMA_KEY = "avro.schema"


class Statements(LRUCache[Any, Any]):
    """Compiled statements by SQLAlchemy's own keys, of which the first part is the dialect of one engine."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((type(key[0]), *key[1:]), default)

    def __setitem__(self, key: Any, statement: Any) -> None:
        super().__setitem__((type(key[0]), *key[1:]), statement)


class OfAllEngines:
    """In the place of an engine's own cache."""

    def __init__(self) -> None:
        self._statements = Statements(STATEMENTS_MAX)

    def __get__(self, engine: object, owner: type) -> Statements:
        return self._statements

    def __set__(self, engine: object, statements: object) -> None:
        pass


@cache
def schema_of(text: str) -> Schema:
    return AvroSchemaConversion().avro_to_iceberg(json.loads(text))


class ReaderTrees:
    """In the place of PyIceberg's `resolve_reader`: all manifests have a few schemas, and a reader has no state."""

    def __init__(self) -> None:
        self._resolve = avro_file.resolve_reader
        # With each the schemas that it reads, whose identities stay theirs as long as they are kept here.
        self._known: dict[tuple[Any, ...], tuple[Reader, Schema, Schema]] = {}

    def __call__(self, of_file: Schema, wanted: Schema, types: Mapping[int, Any], enums: Mapping[int, Any]) -> Reader:
        key = id(of_file), id(wanted), tuple(types.items()), tuple(enums.items())
        if key not in self._known:
            self._known[key] = self._resolve(of_file, wanted, types, enums), of_file, wanted
        return self._known[key][0]


def prepare_once() -> None:
    """Each database that is opened compiles the same statements, and each manifest that is read has a known schema.

    Both take a third of a short test's time.
    """
    read_schema = AvroFileHeader.get_schema

    def get_schema(header: AvroFileHeader) -> Schema:
        text = header.meta.get(SCHEMA_KEY)
        return schema_of(text) if text else read_schema(header)

    patch = pytest.MonkeyPatch()
    patch.setattr(Engine, "_compiled_cache", OfAllEngines(), raising=False)
    patch.setattr(AvroFileHeader, "get_schema", get_schema)
    patch.setattr(avro_file, "resolve_reader", ReaderTrees())


def follow_once(check: Callable[..., object] | None = None) -> None:
    """Follow a table from its first sync on: what is forked afterwards finds statements, schemas and classes ready.

    No thread of Python's is left; Arrow starts its own ones again in a forked process. `check` is as in `checks.py`.
    """
    from tests.kit.handmade import Bench, HandmadeTable  # noqa: PLC0415 - other processes do without it

    with TemporaryDirectory() as folder:
        table = HandmadeTable(Path(folder) / "delta", partitioned=True)
        table.create()
        bench = Bench(Path(folder) / "dvsync", table.location)
        bench.sync()
        one, other = (table.write_file([(10 * n + i, "x", f"v{i}") for i in range(6)]) for n in range(2))
        table.commit([table.add(one), table.add(other)])
        bench.sync()
        table.commit(table.delete({one: [0], other: [1]}))
        bench.sync()
        table.commit([table.remove(one), *table.delete({other: [2]})])
        bench.sync()
        if check:
            check(bench, table, range(4))
        bench.close()
    # PyIceberg makes another one in each process.
    ExecutorFactory.get_or_create().shutdown()
    assert threading.active_count() == 1, threading.enumerate()
