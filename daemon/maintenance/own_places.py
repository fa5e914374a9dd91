"""Which files are dvsync's, by their folders and names: cleanup removes no others."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

import msgspec
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider

from daemon.iceberg.pyiceberg_ext.commits import writes_metadata_files
from daemon.mirror.substitution import MIRROR_NAME
from daemon.store.durable import is_local, local_path
from daemon.store.locations import FileMeta, canonical, parts_below, real
from daemon.store.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.transaction import kind_of
from state import FileKind, FileStatus, OrphanReason, WrittenFile

_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The file names that dvsync and its catalogs give. A file that a kill cut short has one more UUID in front.
BESIDE_DATA_NAME = re.compile(rf"({_UUID}-)?(\d+-\d{{6}}-deletes\.(parquet|puffin)|{MIRROR_NAME.pattern})")
METADATA_NAME = re.compile(
    rf"({_UUID}-)?{_UUID}-\d+-m\d+\.avro|snap-\d+-{_UUID}\.avro|\d{{5,}}-{_UUID}(\.gz)?\.metadata\.json"
)
# The suffixes of metadata files of any catalog, also of Hadoop's `v1.metadata.json`.
METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz")
GZIP = b"\x1f\x8b"


def name_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


class OwnPlaces:
    """The folders of the Iceberg table. dvsync removes files only inside of them."""

    def __init__(self, context: TableContext, table: Table, written: Iterable[WrittenFile] = ()) -> None:
        """`written` are files that the state store knows: the configuration may not name their folders any more."""
        self._source = canonical(context.location)
        self._has_metadata_files = writes_metadata_files(table.catalog)
        self.storage = FileIOStorage(context.target_properties(table))
        configured = (context.settings.delete_files_location, table.properties.get("write.data.path"))
        known = (file.path.rpartition("/")[0] for file in written if BESIDE_DATA_NAME.fullmatch(name_of(file.path)))
        places = {table.metadata.location, table.properties.get("write.metadata.path"), *configured, *known}
        self._places = sorted(canonical(place).rstrip("/") for place in places if place)
        self._uuid = table.metadata.table_uuid
        # Scan only the folders that the location provider names: other tables may lie below this table's location.
        locations = load_location_provider(table.metadata.location, table.properties)
        named = (locations.metadata_path, locations.data_path, context.settings.delete_files_location)
        self._folders = sorted({canonical(folder).rstrip("/") for folder in named if folder})

    def has(self, path: str) -> bool:
        """Return whether `path` lies in one of the folders, with links followed, and not inside the Delta table."""
        path, source = canonical(path), self._source
        return any(
            _is_inside(path, place) and (not _is_inside(path, source) or _is_inside(place, source))
            for place in self._places
        )

    def may_have_written(self, file: WrittenFile) -> bool:
        """Return False if the name is another program's: the state store also has its delete files and manifests."""
        names = {FileKind.DELETE_FILE: BESIDE_DATA_NAME, FileKind.MANIFEST: METADATA_NAME}
        return file.kind not in names or names[file.kind].fullmatch(name_of(file.path)) is not None

    def remove_empty_folders(self, removed: Iterable[str]) -> None:
        """Remove the local folders of these files that are empty now, and those around them, up to the places."""
        folders = set()
        for path in removed:
            folder = canonical(path).rpartition("/")[0]
            while is_local(folder) and any(parts_below(folder, place) is not None for place in self._places):
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        for folder in sorted(folders, key=len, reverse=True):
            with suppress(OSError):
                local_path(folder).rmdir()

    def scan(self) -> list[FileMeta]:
        """List the files in the folders that dvsync writes to, each file once."""
        found = {meta.path: meta for folder in self._folders for meta in self.storage.list_below(folder)}
        return [meta for meta in found.values() if self.has(meta.path)]

    def written_among(self, metas: Iterable[FileMeta]) -> list[WrittenFile]:
        """Return the files whose names match those that dvsync gives, or its catalog's client for metadata files."""
        named = ((meta, name_of(meta.path)) for meta in metas)
        found = [
            (meta, kind_of(name))
            for meta, name in named
            if BESIDE_DATA_NAME.fullmatch(name) or METADATA_NAME.fullmatch(name)
        ]
        return [
            WrittenFile(meta.path, kind, FileStatus.ORPHANED, meta.modified_ms, OrphanReason.FOUND, meta.size)
            for meta, kind in found
            if kind is not FileKind.METADATA or self._has_metadata_files
        ]

    def find_other_table(self, metas: Iterable[FileMeta]) -> str | None:
        """Return a metadata file of another table among `metas`, whose owner names do not show, or None."""
        metadata_files = [meta for meta in metas if meta.path.endswith(METADATA_SUFFIXES)]
        for meta in sorted(metadata_files, key=lambda meta: meta.modified_ms, reverse=True):
            uuid = _table_uuid(self.storage.read(meta.path))
            if uuid not in (None, self._uuid):
                return meta.path
        return None


class _Metadata(msgspec.Struct):
    table_uuid: UUID = msgspec.field(name="table-uuid")


_decode_metadata = msgspec.json.Decoder(_Metadata).decode


def _table_uuid(data: bytes) -> UUID | None:
    """Return the table's uuid from the bytes of a metadata file. None if no reader could read the file."""
    try:
        return _decode_metadata(gzip.decompress(data) if data.startswith(GZIP) else data).table_uuid
    except (msgspec.DecodeError, OSError, EOFError, zlib.error):
        return None


def _is_inside(path: str, place: str) -> bool:
    """Return whether `path` is inside `place`, both as spelled and after following links, to be safe."""
    folder = path.rpartition("/")[0]
    return (
        ".." not in path.split("/")
        and parts_below(folder, place) is not None
        and parts_below(real(folder), real(place)) is not None
    )
