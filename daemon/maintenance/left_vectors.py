"""Files of deletion vectors that a crash left in a Delta table. Delta's log decides: what any commit names, stays."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final

from daemon.delta.deletion_vector import NAMED_WITHIN_S, find_place
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import load_log_segment
from daemon.errors import CorruptInput, LogMissing, ObjectMissing, Unsupported
from daemon.maintenance.own_places import name_of
from daemon.sync.context import TableContext
from state import TableRecord, VectorFile

NAME: Final = re.compile(r"deletion_vector_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.bin")


def find_due(context: TableContext, record: TableRecord) -> tuple[list[VectorFile], int]:
    """Return the recorded files that no commit may still come to name, and count the others."""
    grace_s = max(context.settings.maintenance.orphan_grace_s, 2 * NAMED_WITHIN_S)
    due_ms = context.clock.now_ms() - round(grace_s * 1000)
    recorded = context.store.list_vectors(record.id)
    due = [file for file in recorded if file.since_ms <= due_ms]
    return due, len(recorded) - len(due)


def is_own(context: TableContext, file: VectorFile) -> bool:
    """Return whether the file is where dvsync writes such files, and has such a name."""
    name = name_of(file.path)
    return file.path == f"{context.location}/{name}" and NAME.fullmatch(name) is not None


def find_unnamed(context: TableContext, files: Sequence[VectorFile]) -> tuple[list[VectorFile], int]:
    """Return those of `files` that no commit names, and count those of which the log does not tell: a commit after the
    version that their deletion had read is gone or cannot be read. Raises LogMissing, and as the stores do.

    Example: version 4 was read, and the newest is 7. Unless commit 5, 6 or 7 names the file, none ever will.
    """
    log, named = DeltaLog(context.storage, context.location, context.clock), set[str]()
    # The commits after `after` up to `newest` are read.
    after, newest = sys.maxsize, -1
    try:
        # Asked for, since a listing may be old.
        newest = after = log.find_newest(load_log_segment(log).version) or 0
        while after > min(file.read_version for file in files):
            commit = log.read_commit(after, bytes_max=context.limits.commit_bytes_max)
            vectors = (action.deletion_vector for action in commit.file_actions)
            named |= {name_of(find_place(context.location, each).path) for each in vectors if each}
            after -= 1
    except LogMissing:
        raise  # The whole table may be away.
    except (ObjectMissing, CorruptInput, Unsupported):
        pass  # Of files of older deletions, the log does not tell.
    told = [file for file in files if after <= file.read_version <= newest]
    return [file for file in told if name_of(file.path) not in named], len(files) - len(told)
