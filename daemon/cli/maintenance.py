"""Maintenance by hand: one round of what the daemon does by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from daemon.cli.invocation import ConfigPath, TableNames, load_chosen, reported_errors, say
from daemon.errors import SyncError

if TYPE_CHECKING:
    from daemon.maintenance.maintainer import Maintainer

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
T = TypeVar("T")


def compact(
    context: typer.Context, tables: TableNames = None, dry_run: DryRun = False, config: ConfigPath = None
) -> None:
    """Merge the delete files of each data file that has many. No row changes."""
    from daemon.cli.console import compaction_lines  # noqa: PLC0415

    lines = partial(compaction_lines, dry_run=dry_run)
    _maintain(context, config, tables, lambda each, stop: each.compact(stop, dry_run=dry_run), lines, alone=not dry_run)


def expire(
    context: typer.Context, tables: TableNames = None, dry_run: DryRun = False, config: ConfigPath = None
) -> None:
    """Remove old and unreadable snapshots from the Iceberg tables. `cleanup` removes their files later."""
    from daemon.cli.console import expiry_lines  # noqa: PLC0415

    lines = partial(expiry_lines, dry_run=dry_run)
    _maintain(context, config, tables, lambda each, _: each.expire(dry_run=dry_run), lines, alone=not dry_run)


def cleanup(
    context: typer.Context,
    tables: TableNames = None,
    *,
    dry_run: DryRun = False,
    scan: Annotated[
        bool, typer.Option("--scan", help="List the tables' folders for files that the state database does not know.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what --scan finds, too.")] = False,
    config: ConfigPath = None,
) -> None:
    """Remove files that dvsync wrote and nothing references. The grace period of each must be over."""
    from daemon.cli.console import cleanup_lines  # noqa: PLC0415

    if remove and not scan:
        raise typer.BadParameter("needs --scan", param_hint="--remove")
    _maintain(
        context,
        config,
        tables,
        lambda each, stop: each.clean_up(stop, dry_run=dry_run, scan=scan, remove_found=remove),
        partial(cleanup_lines, dry_run=dry_run),
        alone=False,
    )


def _maintain(
    context: typer.Context,
    config: Path | None,
    tables: list[str] | None,
    work: Callable[[Maintainer, Event], T],
    lines: Callable[[str, T], list[str]],
    *,
    alone: bool,
) -> None:
    from daemon.cli.operations import maintain_tables  # noqa: PLC0415

    failed = False
    with reported_errors():
        settings, chosen, failed = load_chosen(context, config, tables)
        for table, done in maintain_tables(settings, chosen, work, alone=alone):
            if isinstance(done, SyncError):
                failed = True
                say(f"{table.name}: {done.kind}: {done}\n  {done.hint}")
            else:
                say("\n".join(lines(table.name, done)))
    raise typer.Exit(1 if failed else 0)
