"""How long people wait for a command: `dvsync status`, and `dvsync sync` without news, of one synced table.

Beside `python -c "import pyiceberg.catalog"`, all of them in turns; a ratio is the median of the rounds' own ratios of
CPU time to that import. The terminal is a pseudo-terminal, all else writes to a pipe. `--against` names another
checkout, whose commands take their turns on a table that it has made itself, with the same Python and packages. A first
round is not counted: it leaves each module's bytecode in a folder of this run, as an installation has it.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.report import conditions, parser, print_report

HERE = Path(__file__).parents[1]
TARGETS_S = {"status": 0.6, "sync": 1.2}
IMPORT = "import pyiceberg.catalog"
MAKE_TABLE = (
    "from pathlib import Path; from benchmarks.idle_daemon import make_synced_tables; make_synced_tables(Path.cwd(), 1)"
)


@dataclass(frozen=True)
class Program:
    """What is run, in which folder, with the modules of which checkout."""

    name: str
    arguments: tuple[str, ...]
    checkout: Path
    folder: Path
    on_terminal: bool = False


@dataclass(frozen=True)
class Times:
    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Result:
    program: str
    checkout: str
    wall_median_s: float
    wall_min_s: float
    cpu_median_s: float
    cpu_min_s: float
    cpu_ratio: float


def programs_of(checkout: Path, folder: Path) -> list[Program]:
    def dvsync(command: str, *, on_terminal: bool = False) -> Program:
        name = f"{command}, on a terminal" if on_terminal else command
        return Program(name, ("-m", "daemon", command), checkout, folder, on_terminal)

    return [dvsync("status"), dvsync("status", on_terminal=True), dvsync("sync")]


def run(program: Program, bytecode: Path) -> Times:
    """Raises RuntimeError, with what it printed, for a program that fails."""
    environment = {**os.environ, "PYTHONPATH": str(program.checkout), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    reader, writer = pty.openpty() if program.on_terminal else os.pipe()
    start_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *program.arguments],
        cwd=program.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    output = _read_all(reader)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{program.name} of {program.checkout} ended with {process.returncode}:\n{output}")
    return Times(wall_s, used.ru_utime + used.ru_stime)


def _read_all(reader: int) -> str:
    output = b""
    with open(reader, "rb", buffering=0) as file, suppress(OSError):  # A terminal that nobody has open is an error.
        while piece := file.read(1 << 16):
            output += piece
    return output.decode(errors="replace")


def measure(folder: Path, *, rounds: int, against: Path | None) -> list[Result]:
    with TemporaryDirectory(dir=folder) as name:
        bytecode = Path(name, "bytecode")
        baseline = Program(IMPORT, ("-c", IMPORT), HERE, Path(name))
        programs = [baseline]
        for number, checkout in enumerate([HERE, *([against] if against else [])]):
            tables = Path(name, f"tables{number}")
            tables.mkdir()
            run(Program("make a table", ("-c", MAKE_TABLE), checkout, tables), bytecode)
            programs += programs_of(checkout, tables)
        for program in programs:
            run(program, bytecode)
        times: dict[Program, list[Times]] = {program: [] for program in programs}
        for _ in range(rounds):
            for program in programs:
                times[program].append(run(program, bytecode))
    return [
        Result(
            program.name,
            str(program.checkout),
            median(each.wall_s for each in found),
            min(each.wall_s for each in found),
            median(each.cpu_s for each in found),
            min(each.cpu_s for each in found),
            median(each.cpu_s / base.cpu_s for each, base in zip(found, times[baseline], strict=True)),
        )
        for program, found in times.items()
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=15, help="how often each program is run (%(default)s)")
    options.add_argument("--against", type=Path, metavar="PATH", help="another checkout of dvsync, to compare with")
    chosen = options.parse_args()
    before = conditions(chosen.folder)
    against = chosen.against.resolve() if chosen.against else None
    results = measure(chosen.folder, rounds=chosen.rounds, against=against)
    load_after = round(os.getloadavg()[0], 2)
    lines = [
        f"{chosen.rounds} rounds, load {load_after} at the end",
        f"{'':28}{'wall s':>8}{'min':>7}{'CPU s':>8}{'min':>7}{'ratio':>7}  checkout",
        *(
            f"{r.program:28}{r.wall_median_s:8.2f}{r.wall_min_s:7.2f}{r.cpu_median_s:8.2f}{r.cpu_min_s:7.2f}"
            f"{r.cpu_ratio:7.2f}  {r.checkout}"
            for r in results
        ),
        "target: " + ", ".join(f"{command} below {seconds} s" for command, seconds in TARGETS_S.items()),
    ]
    report = {"results": [asdict(r) for r in results], "load_after": load_after, "targets_s": TARGETS_S}
    print_report(chosen, before, report, lines)


if __name__ == "__main__":
    main()
