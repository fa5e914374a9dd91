"""Repairs a table whose current metadata file is damaged or gone, for example after a power cut.

The contents of a readable metadata file are written to the path that the catalog's entry names. If no metadata file of
the table can be read any more, the entry is dropped, and a first sync makes the table again.
"""

from __future__ import annotations

from contextlib import suppress

import structlog
from pyiceberg.exceptions import ValidationError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from daemon.errors import SyncError, TargetUnreadable
from daemon.iceberg.marker import find_marker
from daemon.iceberg.pyiceberg_ext.file_io import S3FileIO
from daemon.iceberg.version_hint import SUFFIX
from daemon.observe import log as events
from daemon.store.durable import force_to_disk, is_local, local_path
from daemon.sync.context import TableContext
from state import FileKind, FileStatus, TableRecord

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def restore_metadata(context: TableContext, record: TableRecord, damaged: SyncError) -> Table | None:
    """Copy the newest readable metadata file to the path in `damaged`, and return the table.

    Only metadata whose current snapshot is dvsync's is used. Returns None after the table without any readable
    metadata was dropped from the catalog. Raises TargetUnreadable if the readable metadata is somebody else's, if the
    state store does not know the table as dvsync's, or if the whole volume may be away.
    """
    assert damaged.path is not None, "the catalog names a metadata file"
    written = context.store.list_written(record.id, (FileStatus.LIVE,))
    known = {file.path for file in written if file.kind is FileKind.METADATA}
    found = context.storage.list_from(damaged.path.rpartition("/")[0], after="")
    others = [file for file in found if file.path.endswith(SUFFIX) and file.path != damaged.path]
    has_others = False
    # First those that the state store knows, the newest first.
    for file in sorted(others, key=lambda file: (file.path in known, file.modified_ms), reverse=True):
        data = context.storage.read(file.path)
        metadata: TableMetadata | None = None
        with suppress(ValidationError, ValueError):
            metadata = TableMetadataUtil.parse_raw(data.decode())
        is_other = metadata and record.table_uuid not in (None, str(metadata.table_uuid))
        if metadata and not is_other and find_marker(metadata.current_snapshot()):
            break
        has_others = has_others or metadata is not None
    else:
        # An object store has no folders around the Iceberg table's own.
        is_volume_there = not is_local(damaged.path) or local_path(damaged.path).parents[2].is_dir()
        if has_others or record.metadata_location is None or not is_volume_there:
            raise TargetUnreadable(
                f"no metadata file of dvsync's can be read for the Iceberg table: {damaged.message}",
                path=damaged.path,
                hint=f"Mount the volume or restore the file, then `dvsync resume {record.name}`. Or drop "
                f"{record.target} from the catalog, then `dvsync resync {record.name}`, which creates the table again "
                "from Delta, without its tags and history.",
            ) from damaged
        context.target.drop()
        _log.warning(events.TARGET_OVERWRITTEN, reason=f"{damaged}; no other metadata file can be read")
        return None
    with S3FileIO(dict(context.properties)).new_output(damaged.path).create(overwrite=True) as output:
        output.write(data)
    force_to_disk([damaged.path])
    _log.warning(events.TARGET_OVERWRITTEN, reason=f"{damaged}; it was replaced by a copy of {file.path}")
    return context.target.find_table()
