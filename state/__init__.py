"""The memory of dvsync: cursors, live files, deletion vectors and their delete files. Imports nothing of `daemon`."""

from state.cursor import with_outcome
from state.errors import DatabaseReplaced, LeaseLost, StateUnavailable
from state.records import (
    RECENT_COMMITS_MAX,
    SHARES,
    CommitIdentity,
    DeleteFileRecord,
    DeletionVectorDescriptor,
    Difference,
    Differences,
    DvMapping,
    FileKind,
    FileStatus,
    Intent,
    Lease,
    LiveFile,
    MirrorRecord,
    OrphanReason,
    Outcome,
    Pause,
    ProofRecord,
    SourceEntry,
    SyncRun,
    TableError,
    TableRecord,
    VectorFile,
    Wait,
    WrittenFile,
)
from state.reports import Deletions, MirrorCount, PartitionCount, ServingFile, TableCounts, VectorCount, WrittenCount
