"""What `dvsync show`, `snapshots` and `inspect` print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil

from rich.filesize import decimal

from daemon.errors import ConfigInvalid
from daemon.status.deletions import FileDeletions, FileDetail, TableDeletions
from daemon.status.snapshots import Choice, ShownSnapshot, ShownTable
from daemon.status.wording import UNKNOWN_REASON, mirrors_text, size_text
from daemon.texts import counted, span
from state import MirrorCount

HEADINGS = ("snapshot", "shows", "Delta's time (UTC)", "committed (UTC)", "operation")


def parse_time_ms(text: str) -> int:
    """Parse an ISO 8601 time to epoch milliseconds; UTC if it has no zone. Raises ConfigInvalid."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        hint = "Write ISO 8601, such as 2026-11-23T08:00:00Z or '2026-11-23 09:00+01:00'."
        raise ConfigInvalid(f"--timestamp: {text!r} is not a time", hint=hint) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def list_lines(snapshots: Sequence[ShownSnapshot], more: int) -> Iterator[str]:
    """Describe the snapshots as a table of 80 columns, unless versions are long; `more` older ones are left out."""
    rows = [HEADINGS, *map(_cells, snapshots)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, snapshot in zip(rows, (None, *snapshots), strict=True):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        if snapshot is not None and (notes := _notes(snapshot)):
            yield f"  {notes}"
    if more:
        yield f"and {more} older: --limit shows more"


def choice_lines(choice: Choice) -> Iterator[str]:
    """Describe the chosen snapshot, with the readers' lines. Nothing in them is wrapped or cut."""
    shown = choice.snapshot
    if shown is None:
        yield f"{choice.reason}"
        yield f"  {choice.hint}"
        return
    when = "" if shown.version != choice.version else f" of {shown.delta_timestamp}"
    yield f"snapshot {shown.snapshot_id} shows Delta version {choice.version}{when}"
    if shown.version != choice.version:
        yield f"  committed for version {shown.version}; the versions after it up to {choice.version} changed no rows"
    if notes := _notes(shown):
        yield f"  {notes}"
    yield from _reader_lines(choice.read)


def table_lines(shown: ShownTable) -> Iterator[str]:
    yield f"{shown.name}: {shown.target} in the catalog {shown.catalog}, Iceberg format version {shown.format_version}"
    yield f"  source    {f'{shown.source_table}, at ' if shown.source_table else ''}{shown.source}"
    yield f"  metadata  {shown.metadata_location}"
    snapshot = shown.snapshot
    yield f"  snapshot  {f'{snapshot.snapshot_id}, committed {snapshot.committed_at}' if snapshot else 'none'}"
    if snapshot is None or shown.version is None:
        yield "  shows     no Delta version: dvsync did not commit this snapshot, see `dvsync status`"
    elif snapshot.version == shown.version:
        yield f"  shows     Delta version {shown.version} of {snapshot.delta_timestamp}"
    else:
        yield f"  shows     Delta version {shown.version}; the versions after {snapshot.version} changed no rows"
    for note in shown.notes:
        yield f"  note      {note}"
    yield from _mirror_lines(shown.mirrors)
    yield from _reader_lines(shown.read)
    yield f"`dvsync doctor {shown.name}` names the readers that have trouble with the table, and what helps."


def _mirror_lines(mirrors: Sequence[MirrorCount]) -> Iterator[str]:
    if mirrors:
        yield f"\nMirrors in the place of data files that some reader would misread: {mirrors_text(mirrors)}"
    for each in mirrors:
        yield f"  {each.kind}: {counted(each.files, 'data file')}, {decimal(each.size_bytes)}"
        yield f"    {each.why or UNKNOWN_REASON}"


def _reader_lines(read: Mapping[str, str]) -> Iterator[str]:
    for reader, line in read.items():
        yield f"\n{reader}:\n  {line}"
    yield "\nSpark and Trino need the catalog in their own configuration."


def _cells(snapshot: ShownSnapshot) -> tuple[str, ...]:
    versions = "-"
    if snapshot.version is not None:
        is_one = snapshot.from_version == snapshot.version
        versions = str(snapshot.version) if is_one else f"{snapshot.from_version}-{snapshot.version}"
    return (
        str(snapshot.snapshot_id),
        versions,
        _short(snapshot.delta_timestamp),
        _short(snapshot.committed_at),
        snapshot.operation,
    )


def _notes(snapshot: ShownSnapshot) -> str:
    notes = ["current"] if snapshot.is_current else []
    notes += [f"held by {', '.join(snapshot.references)}"] if snapshot.references else []
    notes += ["not dvsync's"] if snapshot.version is None else []
    return "; ".join(notes)


def _short(time: str | None) -> str:
    return "-" if time is None else time[:19].replace("T", " ")


BLOCKS = "▁▂▃▄▅▆▇█"
STORAGE = {
    "u": "in files named by a UUID",
    "p": "in files named by a path",
    "i": "inline in Delta's log",
    "?": "unknown until states are compared",
}


def deletion_lines(found: TableDeletions, *, now_ms: int) -> Iterator[str]:
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
    yield from _mirror_lines(found.mirrors)
    yield f"\nOrphans that wait for cleanup: {sum(each.files for each in found.orphans):,}"
    for orphan in found.orphans:
        age = span(max(0, now_ms - orphan.oldest_since_ms) / 1000)
        yield f"  {orphan.kind}: {orphan.files:,}, {size_text(orphan.size_bytes)}, the oldest for {age}"
    yield "\nSnapshots, the newest first (dvsync snapshots lists all)"
    yield from list_lines(found.snapshots, 0)


def file_lines(found: FileDetail) -> Iterator[str]:
    yield from _file_lines(found.file)
    if found.mirror:
        yield f"  mirror ({found.mirror.kind}) of {found.mirror.data_file}"
        yield f"    {found.mirror.why or UNKNOWN_REASON}"
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
