"""The commands and their exit codes: 0 all well, 1 a table failed, 2 wrong usage or configuration, 3 time is over."""

from __future__ import annotations

import gc
import getpass
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
import typer

from daemon.config.redaction import SECRET_KEY
from daemon.config.settings import LogSettings, Settings, TableSettings
from daemon.config.value_types import ENV_PREFIX, duration_s
from daemon.errors import ConfigInvalid, StateInUse, SyncError
from daemon.lean_imports import import_arrow
from daemon.log import configure_logging
from daemon.masking import hide, scrub
from daemon.texts import printable

if TYPE_CHECKING:
    from daemon.maintenance.cleanup import Cleanup
    from daemon.maintenance.compaction import Compaction
    from daemon.maintenance.expiry import Expiry
    from daemon.maintenance.maintainer import Maintainer
    from daemon.status.deletions import FileDetail, TableDeletions
    from daemon.status.table_status import TableStatus
    from state import StateStore

DEFAULT_CONFIG = Path("config.yaml")
# Set in a command's context when a pattern could not be listed, so that "all tables" were not all.
PATTERN_FAILED = "dvsync.pattern_failed"
PROBE = "healthcheck"
WATCH_INTERVAL_S = 2.0

app = typer.Typer(
    name="dvsync",
    help="Keeps Apache Iceberg tables in step with Delta Lake tables, deletion vectors included, without copying data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(help="Explain and check the configuration.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config")

ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", help="The configuration file (config.yaml, or $DVSYNC_CONFIG).", metavar="PATH"),
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name in the configuration.")]
TableNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TABLE", help="Names of tables, in which `*` stands for any part; all tables when left out."
    ),
]
ChosenTables = Annotated[
    list[str] | None,
    typer.Argument(metavar="TABLE", help="Names of tables, in which `*` stands for any part."),
]
AllTables = Annotated[bool, typer.Option("--all", help="All tables.")]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
T = TypeVar("T")


def main() -> None:
    """The console script."""
    # Collecting garbage among the imported modules took a third of a command's time, most of it at exit.
    gc.disable()
    app()


def _seconds(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dvsync {version('dvsync')}")
        raise typer.Exit


@app.callback()
def dvsync(
    context: typer.Context,
    config: ConfigPath = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    context.obj = config
    if context.invoked_subcommand == PROBE:
        # Containers run it every few seconds, and the daemon that answers has made the same check.
        return
    from daemon.spark.installed import check_packages  # noqa: PLC0415

    try:
        check_packages()
    except ConfigInvalid as error:
        raise _exit_with(error) from None


@app.command()
def run(context: typer.Context, config: ConfigPath = None) -> None:
    """Follow all tables until SIGTERM; this is the daemon."""
    # Without a handler, a reload that is requested too early would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # What imports leave behind would take memory as long as the daemon runs.
    gc.enable()
    import_arrow()
    from daemon.service.run import run_daemon  # noqa: PLC0415 - each command imports what it uses, and nothing else

    with _reported_errors():
        ending = run_daemon(lambda: _load(context, config), version("dvsync"))
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
        bool, typer.Option("--wait", help="If a daemon runs, wait until it has synced. Exit code 3 if time is over.")
    ] = False,
    min_version: Annotated[
        int | None, typer.Option("--min-version", min=0, help="Wait for this Delta version, not for the newest.")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", parser=_seconds, metavar="DURATION", help="Wait at most this long.")
    ] = "10m",  # type: ignore[assignment]  # Typer parses the default, too.
    config: ConfigPath = None,
) -> None:
    """Bring tables up to date once, then exit. With --wait, beside a daemon, too."""
    if wait and full:
        raise typer.BadParameter("it does not go with --full", param_hint="--wait")
    if min_version is not None and not wait:
        raise typer.BadParameter("it goes with --wait", param_hint="--min-version")
    import_arrow()
    from rich.console import Console  # noqa: PLC0415

    from daemon.cli.console import SyncProgress, verdict_line  # noqa: PLC0415
    from daemon.cli.operations import sync_tables  # noqa: PLC0415
    from daemon.cli.tables import find_gone, find_tables  # noqa: PLC0415
    from daemon.cli.waiting import FAILED, SHOWN, wait_for_version  # noqa: PLC0415

    codes, names, failed = {SHOWN}, tables or [], set[str]()
    with _reported_errors():
        deadline_s = time.monotonic() + timeout_s
        configured, settings = _load_both(context, config, names)
        _log_to_stderr(settings.log, has_verdicts=True)
        if not tables and PATTERN_FAILED in context.meta:
            codes.add(FAILED)
        gone = find_gone(configured, settings, names)
        for each in gone:
            codes.add(FAILED)
            _say(each.text)
        names = [name for name in names if name not in {each.record.name for each in gone}]
        chosen = find_tables(settings, names) if names or not tables else []
        console = Console()
        try:
            with SyncProgress(console) as progress:
                for table, done in sync_tables(settings, chosen, progress.of_table, full=full, gone=gone):
                    if done.error is not None:
                        codes.add(FAILED)
                        failed.add(table.name)
                    line = printable(verdict_line(table.name, done), keep="\n")
                    console.print(line, soft_wrap=True, markup=False, highlight=False)
            deadline_s = time.monotonic()
        except StateInUse:
            if not wait:
                raise
        if wait:
            waiting = [table for table in chosen if table.name not in failed]
            for verdict in wait_for_version(
                settings, waiting, min_version, deadline_s=deadline_s, is_named=bool(tables)
            ):
                codes.add(verdict.code)
                _say(verdict.text)
    raise typer.Exit(FAILED if FAILED in codes else max(codes))


@app.command()
def status(
    context: typer.Context,
    tables: TableNames = None,
    *,
    states: Annotated[
        list[str] | None, typer.Option("--state", help="Only tables in this state; may be repeated.", metavar="STATE")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Also show files, deleted rows and orphans.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list that /api/tables answers.")] = False,
    config: ConfigPath = None,
) -> None:
    """Show how far each table is. Asks the running daemon, or else reads the state database."""
    from rich.console import Console  # noqa: PLC0415

    from daemon.cli.console import print_statuses, replacing  # noqa: PLC0415
    from daemon.cli.tables import select_names  # noqa: PLC0415
    from daemon.status.table_status import SyncState  # noqa: PLC0415

    unknown = sorted({*(states or ())} - {*SyncState})
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(SyncState)}", param_hint="--state")
    if watch and as_json:
        raise typer.BadParameter("it does not go with --json", param_hint="--watch")

    def find() -> tuple[list[str], list[TableStatus]]:
        with _reported_errors():
            lines, found = _find_statuses(context, config, tables or ())
            if tables:
                names = {*select_names(tables, [status.name for status in found])}
                found = [status for status in found if status.name in names]
            return lines, [status for status in found if not states or status.state in states]

    console = Console()
    if watch:
        with suppress(KeyboardInterrupt):
            while True:
                # What went wrong is printed, and may be over at the next look.
                with suppress(typer.Exit), replacing(console):
                    lines, found = find()
                    print_statuses(console, found, lines, wide=wide)
                time.sleep(WATCH_INTERVAL_S)
        raise typer.Exit
    lines, found = find()
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        print_statuses(console, found, lines, wide=wide)
    raise typer.Exit(1 if any(status.error for status in found) else 0)


def _find_statuses(
    context: typer.Context, config: Path | None, wanted: Sequence[str]
) -> tuple[list[str], list[TableStatus]]:
    """Return lines about the daemon, and every table as the daemon shows it, or else by the state database."""
    from daemon.cli.report import ask_for_tables  # noqa: PLC0415
    from daemon.cli.tables import read_statuses  # noqa: PLC0415

    settings, is_valid = _load_sections(context, config, "state", "share", "health")
    report = ask_for_tables(settings)
    if report.statuses is not None:
        faulty = "has faults, which `dvsync config check` lists; the daemon keeps its former configuration"
        lines = [*report.lines, *([] if is_valid else [f"{_path(context, config)} {faulty}"])]
        followed = {status.name for status in report.statuses}
        for table in settings.tables if is_valid else ():
            if not table.is_pattern and table.name not in followed and settings.share.owns(table.target):
                lines.append(f"{table.name}: the daemon does not follow it yet; SIGHUP makes it read the configuration")
        return lines, report.statuses
    configured, settings = _load_both(context, config, wanted)
    statuses, moved = read_statuses(configured, settings)
    lines = [*report.lines, "what follows is from the state database", *moved]
    if settings.share.count > 1:
        others = sum(not settings.share.owns(table.target) for table in settings.tables)
        lines.append(f"share {settings.share}; tables of other shares: {others}")
    return lines, statuses


@app.command()
def history(
    context: typer.Context,
    table: TableName,
    *,
    limit: Annotated[int, typer.Option("--limit", help="List at most this many, the newest first.", min=1)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the syncs as JSON.")] = False,
    config: ConfigPath = None,
) -> None:
    """List the last syncs and errors of a table."""
    from daemon.cli.console import run_lines  # noqa: PLC0415
    from daemon.cli.tables import read_runs  # noqa: PLC0415
    from daemon.status.table_status import run_status  # noqa: PLC0415

    with _reported_errors():
        settings, is_valid = _load_sections(context, config, "state", "share")
        try:
            runs = read_runs(settings, table, limit)
        except ConfigInvalid:
            if not is_valid:
                _load(context, config)  # Raises: the table's entry may be the faulty one.
            raise
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode([run_status(run) for run in runs]), indent=2))
    else:
        _say("\n".join(run_lines(runs)))


@app.command()
def doctor(
    context: typer.Context,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE|PLACE",
            help="Tables of the configuration, or paths or URIs of Delta tables or of folders above them; with `*`, all"
            " that match. Default: all tables of the configuration.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings and the summary as JSON.")] = False,
    config: ConfigPath = None,
) -> None:
    """Say whether Delta tables can be followed; syncs nothing.

    Lists which features, columns and files are supported, which are not and why, and what readers must know. For
    several tables, it prints what is refused, then a summary: the reasons, what first syncs read, and the readers.
    """
    import_arrow()
    from daemon.cli.operations import examine_tables, tables_to_examine  # noqa: PLC0415
    from daemon.cli.tables import with_found_tables  # noqa: PLC0415
    from daemon.doctor.diagnosis import Diagnosis, Verdict, as_lines  # noqa: PLC0415
    from daemon.doctor.lake import lines_on, summarize, summary_lines  # noqa: PLC0415

    examined: list[tuple[str, Diagnosis | SyncError]] = []
    with _reported_errors():
        settings, troubles = with_found_tables(_load(context, config, optional=True, quiet=True))
        left_out = {} if tables else troubles
        chosen: Sequence[TableSettings] = ()
        if settings.tables or not left_out:
            chosen, unread = tables_to_examine(settings, tables or (), lambda line: typer.echo(line, err=True))
            left_out = {**left_out, **unread}
        each_table = ((table.source, found) for table, found in examine_tables(settings, chosen))
        for source, found in chain(left_out.items(), each_table):
            examined.append((source, found))
            if len(chosen) + len(left_out) > 1:
                lines = lines_on(source, found, Verdict.REFUSED)
            elif isinstance(found, SyncError):
                raise found
            else:
                lines = as_lines(found)
            if not as_json:
                _say("\n".join(lines))
    lake = summarize(examined)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(lake), indent=2))
    elif len(examined) != 1:
        _say("\n".join(summary_lines(lake)))
    raise typer.Exit(0 if lake.is_followed else 1)


@app.command()
def verify(
    context: typer.Context,
    tables: TableNames = None,
    *,
    rows: Annotated[bool, typer.Option("--rows", help="Also compare the values of all rows.")] = False,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="Compare only metadata and the files' footers; needs no Spark.")
    ] = False,
    sample: Annotated[
        float,
        typer.Option(
            "--sample", min=0.01, max=100, help="Compare this percentage of the data files, chosen at random."
        ),
    ] = 100.0,
    at: Annotated[
        int | None, typer.Option("--at", min=0, help="Compare the snapshot that shows this Delta version.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    config: ConfigPath = None,
) -> None:
    """Prove that the Iceberg tables show Delta's rows.

    Compares files, counts, bounds and delete files, and then, with Spark's Iceberg reader, which rows of each file are
    there. Changes nothing; the exit code is 1 if a table differs.
    """
    import_arrow()
    from rich.console import Console  # noqa: PLC0415

    from daemon.cli.console import SyncProgress, proof_lines  # noqa: PLC0415
    from daemon.cli.operations import verify_tables  # noqa: PLC0415
    from daemon.cli.tables import find_tables  # noqa: PLC0415
    from daemon.verify.findings import Level, Sample, Scope, as_json_object  # noqa: PLC0415

    if rows and metadata:
        raise typer.BadParameter("it does not go with --metadata", param_hint="--rows")
    level = Level.ROWS if rows else Level.METADATA if metadata else Level.BITMAPS
    scope = Scope(level, Sample.of(sample), at)
    failed, results = False, []
    with _reported_errors():
        settings = _load_with_found(context, config, tables or ())
        failed = not tables and PATTERN_FAILED in context.meta
        chosen = find_tables(settings, tables or [])
        with SyncProgress(Console(stderr=True)) as progress:
            for table, proof in verify_tables(settings, chosen, progress.of_table, scope):
                failed = failed or isinstance(proof, SyncError) or not proof.is_right
                results.append(as_json_object(table.name, proof))
                if not as_json:
                    _say("\n".join(proof_lines(table.name, proof)))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(results), indent=2))
    raise typer.Exit(1 if failed else 0)


@app.command()
def init(
    context: typer.Context,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH|PATTERN",
            help="Delta tables, folders above them, or patterns such as 'lake/*/': paths or URIs.",
        ),
    ],
    config: ConfigPath = None,
) -> None:
    """Write a config.yaml for existing Delta tables.

    Says of each table whether it can be followed. An existing file is not changed: name another with --config.
    """
    import_arrow()
    from daemon.cli.init import write_configuration  # noqa: PLC0415

    with _reported_errors():
        _hide_environment()
        _log_to_stderr()
        write_configuration(_path(context, config), places, typer.echo)


@app.command()
def show(
    context: typer.Context,
    table: TableName,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    config: ConfigPath = None,
) -> None:
    """Show where a table's Iceberg metadata is, and how to read it.

    Prints the metadata file, the snapshot, the Delta version that it shows, and a line for each of Spark, PyIceberg,
    DuckDB, Polars, Trino and ClickHouse.
    """
    import_arrow()
    from daemon.cli.operations import opened_table  # noqa: PLC0415
    from daemon.cli.snapshots import table_lines  # noqa: PLC0415
    from daemon.cli.tables import find_table  # noqa: PLC0415
    from daemon.status.snapshots import show_table  # noqa: PLC0415

    with _reported_errors():
        settings = _load_with_found(context, config, [table])
        with opened_table(settings, find_table(settings, table)) as (opened, iceberg):
            shown = show_table(opened.settings.name, iceberg)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2))
    else:
        _say("\n".join(table_lines(shown)))


@app.command()
def snapshots(
    context: typer.Context,
    table: TableName,
    *,
    delta_version: Annotated[
        int | None, typer.Option("--version", help="Find the snapshot that shows this Delta version.", min=0)
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", help="Find the one that shows Delta as of this time (ISO 8601).", metavar="TIME"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="List at most this many, the newest first.", min=1)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    config: ConfigPath = None,
) -> None:
    """Show which Iceberg snapshot shows which Delta version.

    With --version or --timestamp, finds one snapshot and prints how to read it in the readers that `dvsync show` names.
    The exit code is 1 if no snapshot shows that version.
    """
    if delta_version is not None and timestamp is not None:
        raise typer.BadParameter("give a version or a time, not both", param_hint="--timestamp")
    import_arrow()
    from daemon.cli.operations import opened_table  # noqa: PLC0415
    from daemon.cli.snapshots import choice_lines, list_lines, parse_time_ms  # noqa: PLC0415
    from daemon.cli.tables import find_table  # noqa: PLC0415
    from daemon.status.snapshots import choose_by_time, choose_by_version, list_snapshots  # noqa: PLC0415

    with _reported_errors():
        at_ms = parse_time_ms(timestamp) if timestamp is not None else None
        settings = _load_with_found(context, config, [table])
        with opened_table(settings, find_table(settings, table)) as (opened, iceberg):
            choice = None if delta_version is None else choose_by_version(iceberg, delta_version)
            if at_ms is not None:
                choice = choose_by_time(iceberg, opened.log, at_ms)
            found = list_snapshots(iceberg)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(choice or found[:limit]), indent=2))
    else:
        _say("\n".join(choice_lines(choice) if choice else list_lines(found[:limit], len(found[limit:]))))
    raise typer.Exit(1 if choice and choice.snapshot is None else 0)


@app.command()
def inspect(
    context: typer.Context,
    table: TableName,
    *,
    file: Annotated[
        str | None, typer.Option("--file", help="Describe this data file only: a URI or a path below the Delta table.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Also draw a picture into this file.", metavar="PATH", dir_okay=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="List at most this many of each.", min=1, max=1000)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
    config: ConfigPath = None,
) -> None:
    """Show what is deleted in a table, and where.

    Lists its deletion vectors by storage type, the data files and partitions with the largest share of deleted rows,
    delete files and what they serve, orphans, and snapshots.
    """
    if file is not None and png is not None:
        raise typer.BadParameter("it shows the whole table, not one file", param_hint="--png")
    import_arrow()
    from daemon.cli.inspect import file_lines, table_lines  # noqa: PLC0415
    from daemon.cli.operations import opened_table  # noqa: PLC0415
    from daemon.cli.pictures import draw_table  # noqa: PLC0415
    from daemon.cli.tables import find_table  # noqa: PLC0415
    from daemon.status.deletions import inspect_file, inspect_table  # noqa: PLC0415

    found: TableDeletions | FileDetail
    with _reported_errors():
        settings = _load_with_found(context, config, [table])
        with opened_table(settings, find_table(settings, table)) as (opened, iceberg):
            if file is not None:
                found = inspect_file(opened, iceberg, file, ranges_max=limit * 10)
                lines = file_lines(found)
            else:
                found = inspect_table(opened, iceberg, rows_max=limit)
                lines = table_lines(found, now_ms=opened.clock.now_ms())
                if png is not None:
                    draw_table(found, png)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        _say("\n".join(lines))


@app.command()
def resume(
    context: typer.Context, tables: ChosenTables = None, every: AllTables = False, config: ConfigPath = None
) -> None:
    """Continue parked or paused tables. A running daemon sees it within seconds."""
    from daemon.sync.verbs import resume  # noqa: PLC0415

    nothing = "was neither parked nor paused; nothing to do"
    _ask(context, config, _chosen(tables, every), resume, lambda cleared: "resumed" if cleared else nothing)


@app.command()
def pause(
    context: typer.Context,
    tables: ChosenTables = None,
    *,
    every: AllTables = False,
    for_s: Annotated[
        float | None,
        typer.Option(
            "--for", help="Continue by itself after this time, such as 2h.", parser=_seconds, metavar="DURATION"
        ),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Say why; `dvsync status` shows it.", metavar="TEXT")
    ] = None,
    config: ConfigPath = None,
) -> None:
    """Stop syncing tables until `dvsync resume`, or for a time. A running daemon sees it within seconds."""
    from daemon.clock import SystemClock  # noqa: PLC0415
    from daemon.status.table_status import iso_time  # noqa: PLC0415
    from daemon.sync.verbs import make_pause, pause  # noqa: PLC0415

    with _reported_errors():
        wanted = make_pause(_person(), SystemClock().now_ms(), for_s=for_s, reason=reason)

    until = f" until {iso_time(wanted.until_ms)}" if wanted.until_ms is not None else ""
    _ask(context, config, _chosen(tables, every), partial(pause, wanted=wanted), lambda _: f"paused{until}")


def _person() -> str:
    """Who runs this command. A container's user may have no name."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = f"user {os.getuid()}"
    return f"{name} on {socket.gethostname()}"


@app.command()
def resync(
    context: typer.Context, tables: ChosenTables = None, every: AllTables = False, config: ConfigPath = None
) -> None:
    """Rewrite tables from Delta's whole state. A running daemon begins within seconds."""
    from daemon.sync.verbs import want_resync  # noqa: PLC0415

    _ask(context, config, _chosen(tables, every), want_resync, lambda _: "its next sync writes the whole table anew")


def _chosen(tables: list[str] | None, every: bool) -> list[str]:
    """The names that a command was given; none for all tables."""
    if tables and every:
        raise typer.BadParameter("it does not go with names", param_hint="--all")
    if not tables and not every:
        raise typer.BadParameter("name tables, or use --all")
    return tables or []


def _ask(
    context: typer.Context,
    config: Path | None,
    tables: list[str],
    verb: Callable[[StateStore, TableSettings], T],
    say: Callable[[T], str],
) -> None:
    """Let `verb` write to the state store what is asked of each of the tables, and print what it did."""
    from daemon.cli.tables import find_tables  # noqa: PLC0415
    from daemon.sync.memory import open_store  # noqa: PLC0415

    with _reported_errors():
        settings = _load_with_found(context, config, tables)
        chosen = find_tables(settings, tables)
        with open_store(settings) as store:
            for table in chosen:
                _say(f"{table.name}: {say(verb(store, table))}")


@app.command()
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
    import_arrow()
    from daemon.cli.operations import forget_tables  # noqa: PLC0415

    with _reported_errors():
        configured, settings = _load_both(context, config)
        has_failed = False
        for done in forget_tables(configured, settings, wanted, drop=drop):
            if isinstance(done, str):
                _say(done)
            else:
                has_failed = True
                typer.echo(printable(f"{done}\n{done.hint}", keep="\n"), err=True)
    raise typer.Exit(1 if has_failed else 0)


@app.command()
def compact(
    context: typer.Context,
    tables: TableNames = None,
    dry_run: DryRun = False,
    config: ConfigPath = None,
) -> None:
    """Merge the delete files of each data file that has many. No row changes."""
    from daemon.cli.console import compaction_lines  # noqa: PLC0415

    def work(maintainer: Maintainer, stop: Event) -> Compaction:
        return maintainer.compact(stop, dry_run=dry_run)

    _maintain(context, config, tables, work, partial(compaction_lines, dry_run=dry_run), alone=not dry_run)


@app.command()
def expire(
    context: typer.Context,
    tables: TableNames = None,
    dry_run: DryRun = False,
    config: ConfigPath = None,
) -> None:
    """Remove old and unreadable snapshots from the Iceberg tables. `cleanup` removes their files later."""
    from daemon.cli.console import expiry_lines  # noqa: PLC0415

    def work(maintainer: Maintainer, _: Event) -> Expiry:
        return maintainer.expire(dry_run=dry_run)

    _maintain(context, config, tables, work, partial(expiry_lines, dry_run=dry_run), alone=not dry_run)


@app.command()
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
        raise typer.BadParameter("it goes with --scan", param_hint="--remove")

    def work(maintainer: Maintainer, stop: Event) -> Cleanup:
        return maintainer.clean_up(stop, dry_run=dry_run, scan=scan, remove_found=remove)

    _maintain(context, config, tables, work, partial(cleanup_lines, dry_run=dry_run), alone=False)


def _maintain(
    context: typer.Context,
    config: Path | None,
    tables: list[str] | None,
    work: Callable[[Maintainer, Event], T],
    lines: Callable[[str, T], list[str]],
    *,
    alone: bool,
) -> None:
    """Do `work` for each of the named tables, and print its `lines`."""
    import_arrow()
    from daemon.cli.operations import maintain_tables  # noqa: PLC0415
    from daemon.cli.tables import find_tables  # noqa: PLC0415

    failed = False
    with _reported_errors():
        settings = _load_with_found(context, config, tables or ())
        failed = not tables and PATTERN_FAILED in context.meta
        for table, done in maintain_tables(settings, find_tables(settings, tables or []), work, alone=alone):
            if isinstance(done, SyncError):
                failed = True
                _say(f"{table.name}: {done.kind}: {done}\n  {done.hint}")
            else:
                _say("\n".join(lines(table.name, done)))
    raise typer.Exit(1 if failed else 0)


@app.command(PROBE)
def healthcheck(
    context: typer.Context,
    ready: Annotated[bool, typer.Option("--ready", help="Ask /readyz instead of /livez.")] = False,
    config: ConfigPath = None,
) -> None:
    """Ask the running daemon whether it is alive. Exit code 0 or 1, for containers."""
    from daemon.cli.probe import ask  # noqa: PLC0415

    with _reported_errors():
        answer = ask(_load_sections(context, config, "health")[0].health, "readyz" if ready else "livez")
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

    with _reported_errors():
        spark = with_stores(with_readers(_load(context, config, optional=True, quiet=True)))
        typer.echo(fetch_jars(with_s3_jars(spark) if s3 else spark))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where to create the tables.")] = Path("demo"),
) -> None:
    """Watch an Iceberg table follow a real Delta table. Spark changes it, and three engines read the result."""
    import_arrow()
    from daemon.cli.demo import run_demo  # noqa: PLC0415

    with _reported_errors():
        _log_to_stderr()
        code = run_demo(folder)
    raise typer.Exit(code)


@app.command("version")
def print_version() -> None:
    """Print the version."""
    _print_version(True)


@app.command("help")
def print_help(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="A command; all of them when left out.")
    ] = None,
) -> None:
    """Explain the commands, or one of them."""
    outer = context.find_root()
    for word in command or ():
        group = outer.command
        found = group.get_command(outer, word) if isinstance(group, typer.core.TyperGroup) else None
        if found is None:
            raise typer.BadParameter(f"there is no command {' '.join(command or ())!r}", param_hint="COMMAND")
        outer = typer.Context(found, parent=outer, info_name=word)
    typer.echo(outer.get_help())


@config_app.command()
def keys() -> None:
    """Explain every key of the configuration. Gives its values and its default."""
    from daemon.config.keys import render_keys  # noqa: PLC0415

    typer.echo(render_keys(), nl=False)


@config_app.command()
def check(
    context: typer.Context,
    connect: Annotated[
        bool,
        typer.Option("--connect", help="Also try the state database, catalogs, Delta tables, patterns and Spark."),
    ] = False,
    config: ConfigPath = None,
) -> None:
    """List every fault in the configuration, or print a summary of it. Exit code 1 if --connect finds a fault."""
    with _reported_errors():
        settings = _load(context, config, quiet=True)
    typer.echo(f"{_path(context, config)}: all well")
    typer.echo(f"state: {settings.redacted()['state']['url']}")
    typer.echo(f"catalogs: {', '.join(settings.catalogs) or 'none'}")
    typer.echo(f"share: {settings.share}")
    patterns = sum(table.is_pattern for table in settings.tables)
    typer.echo(f"tables: {len(settings.tables) - patterns}" + (f", patterns: {patterns}" if patterns else ""))
    for table in settings.tables:
        line = f"  {table.name}: {table.source} -> {table.catalog} {table.target}, every {table.poll_interval_s:g} s"
        # The targets of a pattern's tables are known once they are found.
        belongs = settings.share.count > 1 and not table.is_pattern
        typer.echo(scrub(f"{line}, share {settings.share.owner_of(table.target)}" if belongs else line))
    if not connect:
        return
    import_arrow()
    from daemon.cli.connections import try_connections  # noqa: PLC0415

    failed = False
    with _reported_errors():
        for attempt in try_connections(settings):
            failed = failed or attempt.error is not None
            _say(f"{attempt.what}: {attempt.found if attempt.error is None else attempt.error}")
            if attempt.error is not None:
                _say(f"  {attempt.error.hint}")
    raise typer.Exit(1 if failed else 0)


def _path(context: typer.Context, config: Path | None) -> Path:
    from_environment = os.environ.get(f"{ENV_PREFIX}CONFIG")
    return config or context.find_root().obj or (Path(from_environment) if from_environment else DEFAULT_CONFIG)


def _load(context: typer.Context, config: Path | None, *, optional: bool = False, quiet: bool = False) -> Settings:
    """The settings; the defaults if `optional` and no file is named or there.

    `quiet` is for a command that prints its result: its log goes to standard error, warnings and above.
    """
    from daemon.config.load import load_settings  # noqa: PLC0415

    settings, path = Settings(), _path(context, config)
    if not optional or config or context.find_root().obj or path.exists():
        settings = _without_secrets_shown(load_settings(path))
    if quiet:
        _log_to_stderr(settings.log)
    return settings


def _load_sections(context: typer.Context, config: Path | None, *sections: str) -> tuple[Settings, bool]:
    """The settings, of which only these sections may be used, and whether the others are valid, too."""
    from daemon.config.load import load_sections  # noqa: PLC0415

    settings, is_valid = load_sections(_path(context, config), *sections)
    _log_to_stderr()
    return _without_secrets_shown(settings), is_valid


def _without_secrets_shown(settings: Settings) -> Settings:
    """The same settings, after their secrets were hidden from all output."""
    hide(settings.secrets())
    _hide_environment()
    return settings


def _load_with_found(context: typer.Context, config: Path | None, wanted: Sequence[str] = ()) -> Settings:
    """The settings with the tables that patterns find now; see `_load_both`."""
    return _load_both(context, config, wanted)[1]


def _load_both(context: typer.Context, config: Path | None, wanted: Sequence[str] = ()) -> tuple[Settings, Settings]:
    """The settings as they were written, with the patterns, and with the tables that patterns find now.

    What could not be listed or followed is printed and noted, unless the `wanted` tables are all found.
    """
    from daemon.cli.tables import with_found_tables  # noqa: PLC0415

    configured = _load(context, config, quiet=True)
    settings, troubles = with_found_tables(configured)
    if not wanted or not {table.name for table in settings.tables}.issuperset(wanted):
        for about, trouble in troubles.items():
            typer.echo(printable(f"{about} is not followed: {trouble.message}\n{trouble.hint}", keep="\n"), err=True)
            context.meta[PATTERN_FAILED] = True
    return configured, settings


def _hide_environment() -> None:
    hide(value for name, value in os.environ.items() if SECRET_KEY.search(name) and not name.endswith("_FILE"))


def _log_to_stderr(log: LogSettings | None = None, *, has_verdicts: bool = False) -> None:
    """Log warnings and above, in lines for people unless `log` says JSON; `has_verdicts` as in `configure_logging`."""
    log = log or LogSettings()
    level: Literal["warning", "error"] = "error" if log.level == "error" else "warning"
    chosen = LogSettings(format="json" if log.format == "json" else "console", level=level)
    configure_logging(chosen, sys.stderr, has_verdicts=has_verdicts)


def _say(text: str) -> None:
    """Print a text that may contain names and values of a Delta table."""
    typer.echo(printable(text, keep="\n"))


@contextmanager
def _reported_errors() -> Iterator[None]:
    """For the work of a command, after its imports: a SyncError is printed and becomes an exit code."""
    # Imported modules are never garbage: the collector need not visit them.
    gc.freeze()
    gc.enable()
    try:
        yield
    except SyncError as error:
        raise _exit_with(error) from None


def _exit_with(error: SyncError) -> typer.Exit:
    """Print the error on standard error."""
    typer.echo(f"{error}\n{error.hint}", err=True)
    return typer.Exit(2 if isinstance(error, ConfigInvalid) else 1)
