"""What is told of a table, and what was told already."""

from __future__ import annotations

from msgspec.structs import replace

from daemon.clock import SystemClock
from daemon.notices.notice import Notice
from daemon.status.table_status import Observation, TableStatus, gone_status, table_status
from daemon.status.watch import Watch
from state import Difference, Differences, Pause, ProofRecord, TableError, TableRecord

RECORD = TableRecord(
    id=1, name="a", source="file:///a", target="db.a", synced_version=4, snapshot_id=40, metadata_location="file:///m4"
)
ERROR = TableError("CorruptInput", "bad CRC", "Restore it.", version=5, since_ms=1_000, consecutive=1, parked=True)


def proof(found: Differences) -> ProofRecord:
    return ProofRecord("rows", 1_000, 4, 7, files_total=1, files=1, covered=10_000, differences=found)


class Told:
    """A watch of one table; `compare` returns the events of which it notifies."""

    def __init__(self, *records: TableRecord, repeats_synced: bool = False) -> None:
        self._told: list[Notice] = []
        self._watch = Watch(self._told.append, SystemClock(), records, repeats_synced=repeats_synced)

    def compare(self, record: TableRecord, shown: TableRecord | None = None) -> list[str]:
        """The board may still show an older row."""
        self._told.clear()
        seen = Observation(shown or record, source_version=record.synced_version)
        self.asked = 0

        def find_status(_name: str) -> TableStatus:
            self.asked += 1
            return table_status(record, seen, 2_000)

        self._watch.compare([record], find_status, ())
        return [str(each.event) for each in self._told]


def test_a_parking_is_told_once_and_again_when_a_person_tried_in_vain() -> None:
    parked, later = replace(RECORD, error=ERROR), replace(RECORD, error=replace(ERROR, since_ms=9_000))
    told = Told(RECORD)
    assert [told.compare(each) for each in (parked, parked, later)] == [["parked"], [], ["parked"]]
    assert told.compare(replace(parked, pause=Pause(1_000, "ada"))) == []
    assert [told.compare(RECORD) for _ in range(2)] == [["recovered"], []]


def test_a_table_that_was_forgotten_and_comes_back_has_not_recovered() -> None:
    told = Told(RECORD)
    assert told.compare(replace(RECORD, error=ERROR)) == ["parked"]
    assert told.compare(replace(RECORD, id=2, metadata_location="file:///m0")) == ["synced"]


def test_the_status_of_a_table_that_is_well_is_not_asked_for_again() -> None:
    told = Told(RECORD)
    assert [(told.compare(RECORD), told.asked) for _ in range(2)] == [([], 1), ([], 0)]
    assert [(told.compare(replace(RECORD, error=ERROR)), told.asked) for _ in range(2)] == [(["parked"], 1), ([], 1)]


def test_what_an_earlier_process_told_is_not_told_again_but_what_became_of_it() -> None:
    parked = replace(RECORD, error=ERROR)
    told = Told(parked)
    assert [told.compare(each) for each in (parked, RECORD)] == [[], ["recovered"]]
    assert Told(RECORD, repeats_synced=True).compare(RECORD) == ["synced"]


def test_a_first_sync_that_is_half_recorded_is_told_when_it_is_whole() -> None:
    """Its live files are recorded in several transactions, the last one with the snapshot."""
    told = Told(replace(RECORD, synced_version=None, snapshot_id=None, metadata_location=None))
    assert told.compare(replace(RECORD, snapshot_id=None)) == []
    assert told.compare(RECORD) == ["synced"]


def test_a_wrong_table_is_told_until_a_verification_finds_it_right() -> None:
    found = Differences({"rows missing": 1}, (Difference("rows", "rows missing", "file:///f", "one"),))
    wrong = replace(RECORD, proof=proof(found))
    told = Told(RECORD)
    assert told.compare(wrong, shown=RECORD) == []
    assert [told.compare(wrong) for _ in range(2)] == [["proof_failed"], []]
    resynced = replace(RECORD, proof=None, metadata_location="file:///m5")
    assert told.compare(resynced) == ["synced"]
    assert told.compare(replace(resynced, proof=proof(Differences()))) == ["recovered"]


def test_the_hint_for_a_gone_table_names_no_iceberg_table_that_never_was() -> None:
    never = replace(RECORD, synced_version=None, metadata_location=None)
    for record, names_it in ((RECORD, True), (never, False)):
        error = gone_status(record, None, 2_000, is_vanished=False).error
        assert error is not None
        assert ("run `dvsync forget a`" in error.hint, "db.a" in error.hint) == (True, names_it)
