"""What `dvsync snapshots` and `dvsync show` print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from daemon.errors import ConfigInvalid
from daemon.status.snapshots import Choice, ShownSnapshot, ShownTable

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
    yield f"  metadata  {shown.metadata_location}"
    snapshot = shown.snapshot
    yield f"  snapshot  {f'{snapshot.snapshot_id}, committed {snapshot.committed_at}' if snapshot else 'none'}"
    if snapshot is None or shown.version is None:
        yield "  shows     no Delta version: dvsync did not commit this snapshot, see `dvsync status`"
    elif snapshot.version == shown.version:
        yield f"  shows     Delta version {shown.version} of {snapshot.delta_timestamp}"
    else:
        yield f"  shows     Delta version {shown.version}; the versions after {snapshot.version} changed no rows"
    yield from _reader_lines(shown.read)


def _reader_lines(read: Mapping[str, str]) -> Iterator[str]:
    for reader, line in read.items():
        yield f"\n{reader}:\n  {line}"


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
