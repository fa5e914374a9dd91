"""dvsync as people install it: the wheel in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from venv import EnvBuilder

from deploy.release import needed

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """As `make build` makes it."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("dvsync-*.whl")
    return built


def make_environment(folder: Path) -> Path:
    """The Python of an environment with the locked packages of the one that runs the tests, and without dvsync."""
    EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (packages,) = (folder / "lib").glob("python3.*/site-packages")
    # Half a gigabyte of packages is not copied for it.
    (packages / "locked.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder / "bin" / "python"


def install(wheel: Path, folder: Path) -> Path:
    """The command `dvsync` of a new environment in `folder` that has the wheel, which comes before other packages."""
    python = make_environment(folder)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--prefix", folder, wheel]
    subprocess.run([*install, "--ignore-installed"], check=True, capture_output=True, env=clean_environment())
    command = folder / "bin" / "dvsync"
    command.write_text(command.read_text().replace(sys.executable, str(python), 1))
    return command


def install_slim(folder: Path) -> Path:
    """The command `dvsync` of this checkout in an environment of its own that has what it needs without any extra."""
    EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (packages,) = (folder / "lib").glob("python3.*/site-packages")
    for installed in map(distribution, needed()):
        for name in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            (packages / name).symlink_to(str(installed.locate_file(name)))
    command = folder / "bin" / "dvsync"
    command.write_text(f"#!{folder / 'bin' / 'python'}\nfrom daemon.cli.commands import main\nmain()\n")
    command.chmod(0o755)
    return command


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_HOME", "DVSYNC_CONFIG")}
    return {**kept, **(more or {})}
