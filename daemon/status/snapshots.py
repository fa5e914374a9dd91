"""Which Iceberg snapshot shows a Delta version or time, and how to read it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from daemon.config.settings import TableSettings
from daemon.delta.log import DeltaLog
from daemon.iceberg.marker import FROM_VERSION, OPERATION, find_marker, shown_by
from daemon.masking import scrub
from daemon.status.reading import address_of, read_lines
from daemon.sync.comparison import COMPARED
from daemon.sync.first_sync import RESYNCED
from daemon.texts import iso_time
from daemon.translate.definition import find_faults
from daemon.translate.readers import others_misread
from state import MirrorCount

# The operations of snapshots that dvsync made from Delta's whole state: they pass over the versions before it.
PASSING_OVER = (RESYNCED, COMPARED)
# In the place of the time of a commit file that log cleanup has removed. It removes the oldest first.
GONE_MS = -1


class ShownSnapshot(msgspec.Struct, frozen=True):
    """One snapshot. Times are ISO 8601, UTC. The fields from `version` on are null if dvsync did not commit it.

    It shows the rows of `version` and, if later versions changed no rows, of all versions up to `last_version`. It
    contains the changes of `from_version` and later. `references` are the branches and tags that point at it.
    `delete_files` and `deleted_positions` are the totals in the snapshot's summary.
    """

    snapshot_id: int
    committed_at: str
    operation: str
    is_current: bool
    references: tuple[str, ...]
    version: int | None = None
    from_version: int | None = None
    last_version: int | None = None
    delta_timestamp: str | None = None
    delta_operation: str | None = None
    delete_files: int | None = None
    deleted_positions: int | None = None


class Choice(msgspec.Struct, frozen=True):
    """The snapshot that shows a version, and a line for each reader; or why none does, and which first contains it."""

    version: int | None
    snapshot: ShownSnapshot | None = None
    read: dict[str, str] = msgspec.field(default_factory=dict)
    reason: str | None = None
    hint: str | None = None
    contained_in: ShownSnapshot | None = None


class ShownTable(msgspec.Struct, frozen=True):
    """What the catalog shows of a table. `version` is the newest Delta version shown; None if it is not dvsync's.

    `source`, `source_table` and `mirrors` are as in `TableStatus`. `notes` say what programs would misread that
    `readers` leaves out.
    """

    name: str
    source: str
    source_table: str | None
    catalog: str
    target: str
    metadata_location: str
    format_version: int
    version: int | None
    snapshot: ShownSnapshot | None
    mirrors: tuple[MirrorCount, ...]
    read: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Line:
    """A snapshot of ours, with the Delta versions that it shows and contains, and the time of `version`."""

    snapshot: Snapshot
    from_version: int
    version: int
    last_version: int
    timestamp_ms: int


def show_table(settings: TableSettings, table: Table, mirrors: tuple[MirrorCount, ...]) -> ShownTable:
    current = next((each for each in list_snapshots(table) if each.is_current), None)
    return ShownTable(
        name=settings.name,
        source=scrub(settings.source),
        source_table=settings.entry.full_name if settings.entry else None,
        catalog=table.catalog.name,
        target=".".join(table.name()),
        metadata_location=table.metadata_location,
        format_version=table.metadata.format_version,
        version=current.last_version if current else None,
        snapshot=current,
        mirrors=mirrors,
        read=read_lines_of(table),
        notes=tuple(f"`readers` leaves out {others_misread(fault)}" for fault in sorted(find_faults(table))),
    )


def list_snapshots(table: Table) -> list[ShownSnapshot]:
    """Return all snapshots, the newest first."""
    lines = {line.snapshot.snapshot_id: line for line in _lines(table)}
    newest_first = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0, reverse=True)
    return [_shown(table, snapshot, lines.get(snapshot.snapshot_id)) for snapshot in newest_first]


def choose_by_version(table: Table, version: int) -> Choice:
    """Choose the snapshot that shows exactly the rows of Delta's `version`; a tagged one, because it stays longer."""
    lines = _current_log(_lines(table))
    tagged = {ref.snapshot_id for name, ref in table.metadata.refs.items() if name != MAIN_BRANCH}
    showing = [line for line in lines if line.version <= version <= line.last_version]
    if showing:
        line = next((each for each in showing if each.snapshot.snapshot_id in tagged), showing[0])
        chosen = _shown(table, line.snapshot, line)
        return Choice(version, chosen, read_lines_of(table, chosen.snapshot_id))
    if not lines or version > lines[0].last_version:
        newest = f"the table shows version {lines[0].last_version}" if lines else "dvsync has synced no version"
        return Choice(
            version,
            reason=f"version {version} is not shown yet: {newest}",
            hint="Check that Delta has this version, and with `dvsync status` that the table is synced.",
        )
    following = [line for line in lines if line.version > version]
    first = following[-1] if following else None
    if first and first.from_version <= version:
        return Choice(
            version,
            reason=f"no snapshot shows exactly version {version}: the first that contains it is "
            f"{first.snapshot.snapshot_id}, which shows version {first.version}",
            hint=f"Read version {version} from the Delta table, or read another version. A version that "
            "`tag_every` chooses always has a snapshot of its own.",
            contained_in=_shown(table, first.snapshot, first),
        )
    return Choice(
        version,
        reason=f"no snapshot shows version {version} any more: it has expired",
        hint="Read it from the Delta table, if Delta still has it. Snapshots expire when VACUUM removes their data, "
        "and by number and age (maintenance.snapshots_max, snapshot_age_max); tag_every keeps chosen ones for longer.",
    )


def choose_by_time(table: Table, log: DeltaLog, at_ms: int) -> Choice:
    """Choose the snapshot of the newest Delta version as of `at_ms`, epoch. Raises SyncError if Delta's log is away."""
    lines = _current_log(_lines(table))
    number = next((number for number, line in enumerate(lines) if line.timestamp_ms <= at_ms), None)
    if number is None:
        last = lines[-1] if lines else None
        oldest = f": the oldest shows version {last.version} of {iso_time(last.timestamp_ms)}" if last else ""
        return Choice(
            None,
            reason=f"no snapshot shows the table at {iso_time(at_ms)}{oldest}",
            hint="Snapshots of earlier versions have expired, or never existed. Read them from the Delta table.",
        )
    line = lines[number]
    # The versions that may be the newest one at this time, and that no snapshot is the first to show.
    high = lines[number - 1].version - 1 if number else log.find_newest(line.last_version) or line.last_version
    between = range(line.version + 1, high + 1)
    version = line.version + bisect_right(between, at_ms, key=lambda each: log.commit_time_ms(each, GONE_MS))
    if version > line.last_version and log.commit_time_ms(version, GONE_MS) == GONE_MS:
        return Choice(
            None,
            reason=f"it is not known which of the versions {line.version} to {version} was the newest at"
            f" {iso_time(at_ms)}: Delta's log no longer has their commit files",
            hint=f"Ask for one of them with --version. Snapshot {line.snapshot.snapshot_id} shows {line.version}.",
        )
    return choose_by_version(table, version)


def read_lines_of(table: Table, snapshot_id: int | None = None) -> dict[str, str]:
    return read_lines(
        table.catalog.name,
        table.name(),
        table.metadata_location,
        address=address_of(table.io.properties),
        snapshot_id=snapshot_id,
    )


def _lines(table: Table) -> list[_Line]:
    """Return dvsync's snapshots, the newest first."""
    shown = shown_by(table)
    ours = [(each, marker) for each in table.metadata.snapshots if (marker := find_marker(each)) is not None]
    ours.sort(key=lambda pair: pair[0].sequence_number or 0)
    lines: list[_Line] = []
    for snapshot, marker in ours:
        parent = lines[-1] if lines and lines[-1].snapshot.snapshot_id == snapshot.parent_snapshot_id else None
        summary = dict(snapshot.summary.additional_properties) if snapshot.summary else {}
        from_version = int(summary.get(FROM_VERSION, marker.version))
        if snapshot.sequence_number == 1:
            from_version = 0
        elif parent and summary.get(OPERATION) in PASSING_OVER:
            from_version = min(parent.version + 1, marker.version)
        elif parent:
            # The versions between the two changed no rows, so they have no snapshot.
            lines[-1] = replace(parent, last_version=max(parent.version, from_version - 1))
        is_current = snapshot.snapshot_id == table.metadata.current_snapshot_id
        last_version = shown.version if is_current and shown else marker.version
        lines.append(_Line(snapshot, from_version, marker.version, last_version, marker.timestamp_ms))
    return lines[::-1]


def _current_log(lines: Sequence[_Line]) -> list[_Line]:
    """Return the lines of Delta's present log. Before it was replaced or went back, versions had another meaning."""
    went_back = next(
        (number for number, (new, old) in enumerate(pairwise(lines), 1) if old.version > new.version), None
    )
    return list(lines[:went_back])


def _shown(table: Table, snapshot: Snapshot, line: _Line | None) -> ShownSnapshot:
    summary, ours = snapshot.summary, snapshot.summary if line else None
    pointing = (name for name, ref in table.metadata.refs.items() if ref.snapshot_id == snapshot.snapshot_id)
    return ShownSnapshot(
        snapshot_id=snapshot.snapshot_id,
        committed_at=iso_time(snapshot.timestamp_ms),
        operation=summary.operation.value if summary else "",
        is_current=snapshot.snapshot_id == table.metadata.current_snapshot_id,
        references=tuple(sorted(name for name in pointing if name != MAIN_BRANCH)),
        version=line.version if line else None,
        from_version=line.from_version if line else None,
        last_version=line.last_version if line else None,
        delta_timestamp=iso_time(line.timestamp_ms) if line else None,
        delta_operation=ours[OPERATION] if ours else None,
        delete_files=int(str(ours["total-delete-files"] or 0)) if ours else None,
        deleted_positions=int(str(ours["total-position-deletes"] or 0)) if ours else None,
    )
