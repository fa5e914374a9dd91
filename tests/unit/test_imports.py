"""Imports go one way between packages, and in no circle between modules; some libraries have one place each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From the ground upwards. A package may import itself and those of lower rows, not its neighbours in a row.
ROWS: list[tuple[str, ...]] = [
    ("clock", "masking", "texts"),
    ("errors",),
    ("longs", "store"),
    ("config",),
    ("observe",),
    ("notices", "telemetry"),
    ("delta", "iceberg"),
    ("sources",),
    ("translate",),
    ("mirror",),
    ("predicate",),
    ("spark",),
    ("delta_writer", "pipeline"),
    ("sync", "doctor"),
    ("maintenance", "status", "verify"),
    ("scheduling", "web"),
    ("service",),
    ("cli",),
    ("__main__",),
]
ROW_OF = {package: row for row, packages in enumerate(ROWS) for package in packages}

# What the state store keeps just as Delta's log has it: the formats know nothing else of the store.
SHARED_FORMS = {"RECENT_COMMITS_MAX", "CommitIdentity", "DeletionVectorDescriptor", "Int", "Long"}

# Package -> the only places that may import it.
EXCLUSIVE = {
    "pyspark": (
        *("daemon/spark/", "daemon/pipeline/", "daemon/verify/", "daemon/cli/demo.py"),
        "daemon/delta_writer/deletion.py",
    ),
    "py4j": ("daemon/spark/", "daemon/cli/demo.py"),
    "sqlalchemy": ("state/",),
    "alembic": ("state/",),
    "apscheduler": ("daemon/scheduling/scheduler.py",),
    "prometheus_client": ("daemon/web/", "daemon/status/activity.py", "daemon/telemetry/"),
    "opentelemetry": ("daemon/telemetry/",),
    "openlineage": ("daemon/notices/openlineage.py",),
    "starlette": ("daemon/web/",),
    "uvicorn": ("daemon/web/",),
    "jinja2": ("daemon/web/",),
    "obstore": ("daemon/store/object_store.py", "daemon/store/put_if_absent.py"),
    "typer": ("daemon/cli/",),
}
# What writes Delta tables, and the one module of it that others may import, with who may.
WRITERS = ("daemon.store.put_if_absent", "daemon.delta_writer")
DELTA_WRITER, DOOR = "daemon/delta_writer/", "daemon.delta_writer.deletion"
AT_THE_DOOR = ("daemon/cli/deletion.py", "daemon/doctor/diagnosis.py", "daemon/sync/foreign_deletes.py")
PYICEBERG_PRIVATE = "daemon/iceberg/pyiceberg_ext/"

FILES = sorted(
    path.relative_to(ROOT).as_posix() for package in ("daemon", "state") for path in (ROOT / package).rglob("*.py")
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
    """The package of `daemon` that an import reaches: `daemon.delta.log` -> `delta`; None outside of `daemon`."""
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
            if importer != reached and ROW_OF[reached] >= ROW_OF[importer]:
                broken.append(f"{file}: {importer} imports {reached} ({module})")
        elif module.partition(".")[0] == "state" and importer in ("delta", "iceberg") and name not in SHARED_FORMS:
            broken.append(f"{file}: {importer} imports state")
    return broken


def exclusions_broken(file: str, source: str) -> list[str]:
    return [
        f"{file}: imports {module}"
        for module, _ in imported_names(ast.parse(source))
        for package, places in EXCLUSIVE.items()
        if module.partition(".")[0] == package and not file.startswith(places)
    ]


def guards_broken(file: str, source: str) -> list[str]:
    """Imports by which a module could write a Delta table that has no business to."""
    names = {each for module, name in imported_names(ast.parse(source)) for each in (module, f"{module}.{name}")}
    allowed = (*WRITERS,) if file.startswith(DELTA_WRITER) else (DOOR,) if file in AT_THE_DOOR else ()
    return [f"{file}: imports {name}" for name in names if name.startswith(WRITERS) and not name.startswith(allowed)]


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


def test_every_package_has_a_row():
    """A new package says where it stands, here."""
    parts = {file.split("/")[1].removesuffix(".py") for file in FILES if file.startswith("daemon/")} - {"__init__"}
    assert parts == ROW_OF.keys()


def test_no_module_is_in_a_circle():
    modules = {file.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."): file for file in FILES}
    graph = {
        module: {
            reached if (reached := f"{imported}.{name}") in modules else imported
            for imported, name in imported_names(ast.parse((ROOT / file).read_text(encoding="utf-8")))
            if imported in modules
        }
        for module, file in modules.items()
    }
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("file", FILES)
def test_imports_point_one_way(file):
    source = (ROOT / file).read_text(encoding="utf-8")
    assert directions_broken(file, source) == []
    assert exclusions_broken(file, source) == []
    assert guards_broken(file, source) == []
    if not file.startswith(PYICEBERG_PRIVATE):
        assert private_uses(file, source) == []


@pytest.mark.parametrize(
    ("file", "source", "find"),
    [
        ("state/records.py", "import daemon.errors", directions_broken),
        ("daemon/delta/log.py", "from daemon.iceberg import marker", directions_broken),
        ("daemon/iceberg/target.py", "def f():\n    from state import Outcome", directions_broken),
        ("daemon/errors.py", "from daemon.delta.log import DeltaLog", directions_broken),
        ("daemon/web/server.py", "from daemon.scheduling.scheduler import Scheduler", directions_broken),
        ("daemon/sync/follower.py", "from daemon import cli", directions_broken),
        ("daemon/sync/follower.py", "from pyspark.sql import SparkSession", exclusions_broken),
        ("daemon/cli/operations.py", "import sqlalchemy.orm", exclusions_broken),
        ("daemon/scheduling/cycle.py", "from apscheduler import events", exclusions_broken),
        ("daemon/sync/advance.py", "from daemon.store.put_if_absent import put_if_absent", guards_broken),
        ("daemon/sync/advance.py", "from daemon.store import put_if_absent", guards_broken),
        ("daemon/sync/advance.py", "from daemon.delta_writer.deletion import delete_rows", guards_broken),
        ("daemon/sync/foreign_deletes.py", "from daemon.delta_writer import placement", guards_broken),
        ("daemon/cli/deletion.py", "from daemon.delta_writer.commit import commit_deletion", guards_broken),
        ("daemon/cli/operations.py", "import daemon.delta_writer.deletion", guards_broken),
        ("daemon/iceberg/target.py", "from pyiceberg.table import _open", private_uses),
        ("daemon/iceberg/target.py", "from pyiceberg.table import Table\nTable._x(1)", private_uses),
        ("daemon/iceberg/target.py", "import pyiceberg\npyiceberg.table.Table()._x", private_uses),
    ],
)
def test_a_breach_is_found(file, source, find):
    """The checks above see what they are there for."""
    assert find(file, source) != []


def test_structs_have_decoders_from_the_import_on() -> None:
    """msgspec ends the process by SIGSEGV if two threads decode a struct for the first time."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("daemon", "state")
        for path in (ROOT / package).rglob("*.py")
        if "cli" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "msgspec.json.decode"
        if any(keyword.arg == "type" and isinstance(keyword.value, ast.Name) for keyword in node.keywords)
    ]
    assert found == []
