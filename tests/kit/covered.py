"""Prints how much of `daemon/` and `state/` ran, by line and by branch, and the modules of which least did.

Run as `python -m tests.kit.covered` after `make test COVERAGE=yes`.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coverage import Coverage

WORST = 10
ROW = "{:<40}{:>10}{:>10}{:>10}{:>10}"


def row(name: str, summary: dict[str, Any]) -> str:
    shares = [f"{summary[f'percent_{kind}_covered']:.1f} %" for kind in ("statements", "branches")]
    return ROW.format(name, shares[0], summary["missing_lines"], shares[1], summary["missing_branches"])


def main() -> None:
    measured = Coverage()
    measured.combine()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        measured.json_report(outfile=str(report))
        found = json.loads(report.read_text())
    modules = {name: each["summary"] for name, each in found["files"].items()}
    worst = sorted(modules, key=lambda name: -modules[name]["missing_lines"] - modules[name]["missing_branches"])
    print(ROW.format("coverage", "lines", "missing", "branches", "missing"))
    for name in worst[:WORST]:
        print(row(name, modules[name]))
    print(row(f"all {len(modules)} modules", found["totals"]))


if __name__ == "__main__":
    main()
