"""The wall clock of a running daemon is set forward and back, as by NTP or after a machine slept."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.kit.daemons import daemon
from tests.kit.handmade import HandmadeTable

TABLES = 8
# Some tables are polled between the jump and the moment at which the daemon notices it, and some are not.
JUMPS_S = (600.0, 3600.0, 0.0, 1800.0, 7200.0, 60.0)


def test_polls_go_on_at_once_after_every_jump(tmp_path: Path) -> None:
    """Forward and back, at any moment of the polls: a commit right after the jump is shown as soon as any other."""
    clock = tmp_path / "clock"
    clock.write_text("0")
    tables = {f"t{number}": HandmadeTable(tmp_path / f"t{number}") for number in range(TABLES)}
    for table in tables.values():
        table.create()
    entries = "".join(f"- {{source: {name}, target: lake.{name}, name: {name}}}\n" for name in tables)
    (tmp_path / "config.yaml").write_text(
        'state: {url: "sqlite:///state.db"}\n'
        'catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}\n'
        f"health: {{port: 0}}\nlog: {{format: json}}\ndefaults: {{poll_interval: 300ms}}\ntables:\n{entries}"
    )
    with daemon(tmp_path / "config.yaml", {**os.environ, "CLOCK_FILE": str(clock)}) as running:
        for name, table in tables.items():
            running.synced_to(name, table.version)
        for number, jump_s in enumerate(JUMPS_S):
            time.sleep(0.06 * number)  # At another moment between two polls.
            staged = tmp_path / "staged"
            staged.write_text(str(jump_s))
            staged.rename(clock)
            for table in tables.values():
                table.commit([table.add(table.write_file([(table.version, "x", "v")]))])
            began_s = time.monotonic()
            for name, table in tables.items():
                running.synced_to(name, table.version)
            took_s = time.monotonic() - began_s
            assert took_s < 10, f"{took_s:.0f} s after a jump to {jump_s:+.0f} s"
        running.told("clock.jumped")
