"""The memory of dvsync: cursors, live files, deletion vectors and their delete files. Knows nothing of `daemon`."""

from state.records import (
    DeleteFileRecord,
    DeletionVectorDescriptor,
    DvMapping,
    FileKind,
    FileStatus,
    Intent,
    Lease,
    LiveFile,
    OrphanReason,
    Outcome,
    SyncRun,
    TableCounts,
    TableError,
    TableRecord,
    WrittenCount,
    WrittenFile,
)
from state.store import LeaseLost, StateStore, StateUnavailable

__all__ = [
    "DeleteFileRecord",
    "DeletionVectorDescriptor",
    "DvMapping",
    "FileKind",
    "FileStatus",
    "Intent",
    "Lease",
    "LeaseLost",
    "LiveFile",
    "OrphanReason",
    "Outcome",
    "StateStore",
    "StateUnavailable",
    "SyncRun",
    "TableCounts",
    "TableError",
    "TableRecord",
    "WrittenCount",
    "WrittenFile",
]
