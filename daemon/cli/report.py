"""What the running daemon reports of its tables: `dvsync status` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
import typer

from daemon.cli.invocation import config_path, load_both, load_valid
from daemon.cli.probe import ask, url_of
from daemon.cli.tables import read_statuses
from daemon.config.settings import HealthSettings, Settings
from daemon.errors import SyncError
from daemon.status.table_status import TableStatus
from daemon.sync.memory import open_store
from daemon.web.answers import DaemonInfo, Readiness

# What the running daemon says: its tables, None unless it has our state database and follows them; and lines on who
# answered or why nobody did, and on what is wrong with the daemon itself.
Report = tuple[list[TableStatus] | None, list[str]]
NO_DAEMON_KNOWN = "no daemon is known: health.port is 0, which takes any free port"


def find_statuses(context: typer.Context, wanted: Sequence[str]) -> tuple[list[str], list[TableStatus]]:
    """Return lines about the daemon, and every table as the daemon shows it, or else by the state database."""
    settings, is_valid = load_valid(context, "state", "share", "health")
    statuses, lines = ask_for_tables(settings)
    if statuses is not None:
        if not is_valid:
            faulty = "has faults, which `dvsync config check` lists; the daemon keeps its former configuration"
            lines.append(f"{config_path(context)} {faulty}")
        followed = {status.name for status in statuses}
        for table in settings.tables if is_valid else ():
            if not table.is_pattern and table.name not in followed and settings.share.owns(table.target):
                lines.append(f"{table.name}: the daemon does not follow it yet; SIGHUP makes it read the configuration")
        return lines, statuses
    configured, settings = load_both(context, wanted)
    statuses, moved = read_statuses(configured, settings)
    lines += ["what follows is from the state database and the Delta logs", *moved]
    if settings.share.count > 1:
        others = sum(not settings.share.owns(table.target) for table in settings.tables)
        lines.append(f"share {settings.share}; tables of other shares: {others}")
    return lines, statuses


def ask_for_tables(settings: Settings) -> Report:
    """Ask the daemon of these settings, or the holder of the lease if that has another address. Nothing is raised."""
    configured = settings.health
    report: Report = (None, [NO_DAEMON_KNOWN])
    if configured.port != 0:
        report = _ask_at(configured, settings)
    held = None if report[0] is not None else find_address(settings)
    if held is None or url_of(held) == url_of(configured):
        return report
    statuses, lines = _ask_at(held, settings)
    if statuses is None:
        return report
    if configured.port:
        lines.append(f"it answers at {url_of(held)}, not at {url_of(configured)} as configured")
    return statuses, lines


def find_address(settings: Settings) -> HealthSettings | None:
    address = None
    # What is wrong with the database is said by whoever needs it.
    with suppress(SyncError), open_store(settings, reads_only=True) as store:
        address = urlsplit(store.read_lease().address or "")
    if address is None or not address.hostname or not address.port:
        return None
    return settings.health.model_copy(update={"host": address.hostname, "port": address.port})


def _ask_at(health: HealthSettings, settings: Settings) -> Report:
    answer = ask(health, "api/daemon")
    if not answer.is_well:
        return None, [f"no daemon: {answer.text}"]
    url = url_of(health)
    try:
        info = msgspec.json.decode(answer.text, type=DaemonInfo)
        if (info.state, info.share) != (settings.state.place, str(settings.share)):
            has = f"follows share {info.share}, not {settings.share}"
            if info.state != settings.state.place:
                has = f"has another state database, {info.state}"
            return None, [f"no daemon: the one at {url} {has}"]
        share = f", share {info.share}" if settings.share.count > 1 else ""
        line = f"daemon: {info.process}, dvsync {info.version}{share}"
        ready = msgspec.json.decode(ask(health, "readyz").text, type=Readiness)
        lines = [line, *(f"not ready: {each.reason}" for each in ready.reasons if each.table is None)]
        if info.stands_by:
            return None, lines
        return msgspec.json.decode(ask(health, "api/tables").text, type=list[TableStatus]), lines
    except msgspec.DecodeError:
        return None, [f"no daemon: what answers at {url} is not a dvsync of this version"]
