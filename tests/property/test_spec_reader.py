"""The specification's reader sees a table that lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import spec_reader as spec
from tests.kit.avro_file import read_avro
from tests.kit.handmade import Bench
from tests.kit.histories import Append, Delete, History
from tests.kit.spec_reader import SpecTable, local

Record = dict[int, Any]

# What is changed: the manifest list's records of delete manifests, or the manifests' records of data files.
LISTED: list[tuple[Record, str]] = [
    ({spec.MANIFEST_SEQUENCE: 0, spec.MIN_SEQUENCE: 0}, "deletes from files that do not feel it"),
    ({spec.MANIFEST_SEQUENCE: 99}, "is of the future"),
    ({spec.MIN_SEQUENCE: 99}, "older entries than it says"),
    ({504: 7}, "other counts"),
]
DATA: list[tuple[Record, str]] = [
    ({spec.PARTITION: {1000: "y"}}, "deletes from files that do not feel it"),
    ({spec.PATH: "file:///twice"}, "live twice"),
    ({spec.RECORDS: 1}, "other counts"),
    ({spec.SIZE: 1}, "totals of the summary"),
]
ROW_IDS: list[tuple[Record, str]] = [
    ({spec.FIRST_ROW_ID: 0}, "row ids overlap"),
    ({spec.FIRST_ROW_ID: 99}, "row ids overlap|beyond next-row-id"),
]


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Files of rows 1 to 6 and 7 to 11 in a table of each format; 1, 2 and 7 were deleted later."""
    history = History(tmp_path / "delta", partitioned=True)
    bench = Bench(tmp_path / "iceberg", history.table.location, table_options={"format_version": request.param})
    bench.first_sync_empty(history.table)
    for step in (Append(((6, 0), (5, 1))), Delete(((0, 0b11), (1, 0b1)))):
        history.play(step)
        bench.sync()
    yield bench
    bench.close()


def test_what_lies_is_seen(bench: Bench) -> None:
    """Honest, a filter finds the live rows; a bound that lies loses some; every other lie is named."""
    assert _ids(bench) == [3, 4, 5, 6, 8, 9, 10, 11]
    four = (4).to_bytes(8, "little")
    for bound, lost in ((spec.LOWER, {3}), (spec.UPPER, {5, 6, 8, 9, 10, 11})):
        found = _ids(bench, data={bound: {1: four}})
        assert {3, 4, 5, 6, 8, 9, 10, 11} - set(found) == lost
    for change, message in LISTED:
        _see(bench, message, listed=change)
    for change, message in DATA:
        _see(bench, message, data=change)
    _see(bench, "deletes from files that do not feel it", deletes={spec.LOWER: {spec.FILE_PATH_ID: b"z"}})
    if bench.iceberg().format_version > 2:
        for change, message in ROW_IDS:
            _see(bench, message, data=change)
        _damage_vectors(bench)


def _damage_vectors(bench: Bench) -> None:
    """Each byte of a deletion vector's blob is checked."""
    delete = SpecTable(bench.iceberg().metadata_location).deletes[0]
    honest = local(delete.path).read_bytes()
    for place in range(delete.file[spec.LENGTH]):
        damaged = bytearray(honest)
        damaged[delete.file[spec.OFFSET] + place] ^= 1
        local(delete.path).write_bytes(damaged)
        _see(bench, "is damaged|has no vector")


def _ids(bench: Bench, **changes: Record) -> list[int]:
    """The ids that filters find in a table that holds, some records of which are changed as they are read."""
    read = read_avro

    def lying(path: Path) -> list[Record]:
        records = read(path)
        for record in records:
            if file := record.get(spec.DATA_FILE):
                file.update(changes.get("deletes" if file[spec.CONTENT] else "data", {}))
            elif record[spec.MANIFEST_CONTENT]:
                record.update(changes.get("listed", {}))
        return records

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.kit.spec_reader.read_avro", lying)
        table = SpecTable(bench.iceberg().metadata_location)
        table.check()
        return [row[0] for number in range(1, 12) for row in table.rows(("id", number))]


def _see(bench: Bench, message: str, **changes: Record) -> None:
    with pytest.raises(AssertionError, match=message):
        _ids(bench, **changes)
