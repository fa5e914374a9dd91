"""Which tables the page lists, and in which order: what its form asks, in the query of the address."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlencode

from daemon.status.table_status import SyncState, TableStatus, worst_first

# The page has at most so many tables at a time, however many there are.
ROWS_MAX = 100
# No name of a table is longer.
TEXT_MAX = 200
# In the place of a state: the tables for which `/readyz` gives a reason.
NOT_READY = "not-ready"


# The orders of the page's form: a title, and the key to sort by. What is not known comes last, and so does a table that
# was never synced when the oldest sync comes first.
WORST = "worst"
ORDERS: dict[str, tuple[str, Callable[[TableStatus], Any] | None]] = {
    WORST: ("worst first", None),
    "name": ("name", lambda each: each.name),
    "behind": ("longest behind", lambda each: -(each.lag_seconds if each.lag_seconds is not None else -1)),
    "last-synced": ("last synced, oldest first", lambda each: (each.last_synced_at is None, each.last_synced_at or "")),
    "deleted-rows": ("most deleted rows", lambda each: -(each.deleted_positions or 0)),
    "delete-files": ("most delete files", lambda each: -(each.live_delete_files or 0)),
    "orphans": ("most orphans", lambda each: -(each.orphans_waiting or 0)),
}


@dataclass(frozen=True)
class Query:
    """What the address asks for. `state` is a SyncState, NOT_READY or empty. A page that `stays` is not refreshed."""

    text: str = ""
    state: str = ""
    order: str = WORST
    page: int = 1
    stays: bool = False

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Self:
        """Read the query of an address. A value that means nothing is taken as if it were not there."""
        state, order, page = (parameters.get(name, "") for name in ("state", "sort", "page"))
        return cls(
            text=parameters.get("q", "").strip()[:TEXT_MAX],
            state=state if state in (NOT_READY, *SyncState) else "",
            order=order if order in ORDERS else WORST,
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
            stays=parameters.get("refresh") == "off",
        )

    def encode(self) -> str:
        asked = {
            "q": self.text,
            "state": self.state,
            "sort": "" if self.order == WORST else self.order,
            "page": "" if self.page == 1 else str(self.page),
            "refresh": "off" if self.stays else "",
        }
        return urlencode({name: value for name, value in asked.items() if value})

    def at(self, page: int) -> Query:
        return replace(self, page=page)


@dataclass(frozen=True)
class Listing:
    """One page of the list. `found` tables match the query, which has the number of an existing page."""

    query: Query
    rows: Sequence[TableStatus]
    found: int
    pages: int


def list_tables(statuses: Sequence[TableStatus], not_ready: Collection[str], query: Query) -> Listing:
    """Choose and order the tables. The text is searched in names, sources and targets, whatever the case."""
    text = query.text.casefold()
    found = [
        each
        for each in statuses
        if (not query.state or query.state == each.state or (query.state == NOT_READY and each.name in not_ready))
        and (not text or any(text in place.casefold() for place in (each.name, each.source, each.target)))
    ]
    ordered = worst_first(found)
    _, key = ORDERS[query.order]
    if key:
        ordered.sort(key=key)  # of equal tables, the worse comes first
    pages = max(1, -(-len(found) // ROWS_MAX))
    query = query.at(min(query.page, pages))
    first = (query.page - 1) * ROWS_MAX
    return Listing(query, ordered[first : first + ROWS_MAX], len(found), pages)
