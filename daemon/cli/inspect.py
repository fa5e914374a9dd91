"""What `dvsync inspect` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from rich.filesize import decimal

from daemon.cli.snapshots import list_lines
from daemon.status.deletions import FileDeletions, FileDetail, TableDeletions
from daemon.status.wording import size_text
from daemon.texts import counted, span

BLOCKS = "▁▂▃▄▅▆▇█"
STORAGE = {
    "u": "in files named by a UUID",
    "p": "in files named by a path",
    "i": "inline in Delta's log",
    "?": "unknown until states are compared",
}


def table_lines(found: TableDeletions, *, now_ms: int) -> Iterator[str]:
    """Describe a table's deletions. Paths are not cut, everything else fits on 80 columns."""
    yield f"{found.table} at Delta version {found.version}: {counted(found.data_files, 'data file')}"
    yield f"  {_share(found.deleted, found.rows)} deleted"
    yield "\nDeletion vectors by storage type"
    for kind in found.vectors:
        where = STORAGE.get(kind.storage_type, "of a later protocol")
        sums = f"{counted(kind.vectors, 'vector')}, {decimal(kind.size_bytes)}, {counted(kind.positions, 'position')}"
        yield f"  {kind.storage_type}  {sums}, {where}"
    yield from [] if found.vectors else ["  none"]
    if found.files:
        yield "\nData files with the largest share of deleted rows"
        for file in found.files:
            yield from _file_lines(file)
    if found.partitions:
        yield "\nPartitions with the largest share of deleted rows"
        for each in found.partitions:
            share = _share(each.deleted, each.rows)
            yield f"  {_partition(each.partition)}: {share} in {counted(each.data_files, 'data file')}"
    yield f"\nDelete files: {found.live_delete_files:,}"
    for serving in found.delete_files:
        yield f"  {serving.path}"
        age = span(max(0, now_ms - serving.since_ms) / 1000)
        serves = f"serves {counted(serving.data_files, 'data file')}"
        yield f"    {counted(serving.positions, 'position')}, {decimal(serving.size_bytes)}, {serves}, live for {age}"
    yield f"\nOrphans that wait for cleanup: {sum(each.files for each in found.orphans):,}"
    for orphan in found.orphans:
        age = span(max(0, now_ms - orphan.oldest_since_ms) / 1000)
        yield f"  {orphan.kind}: {orphan.files:,}, {size_text(orphan.size_bytes)}, the oldest for {age}"
    yield "\nSnapshots, the newest first (dvsync snapshots lists all)"
    yield from list_lines(found.snapshots, 0)


def file_lines(found: FileDetail) -> Iterator[str]:
    yield from _file_lines(found.file)
    yield f"  size: {decimal(found.size_bytes)}"
    if found.partition:
        yield f"  partition: {_partition(found.partition)}"
    if found.vector is None:
        yield "  no deletion vector: no row is deleted"
        return
    kind = found.vector.storage_type
    yield f"  deletion vector: {kind}, {STORAGE.get(kind, 'of a later protocol')}"
    if found.vector_path:
        yield f"    {found.vector_path}"
        yield f"    at byte {found.vector.offset:,}, {decimal(found.vector.size_in_bytes)}"
    yield f"  delete files: {len(found.delete_files)}"
    for serving in found.delete_files:
        yield f"    {serving.path}"
        of_all = f"{serving.of_this_file:,} of its {serving.positions:,} positions are of this data file"
        yield f"      {of_all}; {decimal(serving.size_bytes)}"
    yield "  deleted positions:"
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in found.ranges]
    yield f"    {', '.join(words)}{', and more' if found.has_more_ranges else ''}"


def _file_lines(file: FileDeletions) -> Iterator[str]:
    yield f"  {file.path}"
    yield f"    {_share(file.deleted, file.rows)}"
    if file.strip:
        # `·` for a part without deletions, and a block that grows with the deleted share.
        blocks = (BLOCKS[min(len(BLOCKS), ceil(share * len(BLOCKS))) - 1] if share else "·" for share in file.strip)
        yield f"    {''.join(blocks)}"


def _share(deleted: int, rows: int) -> str:
    return f"{deleted:,} of {rows:,} rows ({deleted / max(1, rows):.1%})"


def _partition(values: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name}={'null' if value is None else value}" for name, value in values.items())
