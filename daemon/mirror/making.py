"""Makes mirrors, in this process or in a task of Spark: what is to be done is decided before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import attrgetter

from daemon.mirror.copying import MirrorCopy, copy_bytes
from daemon.mirror.rewriting import RewriteTask, rewrite_file
from daemon.store.durable import force_to_disk
from daemon.store.storage import REQUESTS_AT_ONCE, FileIOStorage, map_files

MirrorTask = MirrorCopy | RewriteTask


def make_mirrors(
    source: FileIOStorage, target_properties: Mapping[str, str], tasks: Iterable[MirrorTask]
) -> Iterator[dict[str, int]]:
    """Make each mirror, in the order of the tasks, and yield the sizes of some by path once they would survive a power
    cut.

    REQUESTS_AT_ONCE files are copied at a time; rows are written file by file. A second run makes the same mirrors
    again. Raises as `copy_bytes` and `rewrite_file`; mirrors that were finished stay.
    """
    left = iter(tasks)
    make = partial(_make, source=source, target_properties=target_properties)
    while some := list(islice(left, REQUESTS_AT_ONCE)):
        # A row group for each of many files would not fit into memory, and how large a file gets is not known before.
        is_copied = all(isinstance(task, MirrorCopy) for task in some)
        for each in [some] if is_copied else [[task] for task in some]:
            sizes_bytes = map_files(make, each, attrgetter("mirror"))
            paths = [task.mirror for task in each]
            force_to_disk(paths)
            yield dict(zip(paths, sizes_bytes, strict=True))


def _make(task: MirrorTask, *, source: FileIOStorage, target_properties: Mapping[str, str]) -> int:
    if isinstance(task, MirrorCopy):
        return copy_bytes(task, source, target_properties)
    return rewrite_file(task, source, target_properties)
