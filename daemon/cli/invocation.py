"""What the commands share: their parameters, how they read the configuration, and how they print results and errors."""

from __future__ import annotations

import gc
import getpass
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from daemon.config.settings import LogSettings, Settings, TableSettings
from daemon.config.value_types import ENV_PREFIX, duration_s
from daemon.errors import ConfigInvalid, SourceCatalogAway, SyncError
from daemon.masking import SECRET_KEY, find_secrets, hide
from daemon.observe.log import configure_logging
from daemon.texts import printable, some_of

# Set in a command's context when a pattern could not be listed, so that "all tables" were not all.
PATTERN_FAILED = "dvsync.pattern_failed"


def _keep_path(context: typer.Context, path: Path | None) -> None:
    if path:
        context.find_root().obj = path


# Of the command or of `dvsync` itself. `config_path` has it, so that no command passes it on.
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config", help="The configuration file (config.yaml, or $DVSYNC_CONFIG).", metavar="PATH", callback=_keep_path
    ),
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name in the configuration.")]
TableNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="TABLE", help="Names of tables, in which `*` stands for any part; all tables by default."),
]
ChosenTables = Annotated[
    list[str] | None, typer.Argument(metavar="TABLE", help="Names of tables, in which `*` stands for any part.")
]


def config_path(context: typer.Context) -> Path:
    return context.find_root().obj or default_config_path()


def default_config_path() -> Path:
    """The file that commands read without --config."""
    return Path(os.environ.get(f"{ENV_PREFIX}CONFIG") or "config.yaml")


def load(
    context: typer.Context, *, optional: bool = False, quiet: bool = False, ask_pyiceberg: bool = False
) -> Settings:
    """`optional`: without a file, those of the environment. `quiet`: for a command with a result, log to stderr."""
    from daemon.config.load import load_settings  # noqa: PLC0415

    path = config_path(context)
    is_wanted = not optional or context.find_root().obj or path.exists()
    settings = load_settings(path, None if is_wanted else "{}", ask_pyiceberg=ask_pyiceberg)
    hide_secrets(settings)
    if quiet:
        log_to_stderr(settings.log)
    return settings


def load_valid(context: typer.Context, *sections: str) -> tuple[Settings, bool]:
    """The settings, of which only these sections may be used, and whether the others are valid, too."""
    from daemon.config.load import load_sections  # noqa: PLC0415

    settings, is_valid = load_sections(config_path(context), *sections)
    log_to_stderr()
    hide_secrets(settings)
    return settings, is_valid


def load_chosen(context: typer.Context, names: Sequence[str] | None) -> tuple[Settings, list[TableSettings], bool]:
    """The settings of `load_both`, the tables that `names` names, and whether these lack tables of a failed pattern."""
    from daemon.cli.tables import find_tables  # noqa: PLC0415

    settings = load_both(context, names or ())[1]
    return settings, find_tables(settings, names or ()), not names and PATTERN_FAILED in context.meta


def load_both(context: typer.Context, wanted: Sequence[str] = ()) -> tuple[Settings, Settings]:
    """The settings as written, and with the tables that patterns find. Prints what fails, unless `wanted` are found."""
    from daemon.cli.tables import with_found_tables  # noqa: PLC0415

    configured = load(context, quiet=True)
    settings, found = with_found_tables(configured)
    if not wanted or not {table.name for table in settings.tables}.issuperset(wanted):
        for places, trouble in found.joined_troubles():
            what = f"{some_of(places)} {'is' if len(places) == 1 else 'are'} not followed"
            if isinstance(trouble, SourceCatalogAway):
                what = f"{some_of(places)} cannot be asked for now"
            typer.echo(printable(f"{what}: {trouble.message}\n{trouble.hint}", keep="\n"), err=True)
            context.meta[PATTERN_FAILED] = True
    return configured, settings


def hide_secrets(settings: Settings | None = None) -> None:
    """Mask the secrets of the environment, and of the settings, in all that is printed and logged."""
    hide(settings.secrets() if settings else ())
    hide(value for name, value in os.environ.items() if SECRET_KEY.search(name) and not name.endswith("_FILE"))
    for name, value in os.environ.items():
        if name.startswith("OTEL_"):
            # The values of headers: `Authorization=Bearer%20…,tenant=…`.
            headers = value.split(",") if name.endswith("_HEADERS") else ()
            hide((*find_secrets(name, value), *(each.partition("=")[2].strip() or each for each in headers)))


def log_to_stderr(log: LogSettings | None = None, *, has_verdicts: bool = False) -> None:
    """Log warnings and above, in lines for people unless `log` says JSON; `has_verdicts` as in `configure_logging`."""
    log = log or LogSettings()
    level: Literal["warning", "error"] = "error" if log.level == "error" else "warning"
    chosen = LogSettings(format="json" if log.format == "json" else "console", level=level)
    configure_logging(chosen, sys.stderr, has_verdicts=has_verdicts)


def say(text: str) -> None:
    """Print a text that may contain names and values of a Delta table."""
    typer.echo(printable(text, keep="\n"))


def say_found(found: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print what was found, as JSON or in `lines` for people."""
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        say("\n".join(lines))


@contextmanager
def reported_errors() -> Iterator[None]:
    """For the work of a command, after its imports: a SyncError is printed and becomes an exit code."""
    # Imported modules are never garbage: the collector need not visit them.
    gc.freeze()
    # A daemon makes and drops millions of objects, hardly any in cycles: to look for those more often costs processor.
    gc.set_threshold(10_000)
    gc.enable()
    try:
        yield
    except SyncError as error:
        typer.echo(f"{error}\n{error.hint}", err=True)
        raise typer.Exit(2 if isinstance(error, ConfigInvalid) else 1) from None


def seconds(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def who() -> str:
    """The user of this process, and the machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"user {os.getuid()}"  # a container's user may have no name
    return f"{user} on {socket.gethostname()}"
