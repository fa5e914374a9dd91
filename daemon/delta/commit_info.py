"""What a commit says of itself beyond its operation. Delta PROTOCOL.md, "Commit Provenance Information"."""

from __future__ import annotations

from typing import Any

import msgspec

from daemon.delta.commit_file import LINE_BYTES_MAX
from daemon.delta.log import DeltaLog
from daemon.store.locations import Span


class CommitInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Each may be any JSON."""

    timestamp: Any = None
    operation_parameters: Any = None
    operation_metrics: Any = None
    tags: Any = None

    def parameter(self, name: str) -> str | None:
        return _text_in(self.operation_parameters, name)

    def metric(self, name: str) -> str | None:
        return _text_in(self.operation_metrics, name)

    def tag(self, name: str) -> str | None:
        return _text_in(self.tags, name)


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    commit_info: CommitInfo | None = None


_decode_line = msgspec.json.Decoder(_Line).decode


def read_commit_info(log: DeltaLog, version: int) -> CommitInfo:
    """Read it from the first LINE_BYTES_MAX of the commit file; it is empty if there is none that can be read. Raises
    what `storage` raises.
    """
    for line in log.storage.read(log.commit_path(version), Span(0, LINE_BYTES_MAX)).split(b"\n"):
        try:
            if b'"commitInfo"' in line and (found := _decode_line(line).commit_info):
                return found
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return CommitInfo()


def _text_in(values: object, name: str) -> str | None:
    found = values.get(name) if isinstance(values, dict) else None
    return found if isinstance(found, str) else None
