"""A power cut at each step of the main path: what the catalog and the state database name is on the disk.

`kill_server.py` plays the cases of `test_kill.py`; a process that is killed forgets what it did not force to the disk.
`FAULT_KILL` means the same as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from daemon.config.settings import MaintenanceSettings
from daemon.iceberg.pyiceberg_ext import metadata_cache
from daemon.maintenance.maintainer import Maintainer
from daemon.store.recent import Recent
from tests.kit.checks import duckdb_rows
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.killing import KillServer, picked_events
from tests.kit.power import Disk

# Everything that is written and forced to the disk, by path; the last two are folders.
KINDS = {
    "delete file": r"-deletes\.parquet$",
    "Puffin file": r"-deletes\.puffin$",
    "mirror": r"-mirror\.parquet$",
    "manifest": r"-m\d+\.avro$",
    "manifest list": r"/snap-[^/]*\.avro$",
    "metadata file": r"\.metadata\.json$",
    "folder": r"/(meta)?data$",
    "folder above": r"/(warehouse|lake|t)$",
}
FLAVOURS = {"Puffin file": "vectors", "mirror": "mirrored"}
# With shared delete files, `removal` writes some anew.
PLAYED = (
    *(("file", case, "last") for case in ("empty first sync", "dv growth", "schema only", "first sync")),
    ("file", "upgrade", "a third"),
    ("partition", "removal", "a third"),
    *(("vectors", case, "a third") for case in ("dv growth", "shrunk dv")),
    ("mirrored", "append", "a third"),
)


def fails_after_cut(server: KillServer, case: str, event: int, *, keeps_names: bool, deaf_to: str | None = None) -> str:
    """What is wrong after the power was cut at this event and dvsync started again; empty when all is well."""
    server.order("cut", case, event, keeps_names, deaf_to)
    server.order("follow", case, False)
    cut, followed = server.answer(), server.answer()
    assert cut == {"signal": 9}, cut
    return str(followed.get("error", ""))


def moments(server: KillServer, case: str, share: str) -> Iterator[tuple[int, str, bool]]:
    """Events with their numbers, and whether names outlive bytes: both once files are named, else in turn."""
    named_from = server.traces[case].index("after _write_metadata")
    for number, event in picked_events(server.traces[case], case, share):
        for keeps_names in (False, True) if number >= named_from else (number % 2 == 0,):
            yield number, event, keeps_names


@pytest.mark.parametrize(
    ("flavour", "case", "share"),
    [*PLAYED, *(pytest.param(*played[:2], "all", marks=pytest.mark.long) for played in PLAYED)],
)
def test_what_is_named_is_on_the_disk(servers: dict[str, KillServer], flavour: str, case: str, share: str) -> None:
    """Power cut at any event, whether names outlive bytes or not: the next start ends as if nothing had happened."""
    server = servers[flavour]
    wrong = [
        f"{number}, {event}, names kept {keeps_names}:\n{error}"
        for number, event, keeps_names in moments(server, case, share)
        if (error := fails_after_cut(server, case, number, keeps_names=keeps_names))
    ]
    assert not wrong, f"{len(wrong)} of {case}: " + "\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_forced_to_the_disk_is_missed(servers: dict[str, KillServer], kind: str) -> None:
    """The test above fails for whichever kind of file or folder is named before it is on the disk."""
    server, case = servers[FLAVOURS.get(kind, "file")], "first sync"
    event = server.traces[case].index("after commit_table")
    assert fails_after_cut(server, case, event, keeps_names=False, deaf_to=KINDS[kind])


@pytest.mark.parametrize("keeps_names", [False, True])
def test_what_maintenance_named_is_on_the_disk(tmp_path: Path, monkeypatch, keeps_names: bool) -> None:
    """A power cut after a compaction and an expiry loses neither: the table is read as before, with one delete file."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    maintenance = MaintenanceSettings(snapshots_max=1)
    monkeypatch.setattr("daemon.maintenance.compaction.DELETE_FILES_MAX", 2)
    bench = Bench(tmp_path / "dvsync", table.location, table_options={"maintenance": maintenance})
    bench.first_sync_empty(table)
    path = table.write_file([(number, "x", "v") for number in range(9)])
    table.commit([table.add(path)])
    for position in range(4):
        table.commit(table.delete({path: [position]}))
        bench.follower.sync()
    disk = Disk(tmp_path / "dvsync")
    maintainer = Maintainer(bench.context)
    assert maintainer.compact(Event()).delete_files_after == 1
    assert maintainer.expire().expired
    bench.close()
    disk.cut(keeps_names=keeps_names)
    # As in a new process: what it wrote it would not read.
    monkeypatch.setattr(metadata_cache, "known_metadata", Recent(0))
    bench.open()
    assert bench.follower.sync().outcome == "unchanged"
    assert duckdb_rows(bench.iceberg()) == table.live_rows()
    assert len(bench.iceberg().snapshots()) == 1
    bench.close()
