"""A board with its tables on it."""

from __future__ import annotations

from collections.abc import Iterable

from daemon.clock import Clock
from daemon.config.settings import TableSettings
from daemon.status.board import Board


def board_of(tables: Iterable[TableSettings], clock: Clock, *, lag_budget_s: float) -> Board:
    board = Board(clock, lag_budget_s=lag_budget_s)
    for table in tables:
        board.add(table)
    return board
