"""Commands that write to the state database what is asked of tables: a running daemon sees it within seconds."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from daemon.cli.invocation import ChosenTables, ConfigPath, load_both, load_chosen, reported_errors, say, seconds
from daemon.config.settings import TableSettings
from daemon.texts import printable

if TYPE_CHECKING:
    from state.sql.store import StateStore

AllTables = Annotated[bool, typer.Option("--all", help="All tables.")]
T = TypeVar("T")


def resume(
    context: typer.Context, tables: ChosenTables = None, every: AllTables = False, config: ConfigPath = None
) -> None:
    """Continue parked or paused tables. A running daemon sees it within seconds."""
    from daemon.sync.verbs import resume  # noqa: PLC0415

    idle = []
    for name, is_cleared in _asked(context, config, _chosen(tables, every), resume):
        if is_cleared:
            say(f"{name}: resumed")
        else:
            idle.append(name)
    if idle:
        who = f"{idle[0]}: was" if len(idle) == 1 else f"{len(idle)} tables were"
        say(f"{who} neither parked nor paused; nothing to do")


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

    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"user {os.getuid()}"  # a container's user may have no name
    with reported_errors():
        who = f"{user} on {socket.gethostname()}"
        wanted = make_pause(who, SystemClock().now_ms(), for_s=for_s, reason=reason)
    until = f" until {iso_time(wanted.until_ms)}" if wanted.until_ms is not None else ""
    for name, _ in _asked(context, config, _chosen(tables, every), partial(pause, wanted=wanted)):
        say(f"{name}: paused{until}")


def resync(
    context: typer.Context, tables: ChosenTables = None, every: AllTables = False, config: ConfigPath = None
) -> None:
    """Rewrite tables from Delta's whole state. A daemon begins within seconds; without one, `dvsync sync` does it."""
    from daemon.clock import SystemClock  # noqa: PLC0415
    from daemon.sync.verbs import want_resync  # noqa: PLC0415

    verb = partial(want_resync, now_ms=SystemClock().now_ms())
    for name, said in _asked(context, config, _chosen(tables, every), verb):
        say(f"{name}: {said}")


def _chosen(tables: list[str] | None, every: bool) -> list[str]:
    """The names that a command was given; none for all tables."""
    if tables and every:
        raise typer.BadParameter("cannot be combined with names", param_hint="--all")
    if not tables and not every:
        raise typer.BadParameter("name tables, or use --all")
    return tables or []


def _asked(
    context: typer.Context, config: Path | None, tables: list[str], verb: Callable[[StateStore, TableSettings], T]
) -> Iterator[tuple[str, T]]:
    """Let `verb` write to the state store what is asked of each of the tables. Yields their names and the results."""
    from daemon.sync.memory import open_store  # noqa: PLC0415

    with reported_errors():
        settings, chosen, _ = load_chosen(context, config, tables)
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
        configured, settings = load_both(context, config)
        has_failed, is_idle = False, True
        for done in forget_tables(configured, settings, wanted, drop=drop):
            is_idle = False
            if isinstance(done, str):
                say(done)
            else:
                has_failed = True
                typer.echo(printable(f"{done}\n{done.hint}", keep="\n"), err=True)
        if is_idle:
            say("nothing to do: the configuration leads to every table")
    raise typer.Exit(1 if has_failed else 0)
