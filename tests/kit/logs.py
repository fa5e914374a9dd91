"""Delta logs made by hand, without data files: commits, and checkpoints of each kind that PROTOCOL.md knows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from daemon.clock import SystemClock
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import LogSegment, load_log_segment
from daemon.delta.snapshot import ReplayedState, replay
from daemon.store.locations import FileMeta, Span
from daemon.store.storage import FileIOStorage

Action = dict[str, Any]

PROTOCOL: Action = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors", "v2Checkpoint"],
        "writerFeatures": ["deletionVectors", "v2Checkpoint"],
    }
}
METADATA: Action = {
    "metaData": {
        "id": "t-1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": '{"type":"struct","fields":[]}',
        "partitionColumns": ["part"],
        "configuration": {"delta.enableDeletionVectors": "true"},
    }
}
TEXT = pa.string()
TEXTS = pa.map_(TEXT, TEXT)
DV_TYPE = pa.struct(
    [
        ("storageType", TEXT),
        ("pathOrInlineDv", TEXT),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
ADD_TYPE = pa.struct(
    [
        ("path", TEXT),
        ("partitionValues", TEXTS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("tags", TEXTS),
        ("stats", TEXT),
        ("stats_parsed", pa.struct([("numRecords", pa.int64())])),
        ("deletionVector", DV_TYPE),
    ]
)
# PROTOCOL.md, "Checkpoint Schema", with columns that nobody knows.
CHECKPOINT = pa.schema(
    [
        ("txn", pa.struct([("appId", TEXT), ("version", pa.int64())])),
        ("add", ADD_TYPE),
        ("remove", pa.struct([("path", TEXT), ("deletionTimestamp", pa.int64()), ("deletionVector", DV_TYPE)])),
        (
            "metaData",
            pa.struct(
                [
                    ("id", TEXT),
                    ("name", TEXT),
                    ("format", pa.struct([("provider", TEXT), ("options", TEXTS)])),
                    ("schemaString", TEXT),
                    ("partitionColumns", pa.list_(TEXT)),
                    ("createdTime", pa.int64()),
                    ("configuration", TEXTS),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(TEXT)),
                    ("writerFeatures", pa.list_(TEXT)),
                ]
            ),
        ),
        ("checkpointMetadata", pa.struct([("version", pa.int64()), ("tags", TEXTS)])),
        ("sidecar", pa.struct([("path", TEXT), ("sizeInBytes", pa.int64()), ("tags", TEXTS)])),
        ("unheardOf", pa.struct([("x", pa.int8())])),
    ]
)


def vector(path: str, *, offset: int | None = 1, kind: str = "u") -> Action:
    found = {"storageType": kind, "pathOrInlineDv": path, "sizeInBytes": 40, "cardinality": 6}
    return found if offset is None else {**found, "offset": offset}


def add(path: str, dv: Action | None = None, **fields: Any) -> Action:
    action = {
        "path": path,
        "partitionValues": {"part": "x"},
        "size": 10,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords":3}',
        **fields,
    }
    return {"add": action if dv is None else {**action, "deletionVector": dv}}


def remove(path: str, dv: Action | None = None) -> Action:
    action = {"path": path, "deletionTimestamp": 0, "dataChange": True}
    return {"remove": action if dv is None else {**action, "deletionVector": dv}}


def rows_of(actions: Sequence[Action]) -> list[Action]:
    """The actions as pyarrow takes them: maps as lists of pairs."""
    return [{kind: _with_pairs(action) for kind, action in line.items()} for line in actions]


def _with_pairs(action: Mapping[str, Any]) -> Action:
    row = dict(action)
    for name in ("partitionValues", "configuration", "tags", "options"):
        if isinstance(row.get(name), dict):
            row[name] = list(row[name].items())
    if "format" in row:
        row["format"] = _with_pairs(row["format"])
    return row


class CountedStorage(FileIOStorage):
    """Remembers each request, by its verb and the file's name."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def _note(self, verb: str, path: str) -> None:
        self.asked.append((verb, path.rsplit("/", 1)[1]))

    def exists(self, path: str) -> bool:
        self._note("exists", path)
        return super().exists(path)

    def stat(self, path: str) -> FileMeta:
        self._note("stat", path)
        return super().stat(path)

    def read(self, path: str, span: Span | None = None) -> bytes:
        self._note("read", path)
        return super().read(path, span)

    def open_input(self, path: str) -> Any:
        self._note("open", path)
        return super().open_input(path)

    def list_from(self, directory: str, after: str) -> Iterator[FileMeta]:
        self._note(f"list after {after.lstrip('0') or 0}", directory)
        return super().list_from(directory, after)


@dataclass
class HandmadeLog:
    """A log in `folder`/_delta_log; versions count from 0 on."""

    folder: Path
    version: int = -1
    storage: CountedStorage = field(default_factory=CountedStorage)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True)

    @property
    def path(self) -> Path:
        return self.folder / "_delta_log"

    @property
    def log(self) -> DeltaLog:
        return DeltaLog(self.storage, f"file://{self.folder}", SystemClock())

    def name(self, version: int, rest: str = "json") -> Path:
        return self.path / f"{version:020d}.{rest}"

    def create(self, *actions: Action) -> None:
        self.commit(PROTOCOL, METADATA, *actions)

    def commit(self, *actions: Action) -> int:
        self.version += 1
        self.write_lines(self.name(self.version), [{"commitInfo": {"operation": "WRITE"}}, *actions])
        return self.version

    def write_lines(self, path: Path, actions: Sequence[Action]) -> Path:
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
        return path

    def write_parquet(self, path: Path, actions: Sequence[Action], schema: pa.Schema = CHECKPOINT) -> Path:
        path.parent.mkdir(exist_ok=True)
        # More than one row group, where there are more rows than one.
        pq.write_table(pa.Table.from_pylist(rows_of(actions), schema), path, row_group_size=2, write_page_checksum=True)
        return path

    def checkpoint(
        self, actions: Sequence[Action], *, kind: str = "classic", version: int | None = None, parts: int = 2
    ) -> list[Path]:
        """Of the newest `version`, or another. The files, those with adds last."""
        version = self.version if version is None else version
        return list(getattr(self, f"_{kind.replace('-', '_')}")(version, actions, parts))

    def _classic(self, version: int, actions: Sequence[Action], _parts: int) -> Iterator[Path]:
        yield self.write_parquet(self.name(version, "checkpoint.parquet"), actions)

    def _multi_part(self, version: int, actions: Sequence[Action], parts: int) -> Iterator[Path]:
        for part in range(parts):
            name = f"checkpoint.{part + 1:010d}.{parts:010d}.parquet"
            yield self.write_parquet(self.name(version, name), actions[part::parts])

    def _v2_parquet(self, version: int, actions: Sequence[Action], parts: int) -> Iterator[Path]:
        top, files = self._sidecars(version, actions, parts)
        yield self.write_parquet(self.name(version, f"checkpoint.{uuid4()}.parquet"), top)
        yield from files

    def _v2_json(self, version: int, actions: Sequence[Action], parts: int) -> Iterator[Path]:
        top, files = self._sidecars(version, actions, parts)
        yield self.write_lines(self.name(version, f"checkpoint.{uuid4()}.json"), top)
        yield from files

    def _v2_classic(self, version: int, actions: Sequence[Action], parts: int) -> Iterator[Path]:
        top, files = self._sidecars(version, actions, parts)
        yield self.write_parquet(self.name(version, "checkpoint.parquet"), top)
        yield from files

    def _v2_json_whole(self, version: int, actions: Sequence[Action], _parts: int) -> Iterator[Path]:
        head = {"checkpointMetadata": {"version": version, "tags": {}}}
        yield self.write_lines(self.name(version, f"checkpoint.{uuid4()}.json"), [head, *actions])

    def _sidecars(self, version: int, actions: Sequence[Action], parts: int) -> tuple[list[Action], list[Path]]:
        in_files = [action for action in actions if action.keys() & {"add", "remove"}]
        top = [action for action in actions if not action.keys() & {"add", "remove"}]
        schema = pa.schema([CHECKPOINT.field("add"), CHECKPOINT.field("remove")])
        files = [
            self.write_parquet(self.path / "_sidecars" / f"{uuid4()} {part}.parquet", in_files[part::parts], schema)
            for part in range(parts)
        ]
        # URL-encoded; the first one is relative, the others are absolute.
        paths = [file.as_uri() if number else quote(file.name) for number, file in enumerate(files)]
        sidecars = [
            {"sidecar": {"path": path, "sizeInBytes": file.stat().st_size}}
            for path, file in zip(paths, files, strict=True)
        ]
        return [{"checkpointMetadata": {"version": version, "tags": {}}}, *top, *sidecars], files

    def hint(self, version: int, **fields: Any) -> None:
        (self.path / "_last_checkpoint").write_text(json.dumps({"version": version, "size": 1, **fields}))

    def drop_commits(self, *versions: int) -> None:
        for version in versions:
            self.name(version).unlink()

    def segment(self, version: int | None = None) -> LogSegment:
        return load_log_segment(self.log, version)

    def state(self, version: int | None = None) -> ReplayedState:
        state = replay(self.log, self.segment(version))
        assert state, "nothing is bounded"
        return state


KINDS = ("classic", "multi-part", "v2-parquet", "v2-json", "v2-classic", "v2-json-whole")
