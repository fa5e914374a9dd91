"""Credentials that a catalog gives for a table's files: short-lived, to read only, and never shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from daemon.clock import Clock
from daemon.errors import ObjectStoreAway
from daemon.masking import Secret
from daemon.store.storage import FileIOStorage

# New ones are asked for when this part of their life is left.
RENEWED_AT = 0.2
# Of those without an end, and where the catalog gives none: asked for again after this.
LASTING_MS = 3_600_000
# As PyIceberg's FileIO names what Unity's API names.
PROPERTIES = {
    "s3.access-key-id": "s3.access-key-id",
    "s3.secret-access-key": "s3.secret-access-key",
    "s3.session-token": "s3.session-token",
    "azure.sas-token": "adls.sas-token",
    "gcs.oauth-token": "gcs.oauth2.token",
}


class Vended(NamedTuple):
    """What the catalog gives for all files below `prefix`. Without an end, `expires_ms` is None."""

    prefix: str
    expires_ms: int | None
    config: Mapping[str, str | None]


class Credentials:
    """The properties to read the files at `location` with: those that are `configured`, and what the catalog gives.

    `ask` is one request. From any thread.
    """

    def __init__(
        self, ask: Callable[[], Sequence[Vended]], location: str, configured: Mapping[str, str], clock: Clock
    ) -> None:
        self._ask = ask
        self._location = location
        self._configured = dict(configured)
        self._clock = clock
        self._lock = Lock()
        self._current: dict[str, str] | None = None
        self._until_ms = 0

    def __getstate__(self) -> dict[str, object]:
        # A Spark task asks the catalog when these end.
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def properties(self) -> dict[str, str]:
        """Raises `SourceCatalogAway`."""
        with self._lock:
            now_ms = self._clock.now_ms()
            if self._current is None or now_ms >= self._until_ms:
                fitting = [each for each in self._ask() if self._location.startswith(each.prefix.rstrip("/"))]
                best = max(fitting, key=lambda each: len(each.prefix), default=Vended("", None, {}))
                lasts_ms = LASTING_MS if best.expires_ms is None else best.expires_ms - now_ms
                self._until_ms = now_ms + int(min(lasts_ms, LASTING_MS) * (1 - RENEWED_AT))
                given = {
                    PROPERTIES[key]: Secret(value) for key, value in best.config.items() if key in PROPERTIES and value
                }
                self._current = {**self._configured, **given}
            return self._current

    def forget(self) -> None:
        """A store refused them: ask for new ones."""
        self._current = None


class VendedStorage(FileIOStorage):
    """The files of a table, read with what its catalog gives."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self._credentials = credentials

    @property
    def properties(self) -> Mapping[str, str]:
        current = self._credentials.properties()
        if current is not self._properties:
            self._properties = current
            self.__dict__.pop("_io", None)
        return current

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            with super()._errors(path):
                yield
        except ObjectStoreAway:
            self._credentials.forget()
            raise
