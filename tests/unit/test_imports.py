"""The directions of design.md, "Rooms, and who may know whom", and the exclusive importers of style.md, section 2."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From the leaves upwards. A room may import itself and the rooms of lower rows, not its neighbours in a row.
ROWS: list[dict[str, tuple[str, ...]]] = [
    {"leaves": ("secrets", "texts", "errors", "clock", "settings", "log", "locations", "arrow", "storage", "durable")},
    {"delta": ("delta",), "iceberg": ("iceberg",)},
    {"translate": ("translate",)},
    {"pipeline": ("pipeline",)},
    {
        "sync": (
            "store",
            "context",
            "definition",
            "commit",
            "proof",
            "first_sync",
            "recovery",
            "restore",
            "sync",
            "compaction",
            "expiry",
            "cleanup",
            "maintenance",
            "doctor",
        )
    },
    {
        "cycle": (
            "activity",
            "timeline",
            "status",
            "failures",
            "slots",
            "progress",
            "cycle",
            "upkeep",
            "config",
            "reference",
            "lease",
            "discovery",
            "signals",
            "notify",
            "probe",
        )
    },
    {"scheduler": ("scheduler",), "web": ("web",)},
    {"app": ("tables", "parts", "fleet", "service", "app", "survey", "init", "demo")},
    {"cli": ("console", "cli", "__main__")},
]
ROOM_OF = {part: (row, room) for row, rooms in enumerate(ROWS) for room, parts in rooms.items() for part in parts}

# Package -> the only places that may import it.
EXCLUSIVE = {
    "pyspark": ("daemon/pipeline/", "daemon/demo.py"),
    "py4j": ("daemon/pipeline/", "daemon/demo.py"),
    "sqlalchemy": ("state/",),
    "alembic": ("state/",),
    "apscheduler": ("daemon/scheduler.py",),
    "prometheus_client": ("daemon/web/",),
    "starlette": ("daemon/web/",),
    "uvicorn": ("daemon/web/",),
    "jinja2": ("daemon/web/",),
    "typer": ("daemon/cli.py",),
}
PYICEBERG_PRIVATE = "daemon/iceberg/pyiceberg_ext.py"

FILES = sorted(
    path.relative_to(ROOT).as_posix() for room in ("daemon", "state") for path in (ROOT / room).rglob("*.py")
)


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """(module, name) of every import, those inside functions too; a plain `import m` has no name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            yield from ((node.module, alias.name) for alias in node.names)


def part_of(module: str, name: str | None = None) -> str | None:
    """The part of `daemon` that an import reaches: `daemon.delta.log` -> `delta`; None outside of `daemon`."""
    head, _, rest = module.partition(".")
    if head != "daemon":
        return None
    return rest.partition(".")[0] or name or "__init__"


def directions_broken(file: str, source: str) -> list[str]:
    broken = []
    importer = None if file.startswith("state/") else file.removeprefix("daemon/").removesuffix(".py").partition("/")[0]
    for module, name in imported_names(ast.parse(source)):
        reached = part_of(module, name)
        if importer is None:
            if reached is not None:
                broken.append(f"{file}: state imports {module}")
        elif reached is not None:
            (row, room), (reached_row, reached_room) = ROOM_OF[importer], ROOM_OF[reached]
            if room != reached_room and reached_row >= row:
                broken.append(f"{file}: {room} imports {reached_room} ({module})")
        elif module.partition(".")[0] == "state" and importer in ("delta", "iceberg"):
            broken.append(f"{file}: {importer} imports state")
    return broken


def exclusions_broken(file: str, source: str) -> list[str]:
    return [
        f"{file}: imports {module}"
        for module, _ in imported_names(ast.parse(source))
        for package, places in EXCLUSIVE.items()
        if module.partition(".")[0] == package and not file.startswith(places)
    ]


def private_uses(file: str, source: str) -> list[str]:
    """Underscore names of PyIceberg: imported, or reached through something imported from it."""
    tree = ast.parse(source)
    from_pyiceberg = [
        (module, name) for module, name in imported_names(tree) if module.partition(".")[0] == "pyiceberg"
    ]
    public = {name or module.partition(".")[0] for module, name in from_pyiceberg}
    uses = [f"{file}: imports {module}.{name}" for module, name in from_pyiceberg if name and name.startswith("_")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            while isinstance(owner, ast.Attribute | ast.Call):
                owner = owner.value if isinstance(owner, ast.Attribute) else owner.func
            if isinstance(owner, ast.Name) and owner.id in public:
                uses.append(f"{file}: uses {ast.unparse(node)}")
    return uses


def test_every_module_has_a_room():
    """A new module says where it stands, here."""
    parts = {file.split("/")[1].removesuffix(".py") for file in FILES if file.startswith("daemon/")} - {"__init__"}
    assert parts - ROOM_OF.keys() == set(), "give it a room in ROWS"


@pytest.mark.parametrize("file", FILES)
def test_imports_point_one_way(file):
    """Leaves <- delta, iceberg, state <- translate <- pipeline <- sync <- scheduler, web <- app <- cli."""
    source = (ROOT / file).read_text(encoding="utf-8")
    assert directions_broken(file, source) == []
    assert exclusions_broken(file, source) == []
    if file != PYICEBERG_PRIVATE:
        assert private_uses(file, source) == []


@pytest.mark.parametrize(
    ("file", "source", "find"),
    [
        ("state/store.py", "import daemon.errors", directions_broken),
        ("daemon/delta/log.py", "from daemon.iceberg import marker", directions_broken),
        ("daemon/iceberg/target.py", "def f():\n    from state import Outcome", directions_broken),
        ("daemon/errors.py", "from daemon.delta.log import DeltaLog", directions_broken),
        ("daemon/web/server.py", "from daemon.scheduler import Scheduler", directions_broken),
        ("daemon/sync.py", "from daemon import app", directions_broken),
        ("daemon/sync.py", "from pyspark.sql import SparkSession", exclusions_broken),
        ("daemon/app.py", "import sqlalchemy.orm", exclusions_broken),
        ("daemon/cycle.py", "from apscheduler import events", exclusions_broken),
        ("daemon/iceberg/target.py", "from pyiceberg.table import _open", private_uses),
        ("daemon/iceberg/target.py", "from pyiceberg.table import Table\nTable._x(1)", private_uses),
        ("daemon/iceberg/target.py", "import pyiceberg\npyiceberg.table.Table()._x", private_uses),
    ],
)
def test_a_breach_is_found(file, source, find):
    """The checks above see what they are there for."""
    assert find(file, source) != []
