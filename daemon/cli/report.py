"""What the running daemon reports of its tables: `dvsync status` shows it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from daemon.cli.probe import ask, url_of
from daemon.config.settings import Settings
from daemon.status.table_status import TableStatus
from daemon.web.answers import DaemonInfo, Readiness


@dataclass(frozen=True)
class Report:
    """What the running daemon says. `statuses` is None unless a daemon with our state database follows the tables.

    `lines` say who answered or why nobody did, and what is wrong with the daemon itself.
    """

    statuses: list[TableStatus] | None
    lines: list[str]


def ask_for_tables(settings: Settings) -> Report:
    """Ask the daemon of these settings for all its tables. Nothing is raised."""
    health = settings.health
    if health.port == 0:
        return Report(None, ["no daemon was asked: health.port is 0, which takes any free port"])
    answer = ask(health, "api/daemon")
    if not answer.is_well:
        return Report(None, [f"no daemon: {answer.text}"])
    url = url_of(health)
    try:
        info = msgspec.json.decode(answer.text, type=DaemonInfo)
        if (info.state, info.share) != (settings.state.place, str(settings.share)):
            has = f"follows share {info.share}, not {settings.share}"
            if info.state != settings.state.place:
                has = f"has another state database, {info.state}"
            return Report(None, [f"no daemon: the one at {url} {has}"])
        line = f"daemon: {info.process}, dvsync {info.version}"
        ready = msgspec.json.decode(ask(health, "readyz").text, type=Readiness)
        lines = [line, *(f"not ready: {each.reason}" for each in ready.reasons if each.table is None)]
        if info.stands_by:
            return Report(None, lines)
        return Report(msgspec.json.decode(ask(health, "api/tables").text, type=list[TableStatus]), lines)
    except msgspec.DecodeError:
        return Report(None, [f"no daemon: what answers at {url} is not a dvsync of this version"])
