"""Commands that change tables: requests that a running daemon reads in the state database, and maintenance by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from daemon.cli.invocation import (
    ChosenTables,
    ConfigPath,
    TableNames,
    load_both,
    load_chosen,
    reported_errors,
    say,
    seconds,
    who,
)
from daemon.config.settings import TableSettings
from daemon.errors import SyncError
from daemon.texts import printable

if TYPE_CHECKING:
    from daemon.maintenance.maintainer import Maintainer
    from state.sql.store import StateStore

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
AllTables = Annotated[bool, typer.Option("--all", help="All tables.")]
T = TypeVar("T")


def resume(
    context: typer.Context, tables: ChosenTables = None, every: AllTables = False, config: ConfigPath = None
) -> None:
    """Try parked, paused or retrying tables again. A daemon does within seconds; without one, `dvsync sync` does."""
    from daemon.sync.verbs import resume  # noqa: PLC0415

    idle = []
    for name, is_cleared in _asked(context, _chosen(tables, every), resume):
        if is_cleared:
            say(f"{name}: resumed; its next sync tries it again")
        else:
            idle.append(name)
    if idle:
        who = f"{idle[0]}: was" if len(idle) == 1 else f"{len(idle)} tables were"
        say(f"{who} neither parked, paused nor retrying; nothing to do")


def pause(
    context: typer.Context,
    tables: ChosenTables = None,
    *,
    every: AllTables = False,
    for_s: Annotated[
        float | None,
        typer.Option("--for", help="End the pause after this time, such as 2h.", parser=seconds, metavar="DURATION"),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="The reason, which `dvsync status` prints.", metavar="TEXT")
    ] = None,
    config: ConfigPath = None,
) -> None:
    """Stop syncing tables until `dvsync resume`, or for a time. A running daemon sees it within seconds."""
    from daemon.clock import SystemClock  # noqa: PLC0415
    from daemon.sync.verbs import make_pause, pause  # noqa: PLC0415
    from daemon.texts import iso_time  # noqa: PLC0415

    with reported_errors():
        wanted = make_pause(who(), SystemClock().now_ms(), for_s=for_s, reason=reason)
    until = f" until {iso_time(wanted.until_ms)}" if wanted.until_ms is not None else ""
    for name, _ in _asked(context, _chosen(tables, every), partial(pause, wanted=wanted)):
        say(f"{name}: paused{until}")


def resync(
    context: typer.Context, tables: ChosenTables = None, every: AllTables = False, config: ConfigPath = None
) -> None:
    """Rewrite tables from Delta's whole state. A daemon begins within seconds; without one, `dvsync sync` does it."""
    from daemon.clock import SystemClock  # noqa: PLC0415
    from daemon.sync.verbs import want_resync  # noqa: PLC0415

    verb = partial(want_resync, now_ms=SystemClock().now_ms())
    for name, said in _asked(context, _chosen(tables, every), verb):
        say(f"{name}: {said}")


def _chosen(tables: list[str] | None, every: bool) -> list[str]:
    """The names that a command was given; none for all tables."""
    if tables and every:
        raise typer.BadParameter("cannot be combined with names", param_hint="--all")
    if not tables and not every:
        raise typer.BadParameter("name tables, or use --all")
    return tables or []


def _asked(
    context: typer.Context, tables: list[str], verb: Callable[[StateStore, TableSettings], T]
) -> Iterator[tuple[str, T]]:
    """Let `verb` write to the state store what is asked of each of the tables. Yields their names and the results."""
    from daemon.sync.memory import open_store  # noqa: PLC0415

    with reported_errors():
        settings, chosen, _ = load_chosen(context, tables)
        with open_store(settings) as store:
            for table in chosen:
                yield table.name, verb(store, table)


def forget(
    context: typer.Context,
    tables: ChosenTables = None,
    every: Annotated[bool, typer.Option("--all", help="All tables that are gone.")] = False,
    drop: Annotated[
        bool,
        typer.Option(
            "--drop",
            help="Also drop the Iceberg tables from their catalogs, and remove the files that dvsync wrote for them.",
        ),
    ] = False,
    config: ConfigPath = None,
) -> None:
    """Remove tables that are gone from the state database. Delta's files stay in any case."""
    wanted = _chosen(tables, every)
    from daemon.cli.operations import forget_tables  # noqa: PLC0415

    with reported_errors():
        configured, settings = load_both(context)
        has_failed, is_idle = False, True
        for done in forget_tables(configured, settings, wanted, drop=drop):
            is_idle = False
            if isinstance(done, str):
                say(done)
            else:
                has_failed = True
                typer.echo(printable(f"{done}\n{done.hint}", keep="\n"), err=True)
        if is_idle:
            say("nothing to forget: the configuration leads to every table; remove an entry, or exclude a folder")
    raise typer.Exit(1 if has_failed else 0)


def compact(
    context: typer.Context, tables: TableNames = None, dry_run: DryRun = False, config: ConfigPath = None
) -> None:
    """Merge the delete files of each data file that has many. No row changes."""
    from daemon.cli.console import compaction_lines  # noqa: PLC0415

    lines = partial(compaction_lines, dry_run=dry_run)
    _maintain(context, tables, lambda each, stop: each.compact(stop, dry_run=dry_run), lines, alone=not dry_run)


def expire(
    context: typer.Context, tables: TableNames = None, dry_run: DryRun = False, config: ConfigPath = None
) -> None:
    """Remove old and unreadable snapshots from the Iceberg tables. `cleanup` removes their files later."""
    from daemon.cli.console import expiry_lines  # noqa: PLC0415

    lines = partial(expiry_lines, dry_run=dry_run)
    _maintain(context, tables, lambda each, _: each.expire(dry_run=dry_run), lines, alone=not dry_run)


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
        tables,
        lambda each, stop: each.clean_up(stop, dry_run=dry_run, scan=scan, remove_found=remove),
        partial(cleanup_lines, dry_run=dry_run),
        alone=False,
    )


def _maintain(
    context: typer.Context,
    tables: list[str] | None,
    work: Callable[[Maintainer, Event], T],
    lines: Callable[[str, T], list[str]],
    *,
    alone: bool,
) -> None:
    from daemon.cli.operations import maintain_tables  # noqa: PLC0415

    failed = False
    with reported_errors():
        settings, chosen, failed = load_chosen(context, tables)
        for table, done in maintain_tables(settings, chosen, work, alone=alone):
            if isinstance(done, SyncError):
                failed = True
                say(f"{table.name}: {done.kind}: {done}\n  {done.hint}")
            else:
                say("\n".join(lines(table.name, done)))
    raise typer.Exit(1 if failed else 0)
