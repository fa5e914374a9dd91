"""Commands that examine Delta and Iceberg tables, and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.invocation import (
    ConfigPath,
    TableName,
    TableNames,
    load,
    load_both,
    load_chosen,
    load_valid,
    reported_errors,
    say,
    say_found,
)
from daemon.errors import ConfigInvalid, SyncError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from daemon.status.deletions import FileDetail, TableDeletions
    from daemon.sync.context import TableContext


def doctor(
    context: typer.Context,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE|PLACE",
            help="Tables of the configuration, or paths or URIs of Delta tables or of folders above them, or names in a"
            " catalog of `sources`; with `*`, all that match. Default: all tables of the configuration.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings and the summary as JSON.")] = False,
    config: ConfigPath = None,
) -> None:
    """Report whether Delta tables can be followed. Syncs nothing.

    Lists which features, columns and files are supported, which are not and why, and what readers must know. For
    several tables, it prints what is refused, then a summary: the reasons, what first syncs read, and the readers.
    """
    from daemon.cli.operations import examine_tables, tables_to_examine  # noqa: PLC0415
    from daemon.cli.tables import with_found_tables  # noqa: PLC0415
    from daemon.doctor.diagnosis import Diagnosis, Verdict, as_lines  # noqa: PLC0415
    from daemon.doctor.lake import lines_on, summarize, summary_lines  # noqa: PLC0415

    examined: list[tuple[str, Diagnosis | SyncError]] = []
    with reported_errors():
        settings, found = with_found_tables(load(context, optional=True, quiet=True))
        chosen = replace(found, tables=list(settings.tables))
        if tables or not (chosen.tables or chosen.troubles or chosen.passed_over):
            chosen = tables_to_examine(settings, tables or (), lambda line: typer.echo(line, err=True))
        # A table whose catalog cannot be asked has its line already.
        followed = [table for table in chosen.tables if table.shown_source not in chosen.troubles]
        each_table = ((table.shown_source, each) for table, each in examine_tables(settings, followed))
        for source, each in chain(chosen.troubles.items(), each_table):
            examined.append((source, each))
            if len(followed) + len(chosen.troubles) > 1:
                lines = lines_on(source, each, Verdict.REFUSED)
            elif isinstance(each, SyncError):
                raise each
            else:
                lines = as_lines(each)
            if not as_json:
                say("\n".join(lines))
    lake = summarize(examined, chosen.passed_over)
    if as_json or len(examined) != 1 or chosen.passed_over:
        say_found(lake, summary_lines(lake), as_json=as_json)
    raise typer.Exit(0 if lake.is_followed else 1)


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
    from rich.console import Console  # noqa: PLC0415

    from daemon.cli.console import TableProgress, progress_bars, proof_lines  # noqa: PLC0415
    from daemon.cli.operations import verify_tables  # noqa: PLC0415
    from daemon.verify.findings import Level, Sample, Scope, as_json_object  # noqa: PLC0415

    if rows and metadata:
        raise typer.BadParameter("cannot be combined with --metadata", param_hint="--rows")
    level = Level.ROWS if rows else Level.METADATA if metadata else Level.BITMAPS
    scope = Scope(level, Sample.of(sample), at)
    failed, results = False, []
    with reported_errors():
        settings, chosen, failed = load_chosen(context, tables)
        with progress_bars(Console(stderr=True)) as bars:
            for table, proof in verify_tables(settings, chosen, partial(TableProgress, bars), scope):
                failed = failed or isinstance(proof, SyncError) or not proof.is_right
                results.append(as_json_object(table.name, proof))
                if not as_json:
                    say("\n".join(proof_lines(table.name, proof)))
    if as_json:
        say_found(results, (), as_json=True)
    raise typer.Exit(1 if failed else 0)


@contextmanager
def _opened_table(context: typer.Context, name: str) -> Iterator[tuple[TableContext, Table]]:
    """Load an Iceberg table, to read it beside a running daemon. Errors inside are reported."""
    from daemon.cli.tables import find_tables  # noqa: PLC0415
    from daemon.service.assembly import open_parts  # noqa: PLC0415
    from daemon.sync.context import as_sync_errors  # noqa: PLC0415

    with reported_errors():
        settings = load_both(context, [name])[1]
        (table,) = find_tables(settings, [name], one=True)
        with open_parts(settings) as parts, as_sync_errors(table.name):
            opened = parts.context(table)
            yield opened, opened.load_table()


def show(
    context: typer.Context,
    table: TableName,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    config: ConfigPath = None,
) -> None:
    """Show where a table's Iceberg metadata is, and how to read it.

    Prints the metadata file, the snapshot, the Delta version that it shows, how many data files have mirrors and why,
    and a line for each of Spark, PyIceberg, DuckDB, Polars, Trino and ClickHouse.
    """
    from daemon.cli.details import table_lines  # noqa: PLC0415
    from daemon.status.snapshots import show_table  # noqa: PLC0415
    from daemon.translate.definition import has_mirrors  # noqa: PLC0415

    with _opened_table(context, table) as (opened, iceberg):
        record = opened.find_record() if has_mirrors(iceberg) else None
        mirrors = opened.store.count(record.id).mirrors if record else ()
        shown = show_table(opened.settings, iceberg, mirrors)
    say_found(shown, table_lines(shown), as_json=as_json)


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
    """List the Iceberg snapshots with their Delta versions.

    With --version or --timestamp, finds one snapshot and prints how to read it in the readers that `dvsync show` names.
    The exit code is 1 if no snapshot shows that version.
    """
    if delta_version is not None and timestamp is not None:
        raise typer.BadParameter("give a version or a time, not both", param_hint="--timestamp")
    from daemon.cli.details import choice_lines, list_lines, parse_time_ms  # noqa: PLC0415
    from daemon.status.snapshots import choose_by_time, choose_by_version, list_snapshots  # noqa: PLC0415

    with reported_errors():
        at_ms = parse_time_ms(timestamp) if timestamp is not None else None
    with _opened_table(context, table) as (opened, iceberg):
        choice = None if delta_version is None else choose_by_version(iceberg, delta_version)
        if at_ms is not None:
            choice = choose_by_time(iceberg, opened.log, at_ms)
        found = list_snapshots(iceberg)
    lines = choice_lines(choice) if choice else list_lines(found[:limit], len(found[limit:]))
    say_found(choice or found[:limit], lines, as_json=as_json)
    raise typer.Exit(1 if choice and choice.snapshot is None else 0)


def inspect(
    context: typer.Context,
    table: TableName,
    *,
    file: Annotated[
        str | None, typer.Option("--file", help="Describe this data file only: a URI or a path below the Delta table.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="List at most this many of each.", min=1, max=1000)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
    config: ConfigPath = None,
) -> None:
    """Show what is deleted in a table, and where.

    Lists its deletion vectors by storage type, the data files and partitions with the largest share of deleted rows,
    delete files and what they serve, orphans, and snapshots.
    """
    from daemon.cli.details import deletion_lines, file_lines  # noqa: PLC0415
    from daemon.status.deletions import inspect_file, inspect_table  # noqa: PLC0415

    found: TableDeletions | FileDetail
    with _opened_table(context, table) as (opened, iceberg):
        if file is not None:
            found = inspect_file(opened, iceberg, file, ranges_max=limit * 10)
            lines = file_lines(found)
        else:
            found = inspect_table(opened, iceberg, rows_max=limit)
            lines = deletion_lines(found, now_ms=opened.clock.now_ms())
    say_found(found, lines, as_json=as_json)


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

    with reported_errors():
        settings, is_valid = load_valid(context, "state", "share")
        try:
            runs = read_runs(settings, table, limit)
        except ConfigInvalid:
            if not is_valid:
                load(context)  # Raises: the table's entry may be the faulty one.
            raise
    say_found([run_status(run) for run in runs], run_lines(runs), as_json=as_json)
