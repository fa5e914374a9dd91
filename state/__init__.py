"""The memory of dvsync: cursors, live files, deletion vectors and their delete files. Imports nothing of `daemon`."""

from state.cursor import with_outcome
from state.records import (
    RECENT_COMMITS_MAX,
    SHARES,
    CommitIdentity,
    DeleteFileRecord,
    Deletions,
    DeletionVectorDescriptor,
    Difference,
    Differences,
    DvMapping,
    FileKind,
    FileStatus,
    Intent,
    Lease,
    LiveFile,
    OrphanReason,
    Outcome,
    PartitionCount,
    Pause,
    ProofRecord,
    ServingFile,
    SyncRun,
    TableCounts,
    TableError,
    TableRecord,
    VectorCount,
    Wait,
    WrittenCount,
    WrittenFile,
)
from state.store import DatabaseReplaced, FileLedger, LeaseLost, LeaseStore, StateStore, StateUnavailable, TableStore
