"""The output of the commands: tables and progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from daemon.errors import SyncError
from daemon.masking import scrub
from daemon.status.table_status import SyncState, TableStatus, worst_first
from daemon.status.wording import (
    count_states,
    differing_text,
    mirrors_text,
    missing_text,
    paused_text,
    resync_text,
    size_text,
)
from daemon.texts import counted, iso_time, printable, span
from daemon.verify.findings import hint_for

if TYPE_CHECKING:
    from daemon.maintenance.cleanup import Cleanup
    from daemon.maintenance.compaction import Compaction
    from daemon.maintenance.expiry import Expiry
    from daemon.scheduling.cycle import CycleResult
    from daemon.verify.findings import Proof
    from state import SyncRun

_COLOURS = {
    SyncState.SYNCED: "green",
    SyncState.SYNCING: "cyan",
    SyncState.BEHIND: "yellow",
    SyncState.WAITING: "yellow",
    SyncState.RETRYING: "red",
    SyncState.PARKED: "bold red",
    SyncState.PAUSED: "dim",
    SyncState.GONE: "red",
}
# The columns of `dvsync status` on a terminal, and those with --wide; `fmt` is Iceberg's format version.
COLUMNS = ("table", "state", "version", "lag", "synced")
WIDE_COLUMNS = (*COLUMNS, "files", "deleted", "orphans", "fmt")
LEFT_COLUMNS = ("table", "state", "fmt")
# The space between two columns, and the smallest width of the name column. A narrower terminal gets plain lines.
GAP, NAME_MIN = 2, 16


@contextmanager
def replacing(console: Console) -> Iterator[None]:
    """Print the block at once: on a terminal in place of the last one, elsewhere below it, after the time."""
    with console.capture() as captured:
        yield
    if console.is_terminal:
        console.clear()
    else:
        console.out(iso_time(round(time.time() * 1000)), highlight=False)
    console.out(captured.get(), end="", highlight=False)


def print_statuses(
    console: Console, statuses: Sequence[TableStatus], lines: Sequence[str] = (), *, wide: bool = False
) -> None:
    """Print `lines`, a count by state and the tables. Off a terminal: a line for each table, and `lines` on stderr."""
    if not console.is_terminal:
        for line in lines:
            print(printable(line), file=sys.stderr)
        _print_lines(console, statuses)
        return
    for line in lines:
        console.print(printable(line), style="dim", markup=False, highlight=False)
    console.print(count_states(statuses), style="bold", markup=False, highlight=False)
    ordered = worst_first(statuses)
    columns = WIDE_COLUMNS if wide else COLUMNS
    now = datetime.now(UTC)
    headings = [Text(heading, style="bold") for heading in columns]
    rows = [headings, *(_cells(status, now)[: len(columns)] for status in ordered)]
    names, *others = (max(cell.cell_len for cell in column) for column in zip(*rows, strict=True))
    left = console.width - sum(others) - GAP * len(others)
    if left < min(names, NAME_MIN):
        _print_lines(console, ordered)
        return
    widths = [min(names, left), *others]
    console.print(_row(rows[0], widths))
    for cells, status in zip(rows[1:], ordered, strict=True):
        console.print(_row(cells, widths))
        error, notes = status.error, [*_notes(status)]
        if wide and status.mirrors:
            notes.append(f"mirrors: {mirrors_text(status.mirrors)}")
        for note in (*notes, *((f"{error.kind}: {error.message}", error.hint) if error else ())):
            console.print(Padding(Text(printable(note)), (0, 0, 0, GAP)))


def _print_lines(console: Console, statuses: Sequence[TableStatus]) -> None:
    for status in statuses:
        size, error = f" ({size_text(status.orphan_bytes)})" if status.orphans_waiting else "", status.error
        line = (
            f"{status.name} {status.state} synced={_or_dash(status.synced_version)}"
            f" source={_or_dash(status.source_version)} lag={_lag(status, '{:.0f} s'.format)}"
            f" at={status.last_synced_at or '-'} files={_or_dash(status.live_data_files)}"
            f" mirrors={'-' if status.mirrors is None else mirrors_text(status.mirrors)}"
            f" deleted={_or_dash(status.deleted_positions)} orphans={_or_dash(status.orphans_waiting)}{size}"
            f" format={_or_dash(status.format_version)}"
        )
        words = [line, *_notes(status), *([f"error={error.kind}: {error.message} ({error.hint})"] if error else [])]
        console.print(printable(" ".join(words)), soft_wrap=True, markup=False, highlight=False)


def _cells(status: TableStatus, now: datetime) -> list[Text]:
    synced_at = status.last_synced_at and datetime.fromisoformat(status.last_synced_at)
    return [
        Text(printable(status.name)),
        Text(status.state.value, style=_COLOURS[status.state]),
        Text(_or_dash(status.synced_version)),
        Text(_lag(status, span)),
        Text(f"{span(max(0, round((now - synced_at).total_seconds())))} ago" if synced_at else "-"),
        Text(_or_dash(status.live_data_files)),
        Text(_or_dash(status.deleted_positions)),
        Text(_or_dash(status.orphans_waiting)),
        Text(f"v{status.format_version}" if status.format_version else "-"),
    ]


def _row(cells: Sequence[Text], widths: Sequence[int]) -> Table:
    """Lay out one row as a grid of its own, so that an error can follow it. A name that is too long is wrapped."""
    row = Table.grid(padding=(0, GAP, 0, 0))
    for width, name in zip(widths, WIDE_COLUMNS, strict=False):
        row.add_column(width=width, justify="left" if name in LEFT_COLUMNS else "right", overflow="fold")
    row.add_row(*cells)
    return row


def _notes(status: TableStatus) -> Iterator[str]:
    """Yield what holds the table up, and what its verification says, besides its error."""
    if status.state is SyncState.WAITING:
        yield missing_text(status.source)
    if status.pause:
        yield paused_text(status.pause)
    if status.resync_wanted:
        yield resync_text(status)
    if status.proof and not status.proof.is_right:
        yield f"{differing_text(status.proof)}. {hint_for(status.name, status.proof.differences)}"
    if error := status.verify_error:
        yield f"cannot be verified since {error.since}: {error.kind}: {error.message} ({error.hint})"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _lag(status: TableStatus, seconds: Callable[[float], str]) -> str:
    """The lag in versions and, in parentheses, in time."""
    if status.lag_versions is None:
        return f"unknown since {status.checked_at}" if status.checked_at else "-"
    if status.lag_versions <= 0:
        return "0"
    return f"{status.lag_versions} ({seconds(status.lag_seconds)})" if status.lag_seconds else f"{status.lag_versions}"


def run_lines(runs: Sequence[SyncRun]) -> list[str]:
    lines = []
    for run in runs:
        operation = f" ({run.operation})" if run.operation else ""
        done = (
            f"data files +{run.data_files_added} -{run.data_files_removed},"
            f" delete files +{run.delete_files_added}, positions +{run.positions_added}"
        )
        lines.append(
            f"{iso_time(run.started_at_ms)}  {run.outcome}, version {_or_dash(run.to_version)}{operation},"
            f" {span(run.duration_ms / 1000)}: {done if run.message is None else run.message}"
        )
    return lines or ["no sync is recorded yet"]


def verdict_line(name: str, source: str, verdict: CycleResult) -> str:
    from daemon.sync.outcomes import SyncOutcome  # noqa: PLC0415 - with PyIceberg, which other commands do not need

    if verdict.error is not None:
        return f"{name}: {verdict.error.kind}: {verdict.error.message}\n  {verdict.error.hint}"
    if verdict.pause:
        return f"{name}: {paused_text(verdict.pause)}; `dvsync resume {name}` resumes it"
    result = verdict.result
    if result is None or result.outcome is SyncOutcome.WAITING:
        return f"{name}: {missing_text(scrub(source))}"
    if result.outcome is SyncOutcome.UNCHANGED:
        return f"{name}: up to date at version {result.to_version}"
    arrived = f"version {result.to_version}"
    if result.from_version is not None and result.from_version != result.to_version:
        arrived = f"version {result.from_version} to {result.to_version}"
    return (
        f"{name}: {result.outcome}, {arrived}: snapshots {result.snapshots},"
        f" data files +{result.data_files_added} -{result.data_files_removed},"
        f" delete files +{result.delete_files_added} -{result.delete_files_removed},"
        f" positions +{result.positions_added}"
    )


def compaction_lines(name: str, done: Compaction, *, dry_run: bool) -> list[str]:
    if not done.data_files:
        return [f"{name}: nothing to compact"]
    verb = "would compact" if dry_run else "compacted"
    return [
        f"{name}: {verb} the delete files of {counted(done.data_files, 'data file')}:"
        f" {done.delete_files_before} into {done.delete_files_after}"
    ]


def expiry_lines(name: str, done: Expiry, *, dry_run: bool) -> list[str]:
    lines = [f"{name}: {'would expire' if dry_run else 'expired'} {counted(len(done.expired), 'snapshot')}"]
    if not done.expired:
        lines = [f"{name}: no snapshot to expire"]
    if done.tags:
        lines.append(f"  expired tags: {', '.join(done.tags)}")
    if done.unreadable:
        lines.append(f"  unreadable because data files are gone: {', '.join(map(str, done.unreadable))}")
    lines += (f"  unreadable, not expired ({why}): {snapshot_id}" for snapshot_id, why in done.held)
    return lines


def cleanup_lines(name: str, done: Cleanup, *, dry_run: bool) -> list[str]:
    verb = "would remove" if dry_run else "removed"
    kinds = Counter(file.kind for file in done.removed)
    by_kind = f" ({', '.join(f'{kind} {count}' for kind, count in sorted(kinds.items()))})" if kinds else ""
    lines = [f"{name}: {verb} {counted(len(done.removed), 'file')}, {decimal(done.removed_bytes)}{by_kind}"]
    if dry_run:
        lines += (f"    {file.path} ({file.reason}, {decimal(file.size_bytes or 0)})" for file in done.removed)
    lines += (f"  left {count}: {reason}" for reason, count in sorted(done.left.items()))
    lines += (f"  could not be removed: {failure}" for failure in done.failed)
    lines += (f"  unknown to the state database: {file.path}" for file in done.found)
    return lines


def proof_lines(name: str, proof: Proof | SyncError) -> list[str]:
    if isinstance(proof, SyncError):
        return [f"{name}: not verified: {proof.kind}: {proof}", f"  {proof.hint}"]
    compared = f"{proof.files:,} of {proof.files_total:,} data files, {proof.rows:,} rows"
    took = ", ".join(f"{level} {seconds:.1f} s" for level, seconds in proof.seconds.items()) or "nothing was compared"
    shown = f"version {proof.version} in snapshot {proof.snapshot_id}"
    if proof.is_right:
        return [f"{name}: matches Delta: {shown}; {compared} ({took})"]
    lines = [f"{name}: DIFFERS: {shown}; {compared} ({took})"]
    for fault, count in proof.findings.counts.items():
        named = [each for each in proof.findings.named if each.fault == fault]
        lines.append(f"  {fault}: {count:,}" + (f", the first {len(named)}:" if len(named) < count else ""))
        for each in named:
            column = f", column {each.column}" if each.column else ""
            positions = f", at positions {', '.join(map(str, each.positions))}" if each.positions else ""
            lines += [f"    {each.path}{column}", f"      {each.detail}{positions}"]
    return [*lines, f"  {hint_for(name, proof.findings.counts)}"]


def progress_bars(console: Console) -> Progress:
    """Progress bars for the long steps of a command, on a terminal only."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@dataclass(frozen=True)
class TableProgress:
    """One table's progress: one bar for each kind of work."""

    bars: Progress
    name: str
    tasks: dict[str, TaskID] = field(default_factory=dict)

    def advanced(self, done: int, total: int, what: str) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.bars.add_task(f"{self.name}: {what}", total=total)
        self.bars.update(self.tasks[what], completed=done, total=total)
        if done >= total:
            self.bars.remove_task(self.tasks.pop(what))
