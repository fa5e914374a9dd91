"""Makes mirrors, in this process or in a task of Spark: what is to be done is decided before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter

from daemon.mirror.copying import MirrorCopy, copy_bytes
from daemon.mirror.rewriting import RewriteTask, rewrite_file
from daemon.store.durable import force_to_disk
from daemon.store.storage import REQUESTS_AT_ONCE, FileIOStorage, map_files

MirrorTask = MirrorCopy | RewriteTask


@dataclass(frozen=True)
class WrittenMirror:
    path: str
    size_bytes: int


def make_mirrors(
    source: FileIOStorage, target_properties: Mapping[str, str], tasks: Iterable[MirrorTask]
) -> Iterator[WrittenMirror]:
    """Make each mirror, and yield them in the order of the tasks, once they would survive a power cut.

    Other stores are asked to copy REQUESTS_AT_ONCE files at a time; rows are written file by file. A second run makes
    the same mirrors again. Raises as `copy_bytes` and `rewrite_file`; mirrors that were finished stay.
    """
    left = iter(tasks)
    make = partial(_make, source=source, target_properties=target_properties)
    while some := list(islice(left, REQUESTS_AT_ONCE)):
        # A row group for each of many files would not fit into memory.
        is_copied = all(isinstance(task, MirrorCopy) for task in some)
        sizes_bytes = map_files(make, some, attrgetter("mirror")) if is_copied else [make(task) for task in some]
        force_to_disk([task.mirror for task in some])
        for task, size_bytes in zip(some, sizes_bytes, strict=True):
            yield WrittenMirror(task.mirror, size_bytes)


def _make(task: MirrorTask, *, source: FileIOStorage, target_properties: Mapping[str, str]) -> int:
    if isinstance(task, MirrorCopy):
        return copy_bytes(task, source, target_properties)
    return rewrite_file(task, source, target_properties)
