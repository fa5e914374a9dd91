"""A Spark cluster on this machine: the standalone master and workers of the pip package, each a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil

from tests.kit.daemons import until
from tests.kit.spark_session import SHORT_LIVED

HOST = "127.0.0.1"
SMALL = {"SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED}
START_MAX_S = 60.0


@dataclass
class Cluster:
    """A master and its workers, which share only PATH with this process; each works in its own folder below `folder`.

    A worker offers one core and runs one executor.
    """

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, workers: int) -> None:
        log = self._launch("master", "master.Master", "--host", HOST, "--port", "0", "--webui-port", "0")
        self.master = _said(log, r"Starting Spark master at (spark://\S+)")
        self.page = f"http://{HOST}:" + _said(log, r"Successfully started service 'MasterUI' on port (\d+)")
        for _ in range(workers):
            self.add_worker()
        until(lambda: self.told()["aliveworkers"] == workers, "the workers", wait_s=START_MAX_S)

    def add_worker(self) -> psutil.Process:
        place = ("--host", HOST, "--webui-port", "0", "--cores", "1", "--memory", "1g")
        self._launch(f"worker-{len(self.processes)}", "worker.Worker", *place, self.master)
        return psutil.Process(self.processes[-1].pid)

    def _launch(self, name: str, main: str, *arguments: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        pyspark = find_spec("pyspark")
        assert pyspark is not None and pyspark.origin is not None
        home = Path(pyspark.origin).parent
        work = ("--work-dir", str(folder)) if main.startswith("worker") else ()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", f"org.apache.spark.deploy.{main}", *work, *arguments],
                cwd=folder,
                env={"PATH": os.environ["PATH"], **SMALL},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return folder / "log"

    def told(self) -> dict[str, Any]:
        """What the master says of its workers and applications."""
        with urlopen(f"{self.page}/json/", timeout=10) as answer:
            said: dict[str, Any] = json.load(answer)
        return said

    def kill_worker(self) -> None:
        """Kill the worker that was started last, with its executor and the Python processes of that one."""
        worker = psutil.Process(self.processes[-1].pid)
        tree = [worker, *worker.children(recursive=True)]
        for each in tree:
            each.kill()
        psutil.wait_procs(tree, timeout=10)
        self.processes.pop().wait()

    def close(self) -> None:
        while self.processes:
            if self.processes[-1].poll() is None:
                self.kill_worker()
            else:
                self.processes.pop()


def _said(log: Path, pattern: str) -> str:
    found = until(lambda: re.search(pattern, log.read_text()), f"{pattern} in {log}", wait_s=START_MAX_S)
    return str(found[1])


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """A cluster whose workers have registered, killed at the end."""
    made = Cluster(folder)
    try:
        made.start(workers)
        yield made
    finally:
        made.close()
