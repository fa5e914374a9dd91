"""SIGKILL, for real, at every moment of the main path that leaves something new on disk; then a new process.

`kill_server.py` plays the cases and is killed in them. A failure names the case and the event; `FAULT_KILL` set to such
an event (`dv growth:12`) plays that one alone.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.handmade import HandmadeTable
from tests.kit.kill_server import PUBLISHINGS
from tests.kit.killing import ROOT, KillServer, picked_events

# Each case, and how many of its events are played in one flavour: the last one of each name, or a third of these where
# a case does what the others do.
CASES = {
    "empty first sync": "last",
    "append": "a third",
    "dv growth": "last",
    "shrunk dv": "a third",
    "schema only": "last",
    "removal": "last",
    "first sync": "last",
    "several pending": "a third",
    "several folded": "a third",
    "upgrade": "a third",
    "foreign": "last",
}
# Where it matters whether files share a delete file, and of which kind it is: these are played in all flavours.
WITH_DELETIONS = ("dv growth", "shrunk dv", "removal", "first sync", "foreign")
# Where it matters which commits are published.
OF_A_CATALOG = ("append", "first sync", "several pending")
# Where mirrors are made, and left.
WITH_MIRRORS = {"append": "a third", "removal": "a third", "first sync": "a third", "foreign": "a third"}


@pytest.mark.parametrize("share", ["some", pytest.param("all", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES)
def test_whatever_was_killed_the_next_start_ends_at_the_same(
    servers: dict[str, KillServer], case: str, share: str
) -> None:
    """Killed at any event: no row lost or doubled, one snapshot a version, every file that is left behind is known."""
    shares = {"file": CASES[case]}
    if case in WITH_DELETIONS:
        shares |= dict.fromkeys(("partition", "vectors"), "a third")
    if share == "all" and case not in ("upgrade", "foreign"):
        shares |= dict.fromkeys(("managed", "mirrored"), "all")
    elif case in OF_A_CATALOG:
        shares["managed"] = "a third"
    if case in WITH_MIRRORS:
        shares["mirrored"] = WITH_MIRRORS[case]
    orders = [
        (servers[flavour], *event)
        for flavour, some in shares.items()
        for event in picked_events(servers[flavour].traces[case], case, share if share == "all" else some)
    ]
    for count, (server, number, _) in enumerate(orders):
        server.order("kill", case, number)
        server.order("follow", case, count % 8 == 0, PUBLISHINGS[count % 3])
    failures = []
    for server, number, event in orders:
        killed, followed = server.answer(), server.answer()
        assert killed == {"signal": 9}, killed
        if "error" in followed:
            failures.append(f"{case}:{number}, {event}, {server.flavour}:\n{followed['error']}")
    assert not failures, f"{len(failures)} of {len(orders)}: " + "\n".join(failures)


@pytest.mark.spark
def test_a_first_sync_killed_after_its_commit_is_rebuilt_by_spark(tmp_path: Path) -> None:
    """With a real session: what landed and was not recorded is read from Iceberg and Delta, and not committed again."""
    table = HandmadeTable(tmp_path / "delta", partitioned=True)
    table.create()
    paths = [table.write_file([(10 * n + i, part, f"v{i}") for i in range(6)]) for n, part in enumerate("xxy")]
    table.commit([table.add(path) for path in paths])
    table.commit(table.delete({paths[0]: [0, 5], paths[2]: [1]}))
    (tmp_path / "table").write_bytes(pickle.dumps(table))
    python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    for verb, status in (("kill", -9), ("follow", 0)):
        ended = subprocess.run(
            [sys.executable, "-m", "tests.kit.kill_first_sync", str(tmp_path), verb],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": python_path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == status, ended.stderr
