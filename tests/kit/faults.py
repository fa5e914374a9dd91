"""Failures by a seed: whatever dvsync stands on fails now and then, before it has done its work or after."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile
from sqlalchemy.exc import OperationalError

from daemon.errors import ObjectStoreAway
from daemon.iceberg.pyiceberg_ext.file_io import _LocalFile
from daemon.iceberg.pyiceberg_ext.records import BlockAvroOutput
from daemon.store.storage import FileIOStorage
from state import StateUnavailable
from state.sql.store import StateStore

NO_VERBS = {"open", "close", "read_home", "record_home"}
VERBS = sorted(name for name in dir(StateStore) if not name.startswith("_") and name not in NO_VERBS)


def fault_seed() -> int:
    """`FAULT_SEED`, else a new one. pytest shows what was printed when the test fails."""
    seed = int(os.environ.get("FAULT_SEED") or Random().getrandbits(32))
    print(f"FAULT_SEED={seed}")
    return seed


def _away(name: str) -> Exception:
    return ObjectStoreAway(f"{name} failed by design", hint="None.")


def _full(name: str) -> Exception:
    return OSError(errno.ENOSPC, f"{name} failed by design")


def _unreachable(name: str) -> Exception:
    return OperationalError(name, {}, Exception("failed by design"))


def _unavailable(name: str) -> Exception:
    return StateUnavailable(f"{name} failed by design")


STORAGE_VERBS = ("exists", "stat", "read", "list_from", "list_below", "open_input", "delete")
# What fails, how, and whether it may fail after its effect too. A state store's verb that failed has changed nothing.
TARGETS: dict[str, tuple[list[tuple[Any, str]], Callable[[str], Exception], bool]] = {
    "storage": ([(FileIOStorage, name) for name in STORAGE_VERBS], _away, False),
    "files": (
        [
            (PyArrowFile, "create"),
            (PyArrowFile, "open"),
            (_LocalFile, "open"),
            (BlockAvroOutput, "write_encoded"),
            (BlockAvroOutput, "__exit__"),
        ],
        _full,
        True,
    ),
    "catalog": (
        [(SqlCatalog, "commit_table"), (SqlCatalog, "load_table"), (MetastoreCatalog, "_write_metadata")],
        _unreachable,
        True,
    ),
    "state": ([(StateStore, verb) for verb in VERBS], _unavailable, False),
}


class Faults:
    """Makes calls fail with `probability` while `on()` lasts. `told` names the faults since the last call of it."""

    def __init__(self, patch: pytest.MonkeyPatch, random: Random, *, probability: float, kinds: list[str]) -> None:
        self._random = random
        self._probability = probability
        self._is_on = False
        self.told: list[str] = []
        for kind in kinds:
            calls, error, may_fail_after = TARGETS[kind]
            for owner, name in calls:
                self._wrap(patch, owner, name, error, may_fail_after)

    @contextmanager
    def on(self) -> Iterator[None]:
        self._is_on, self.told = True, []
        try:
            yield
        finally:
            self._is_on = False

    def _wrap(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, error: Callable[[str], Exception], may_fail_after: bool
    ) -> None:
        inner = getattr(owner, name)

        def outer(*arguments: Any, **options: Any) -> Any:
            if self._strikes(f"before {name}"):
                raise error(name)
            result = inner(*arguments, **options)
            if may_fail_after and self._strikes(f"after {name}"):
                if name in ("create", "open"):
                    result.close()
                raise error(name)
            return result

        patch.setattr(owner, name, staticmethod(outer) if name == "_write_metadata" else outer)

    def _strikes(self, event: str) -> bool:
        if not self._is_on or self._random.random() >= self._probability:
            return False
        self.told.append(event)
        return True
