"""Damaged deletion vectors that a `dvsync run` process meets in versions that it follows, in both format versions."""

from __future__ import annotations

import struct
import zlib
from array import array
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from tests.kit.checks import duckdb_rows, rows_of
from tests.kit.daemons import command, daemon, until
from tests.kit.handmade import HandmadeTable, sql_catalog

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms, format_version: %s}
tables: [{source: delta, target: lake.t, name: t}]
"""
# Rows of both of the two containers that the vector has.
DELETED = (5, 9, 1000, (1 << 16) + 7)


def load(folder: Path) -> Table:
    with closing(load_catalog("local", **sql_catalog(folder))) as catalog:
        return catalog.load_table("lake.t")


def with_unordered_container(data: bytes) -> bytes:
    """The first container's rows descend, under a CRC-32 that fits: no header shows it."""
    rows, wrong = (array("H", each).tobytes() for each in (DELETED[:3], (9, 9, 5)))
    assert data.count(rows) == 1
    blob = data[5:-4].replace(rows, wrong)
    return data[:5] + blob + struct.pack(">I", zlib.crc32(blob))


def with_flipped_bit(data: bytes) -> bytes:
    return data[:-10] + bytes([data[-10] ^ 1]) + data[-9:]


@pytest.mark.parametrize("format_version", [2, 3])
def test_a_damaged_vector_parks_its_table_until_it_is_mended(tmp_path: Path, format_version: int) -> None:
    """Nothing of it is committed, whatever part of it is damaged; the error names its place; the hint leads out."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    path = table.write_file([(number, "x", "v") for number in range((1 << 16) + 10)])
    table.commit([table.add(path)])
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG % format_version)
    with daemon(config) as running:
        running.synced_to("t", table.version)
        for change, deleted, says in (
            (with_unordered_container, DELETED, "do not decode"),
            (with_flipped_bit, [0], "CRC-32"),
        ):
            shown, before = load(tmp_path).metadata_location, {*table.folder.glob("*.bin")}
            actions = table.delete({path: deleted})
            (file,) = {*table.folder.glob("*.bin")} - before
            sound = file.read_bytes()
            file.write_bytes(change(sound))
            version = table.commit(actions)
            error = until(lambda: running.tables()["t"]["error"])
            assert running.tables()["t"]["state"] == "parked"
            assert (error["kind"], error["version"]) == ("CorruptInput", version)
            assert says in error["message"] and f"[file file://{file}, offset 1]" in error["message"]
            assert "`dvsync resume t`" in error["hint"]
            assert load(tmp_path).metadata_location == shown
            file.write_bytes(sound)
            assert command(config, "resume", "t").returncode == 0
            running.synced_to("t", version)
            iceberg = load(tmp_path)
            assert duckdb_rows(iceberg) == rows_of(iceberg.scan().to_arrow()) == table.live_rows()
