"""The commands and their exit codes: 0 success, 1 a table failed, 2 wrong usage or configuration, 3 timed out."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.changes import cleanup, compact, expire, forget, pause, resume, resync
from daemon.cli.deletion import delete
from daemon.cli.examination import doctor, history, inspect, show, snapshots, verify
from daemon.cli.invocation import (
    PATTERN_FAILED,
    ConfigPath,
    TableNames,
    config_path,
    hide_secrets,
    load,
    load_both,
    load_valid,
    log_to_stderr,
    reported_errors,
    say,
    say_found,
    seconds,
)
from daemon.errors import ConfigInvalid, StateInUse, SyncError
from daemon.masking import masked, scrub
from daemon.telemetry import ENDPOINT, switched_on
from daemon.texts import printable

if TYPE_CHECKING:
    from daemon.config.settings import HealthSettings
    from daemon.status.table_status import TableStatus

WATCH_INTERVAL_S = 2.0

app = typer.Typer(
    name="dvsync", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
config_app = typer.Typer(help="Check the configuration.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config")


def main() -> None:
    """The console script."""
    # Collecting garbage among the imported modules took a third of a command's time, most of it at exit.
    gc.disable()
    _refuse_python_daemon()
    app()


def _refuse_python_daemon() -> None:
    """Of python-daemon and dvsync in one environment, the later one has replaced the other's `daemon/__init__.py`."""
    folder = Path(__file__).parents[1]
    if (folder / "daemon.py").exists():
        typer.echo(
            f"python-daemon is installed in {folder}, too: it and dvsync overwrite each other's files\n"
            "Install dvsync into a virtual environment of its own. Here, `pip uninstall dvsync`, then `pip install "
            "--force-reinstall --no-deps python-daemon`.",
            err=True,
        )
        sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dvsync {version('dvsync')}")
        raise typer.Exit


@app.callback()
def dvsync(
    config: ConfigPath = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Keeps Apache Iceberg tables in step with Delta Lake tables, deletion vectors included, without copying data."""


@app.command()
def run(context: typer.Context, config: ConfigPath = None) -> None:
    """Follow all tables until SIGTERM; this is the daemon."""
    # Without a handler, a reload that is requested too early would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # What imports leave behind would take memory as long as the daemon runs.
    gc.enable()
    from daemon.service.run import run_daemon  # noqa: PLC0415 - each command imports what it uses, and nothing else

    with reported_errors():
        ending = run_daemon(lambda: load(context, ask_pyiceberg=True), version("dvsync"))
    sys.stdout.flush()
    # The interpreter's own exit would wait for a thread that still waits for a store.
    os._exit(1 if ending.lost_lease else 0)


@app.command()
def sync(
    context: typer.Context,
    tables: TableNames = None,
    *,
    full: Annotated[bool, typer.Option("--full", help="Rewrite the tables from Delta's whole state.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="If a daemon runs, wait until it has synced. Exit code 3: timed out.")
    ] = False,
    min_version: Annotated[
        int | None, typer.Option("--min-version", min=0, help="Wait for this Delta version, not for the newest.")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", parser=seconds, metavar="DURATION", help="Wait at most this long.")
    ] = "10m",  # type: ignore[assignment]  # Typer parses the default, too.
    config: ConfigPath = None,
) -> None:
    """Sync tables once, then exit. Beside a running daemon, use --wait."""
    if wait and full:
        raise typer.BadParameter("cannot be combined with --full", param_hint="--wait")
    if min_version is not None and not wait:
        raise typer.BadParameter("needs --wait", param_hint="--min-version")
    from rich.console import Console  # noqa: PLC0415

    from daemon.cli.console import TableProgress, progress_bars, verdict_line  # noqa: PLC0415
    from daemon.cli.operations import sync_tables  # noqa: PLC0415
    from daemon.cli.tables import find_gone, find_tables  # noqa: PLC0415
    from daemon.cli.waiting import FAILED, SHOWN, wait_for_version  # noqa: PLC0415

    codes, names, failed = {SHOWN}, tables or [], set[str]()
    with reported_errors():
        deadline_s = time.monotonic() + timeout_s
        configured, settings = load_both(context, names)
        log_to_stderr(settings.log, has_verdicts=True)
        if not tables and PATTERN_FAILED in context.meta:
            codes.add(FAILED)
        gone = find_gone(configured, settings, names)
        for each in gone:
            codes.add(FAILED)
            if each.status.error:
                say(f"{each.record.name}: gone: {each.status.error.message}\n  {each.status.error.hint}")
        if not configured.tables:
            say(f"there are no tables in {config_path(context)}")
        names = [name for name in names if name not in {each.record.name for each in gone}]
        chosen = find_tables(settings, names) if names or not tables else []
        console = Console(emoji=False)
        try:
            with progress_bars(console) as bars:
                progress_of = partial(TableProgress, bars)
                for table, done in sync_tables(settings, chosen, progress_of, full=full, gone=gone):
                    if done.error is not None:
                        codes.add(FAILED)
                        failed.add(table.name)
                    line = printable(verdict_line(table.name, table.source, done), keep="\n")
                    console.print(line, soft_wrap=True, markup=False, highlight=False)
            deadline_s = time.monotonic()
        except StateInUse:
            if not wait:
                raise
        if wait:
            waiting = [table for table in chosen if table.name not in failed]
            verdicts = wait_for_version(settings, waiting, min_version, deadline_s=deadline_s, is_named=bool(tables))
            for code, text in verdicts:
                codes.add(code)
                say(text)
    raise typer.Exit(FAILED if FAILED in codes else max(codes))


@app.command()
def status(
    context: typer.Context,
    tables: TableNames = None,
    *,
    states: Annotated[
        list[str] | None, typer.Option("--state", help="Only tables in this state; may be repeated.", metavar="STATE")
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="On a terminal, add files, mirrors, deletions, orphans, format.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list that /api/tables answers.")] = False,
    config: ConfigPath = None,
) -> None:
    """Show how far each table is. Asks the running daemon, or else reads the state database and the Delta logs."""
    from rich.console import Console  # noqa: PLC0415

    from daemon.cli.console import print_statuses, replacing  # noqa: PLC0415
    from daemon.cli.report import find_statuses  # noqa: PLC0415
    from daemon.cli.tables import select_names  # noqa: PLC0415
    from daemon.status.table_status import SyncState  # noqa: PLC0415

    unknown = sorted({*(states or ())} - {*SyncState})
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(SyncState)}", param_hint="--state")
    if watch and as_json:
        raise typer.BadParameter("cannot be combined with --json", param_hint="--watch")

    def find() -> tuple[list[str], list[TableStatus]]:
        with reported_errors():
            lines, found = find_statuses(context, tables or ())
            if tables:
                names = {*select_names(tables, [status.name for status in found])}
                found = [status for status in found if status.name in names]
            return lines, [status for status in found if not states or status.state in states]

    console = Console(emoji=False)
    if watch:
        with suppress(KeyboardInterrupt):
            while True:
                # What went wrong is printed, and may be over the next time.
                with suppress(typer.Exit), replacing(console):
                    lines, found = find()
                    print_statuses(console, found, lines, wide=wide)
                time.sleep(WATCH_INTERVAL_S)
        raise typer.Exit
    lines, found = find()
    if as_json:
        say_found(found, (), as_json=True)
    else:
        print_statuses(console, found, lines, wide=wide)
    raise typer.Exit(1 if any(status.error for status in found) else 0)


app.command()(history)


@app.command()
def init(
    context: typer.Context,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="PLACE",
            help="Delta tables, folders above them, or patterns such as 'lake/*/': paths or URIs. Or names in a"
            " catalog, such as 'prod:main.sales.*'; then DVSYNC_SOURCES__PROD__TYPE, …__URI and …__TOKEN say what"
            " `prod` is. Variables such as DVSYNC_STORAGE__S3__ENDPOINT have the properties of an object store.",
        ),
    ],
    config: ConfigPath = None,
) -> None:
    """Write a config.yaml for existing Delta tables.

    Says of each table whether it can be followed. An existing file is not changed: name another with --config.
    """
    from daemon.cli.init import write_configuration  # noqa: PLC0415

    with reported_errors():
        hide_secrets()
        log_to_stderr()
        write_configuration(config_path(context), places, typer.echo)


@app.command()
def add(
    context: typer.Context,
    places: Annotated[list[str], typer.Argument(metavar="PLACE", help="As for `dvsync init`.")],
    *,
    target: Annotated[
        str | None, typer.Option("--target", help="Namespace and name of the Iceberg table.", metavar="NAME")
    ] = None,
    catalog: Annotated[
        str | None, typer.Option("--catalog", help="The catalog of the Iceberg tables.", metavar="NAME")
    ] = None,
    config: ConfigPath = None,
) -> None:
    """Add Delta tables to the configuration file. A running daemon reads it within 10 seconds.

    Says of each table whether it can be followed, and adds those that dvsync does not refuse. The rest of the file
    stays as it is.
    """
    from daemon.cli.entries import add_tables  # noqa: PLC0415

    with reported_errors():
        hide_secrets()
        log_to_stderr()
        is_whole = add_tables(config_path(context), places, say, target=target, catalog=catalog)
    raise typer.Exit(0 if is_whole else 1)


@app.command()
def remove(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table's name, or its source.")],
    config: ConfigPath = None,
) -> None:
    """Remove a table from the configuration file. A running daemon reads it within 10 seconds.

    Its Iceberg table stays.
    """
    from daemon.cli.entries import remove_table  # noqa: PLC0415

    with reported_errors():
        hide_secrets()
        log_to_stderr()
        is_whole = remove_table(config_path(context), table, say)
    raise typer.Exit(0 if is_whole else 1)


for command in (doctor, verify, show, snapshots, inspect, resume, pause, resync, forget, compact, expire, cleanup):
    app.command()(command)
app.command()(delete)


@app.command()
def healthcheck(
    context: typer.Context,
    ready: Annotated[bool, typer.Option("--ready", help="Ask /readyz instead of /livez.")] = False,
    config: ConfigPath = None,
) -> None:
    """Ask the running daemon whether it is alive. Exit code 0 or 1, for containers."""
    from daemon.cli.probe import Answer, ask  # noqa: PLC0415

    with reported_errors():
        health: HealthSettings | None = load_valid(context, "health")[0].health
        if health and health.port == 0:
            from daemon.cli.report import NO_DAEMON_KNOWN, find_address  # noqa: PLC0415

            health = find_address(load_valid(context, "health", "state", "share")[0])
        answer = ask(health, "readyz" if ready else "livez") if health else Answer(False, NO_DAEMON_KNOWN)
    typer.echo(answer.text)
    raise typer.Exit(0 if answer.is_well else 1)


@app.command()
def setup(
    context: typer.Context,
    s3: Annotated[bool, typer.Option("--s3", help="Also fetch the jars that read S3.")] = False,
    config: ConfigPath = None,
) -> None:
    """Check Java and fetch the jars that Spark needs. The configuration says which; the first start does the same."""
    from daemon.spark.hadoop import with_stores  # noqa: PLC0415
    from daemon.spark.jars import with_readers, with_s3_jars  # noqa: PLC0415
    from daemon.spark.setup import fetch_jars  # noqa: PLC0415

    with reported_errors():
        spark = with_stores(with_readers(load(context, optional=True, quiet=True)))
        typer.echo(fetch_jars(with_s3_jars(spark) if s3 else spark))


@app.command()
def demo(folder: Annotated[Path, typer.Option("--folder", help="Where to create the tables.")] = Path("demo")) -> None:
    """Watch an Iceberg table follow a real Delta table. Spark changes it, and three engines read the result."""
    from daemon.cli.demo import run_demo  # noqa: PLC0415

    with reported_errors():
        log_to_stderr()
        code = run_demo(folder)
    raise typer.Exit(code)


@config_app.command()
def check(
    context: typer.Context,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also try the state database, catalogs, Delta tables, patterns and Spark.")
    ] = False,
    config: ConfigPath = None,
) -> None:
    """List every fault in the configuration, or print a summary of it. Exit code 1 if --connect finds a fault."""
    from daemon.cli.tables import refused_tables, tables_in_two_places, targets_that_may_be_one  # noqa: PLC0415

    with reported_errors():
        settings = load(context, quiet=True, ask_pyiceberg=True)
        if refused := list(refused_tables(settings)):
            raise ConfigInvalid("\n".join(refused), hint="dvsync parks these tables, and follows the others.")
    signals = [f"{signal} by {variable}" for signal, variable in switched_on().items()]
    patterns = sum("*" in table.source for table in settings.tables)
    typer.echo(
        f"{config_path(context)}: the configuration is valid\n"
        f"state: {masked(settings.state.url)}\n"
        f"catalogs: {', '.join(settings.catalogs) or 'none'}\n"
        f"share: {settings.share}\n"
        f"telemetry: {', '.join(signals) or f'off; {ENDPOINT} switches it on'}\n"
        f"tables: {len(settings.tables) - patterns}" + (f", patterns: {patterns}" if patterns else "")
    )
    for table in settings.tables:
        line = f"  {table.name}: {table.source} -> {table.catalog} {table.target}, every {table.poll_interval_s:g} s"
        # The targets of a pattern's tables are known once they are found.
        belongs = settings.share.count > 1 and not table.is_pattern
        typer.echo(scrub(f"{line}, share {settings.share.owner_of(table.target)}" if belongs else line))
    for line in (*tables_in_two_places(settings), *targets_that_may_be_one(settings)):
        typer.echo(scrub(line))
    if not connect:
        return
    from daemon.cli.connections import try_connections  # noqa: PLC0415

    failed = False
    with reported_errors():
        for what, found in try_connections(settings):
            say(f"{what}: {found}")
            if isinstance(found, SyncError):
                failed = True
                say(f"  {found.hint}")
    raise typer.Exit(1 if failed else 0)
