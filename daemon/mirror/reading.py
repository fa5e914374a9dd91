"""Reads a table's data files, be they Delta's or mirrors: each in the store where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from daemon.mirror.substitution import find_mirror_name
from daemon.store.places import ArrowPlace
from daemon.store.storage import FileIOStorage


class DataFileStorage(FileIOStorage):
    """Mirrors are read with the properties of the Iceberg table, all else as `source` reads it."""

    def __init__(self, source: FileIOStorage, target_properties: Mapping[str, str]) -> None:
        super().__init__()
        self._source = source
        self._target = FileIOStorage(target_properties)

    @property
    def properties(self) -> Mapping[str, str]:
        return self._source.properties

    def _storage_of(self, path: str) -> FileIOStorage:
        return self._target if find_mirror_name(path) else self._source

    def _at(self, path: str) -> ArrowPlace:
        return self._storage_of(path)._at(path)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        with self._storage_of(path)._errors(path):
            yield
