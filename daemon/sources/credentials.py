"""Credentials that a catalog gives for a table's files: short-lived, to read only, and never shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from daemon.clock import Clock
from daemon.errors import ObjectStoreAway, SourceCatalogAway
from daemon.masking import Secret
from daemon.store.locations import canonical, parts_below
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
# What they replace of the configured properties, by the beginning of the names.
REPLACED = {
    "s3": tuple(
        f"{place}.{name}"
        for place in ("s3", "client")
        for name in ("access-key", "secret", "session", "role", "anonymous", "profile")
    ),
    "azure": ("adls.account-key", "adls.connection", "adls.sas", "adls.tenant", "adls.client", "adls.token"),
    "gcs": ("gcs.oauth2.",),
}
# One that has ended, by a clock that differs, serves for so long; a catalog that is away is asked again after this.
LASTING_MIN_MS = 5_000


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
        self._renewed_at_ms = self._until_ms = 0

    def __getstate__(self) -> dict[str, object]:
        # A Spark task asks the catalog when these end.
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def properties(self) -> dict[str, str]:
        """Raises `SourceCatalogAway`, unless what it gave before still holds."""
        with self._lock:
            now_ms = self._clock.now_ms()
            if self._current is None or now_ms >= self._renewed_at_ms:
                try:
                    self._renew(now_ms)
                except SourceCatalogAway:
                    if self._current is None or now_ms >= self._until_ms:
                        raise
                    self._renewed_at_ms = min(now_ms + LASTING_MIN_MS, self._until_ms)
            assert self._current is not None, "the catalog has answered"
            return self._current

    def _renew(self, now_ms: int) -> None:
        place = canonical(self._location)
        fitting = [each for each in self._ask() if parts_below(place, canonical(each.prefix)) is not None]
        best = max(fitting, key=lambda each: len(each.prefix), default=Vended("", None, {}))
        lasts_ms = LASTING_MS if best.expires_ms is None else min(best.expires_ms - now_ms, LASTING_MS)
        lasts_ms = lasts_ms if lasts_ms > 0 else LASTING_MIN_MS
        self._until_ms, self._renewed_at_ms = now_ms + lasts_ms, now_ms + int(lasts_ms * (1 - RENEWED_AT))
        found = {key: value for key, value in best.config.items() if key in PROPERTIES and value}
        given: dict[str, str] = {PROPERTIES[key]: Secret(value) for key, value in found.items()}
        if "gcs.oauth2.token" in given:
            given["gcs.oauth2.token-expires-at"] = str(best.expires_ms or self._until_ms)
        replaced = tuple(name for key in found for name in REPLACED[key.partition(".")[0]])
        kept = {key: value for key, value in self._configured.items() if not key.startswith(replaced)}
        self._current = {**kept, **given}

    def forget(self, refused: Mapping[str, str]) -> None:
        """A store has refused these: ask for new ones, if that has not been done since."""
        with self._lock:
            if self._current is refused:
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
            self._credentials.forget(self._properties)
            raise
