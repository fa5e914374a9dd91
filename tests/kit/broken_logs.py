"""Delta logs that nobody can read, made by hand: each fault breaks a healthy table, before its first sync or after it.

What each comes to is told beside it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.handmade import COLUMNS, HandmadeTable
from tests.kit.logs import CHECKPOINT, rows_of

Action = dict[str, Any]
# A file that was not touched for so long is nobody's unfinished work.
LONG_AGO_S = 1_000_000_000
FILES = 3


def healthy(folder: Path) -> HandmadeTable:
    """A table at version 3, with a file of six rows from each of its commits and deletions in the last."""
    table = HandmadeTable(folder)
    table.create()
    for number in range(FILES):
        append(table, deleted=[1] if number == FILES - 1 else [])
    return table


def append(table: HandmadeTable, *, deleted: Sequence[int] = ()) -> int:
    first = 10 * len(table.rows)
    path = table.write_file([(first + number, "x", f"v{number}") for number in range(6)])
    return table.commit([table.add(path, deleted=deleted)])


@dataclass(frozen=True)
class Fault:
    """`breaks` is done to a table. Regular expressions of the error's message: `says` at the first sync, `follows_says`
    while following, and `local_says` at the first sync where dvsync may not ask Spark, if these differ."""

    kind: str
    says: str
    breaks: Callable[[HandmadeTable], object]
    follows_says: str | None = None
    local_says: str | None = None
    at_first: bool = True
    while_following: bool = True


def gap(table: HandmadeTable) -> None:
    table.version += 1
    append(table)


def beginning_lost(table: HandmadeTable) -> None:
    table.commit_path(0).unlink()
    table.commit_path(1).unlink()


def without_first(kind: str, table: HandmadeTable) -> None:
    """The log begins anew, with a version 0 that lacks the action of this kind."""
    actions = [{"protocol": table.protocol()}, {"metaData": table.metadata()}]
    shutil.rmtree(table.folder / "_delta_log")
    (table.folder / "_delta_log").mkdir()
    table.version = -1
    table.commit([action for action in actions if kind not in action])


def checkpoint(kinds: Sequence[str], table: HandmadeTable, *, end: int = 0) -> None:
    """Two more commits, and a checkpoint that names these kinds of actions in place of all commits but the last; `end`
    bytes of it are missing."""
    live = []
    for _ in range(2):
        append(table)
        live = list(table.live.values())
    actions: list[Action] = [{"protocol": table.protocol()}, {"metaData": table.metadata()}]
    actions = [action for action in actions if not kinds or next(iter(action)) in kinds]
    actions += [{"add": add} for add in live]
    file = table.folder / "_delta_log" / f"{table.version:020d}.checkpoint.parquet"
    pq.write_table(pa.Table.from_pylist(rows_of(actions), CHECKPOINT), file)
    file.write_bytes(file.read_bytes()[: -end or None])
    for version in range(table.version):
        table.commit_path(version).unlink(missing_ok=True)


def checkpoint_gone(table: HandmadeTable) -> None:
    """`_last_checkpoint` names a version whose checkpoint and commits are missing."""
    for _ in range(2):
        append(table)
    named = table.version - 1
    pointer = {"version": named, "size": 5}
    (table.folder / "_delta_log" / "_last_checkpoint").write_text(json.dumps(pointer))
    for version in (named - 1, named):
        table.commit_path(version).unlink()


def unfinished(change: Callable[[bytes], bytes], table: HandmadeTable, *, after: int = 0) -> None:
    """A commit whose bytes are changed, and which nobody has touched for long; `after` it come so many others."""
    file = table.commit_path(append(table))
    for _ in range(after):
        append(table)
    file.write_bytes(change(file.read_bytes()))
    os.utime(file, (LONG_AGO_S, LONG_AGO_S))


def metadata_with(table: HandmadeTable, **fields: object) -> None:
    """A metadata with these fields; None leaves one out."""
    changed = {**table.metadata(), **fields}
    table.commit([{"metaData": {name: value for name, value in changed.items() if value is not None}}])


def properties_with(table: HandmadeTable, **properties: str) -> None:
    metadata_with(table, configuration={**table.metadata()["configuration"], **properties})


def column_of(kind: str, table: HandmadeTable) -> None:
    table.commit([{"metaData": table.metadata((*COLUMNS, ("extra", kind)))}])


def protocol_with(table: HandmadeTable, **fields: object) -> None:
    changed = {**table.protocol(), **fields}
    table.commit([{"protocol": {name: value for name, value in changed.items() if value is not None}}])


def features(names: Sequence[str], table: HandmadeTable, *, writers: Sequence[str] = ()) -> None:
    protocol_with(
        table, readerFeatures=["deletionVectors", *names], writerFeatures=["deletionVectors", *names, *writers]
    )


def coordinated(table: HandmadeTable) -> None:
    """Commits go through a coordinator from now on; the newest may be in `_delta_log/_commits` only."""
    features(["vacuumProtocolCheck"], table, writers=["coordinatedCommits-preview", "inCommitTimestamp"])
    properties_with(table, **{"delta.coordinatedCommits.commitCoordinator-preview": "dynamodb"})


def add_at(path: str, table: HandmadeTable) -> None:
    """An add whose path is as it is given; the file lies where a reader would find it that takes the path for plain."""
    action = table.add(table.write_file([(100, "x", "v")], name="placed"))
    place = table.folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    (table.folder / "placed.parquet").rename(place)
    table.commit([{"add": {**action["add"], "path": path}}])


PATH = "Spark cannot read the table: URISyntaxException: .* at index \\d+: "
FOLLOWED_PATH = "Delta cannot read the path '.*' of a data file: "
NO_PROTOCOL = "no protocol action could be recovered from the log"
NO_METADATA = "no metaData action could be recovered from the log"
FAULTS = {
    "gap": Fault("CorruptInput", r"the log has a gap: commit 4 is missing, 5 is there, .*", gap),
    "beginning-lost": Fault(
        "CorruptInput",
        "Unable to reconstruct state at version 3 .* truncated",
        beginning_lost,
        local_says="the log has a gap: commit 0 is missing, 2 is there",
        while_following=False,
    ),
    "no-protocol": Fault(
        "CorruptInput", "protocol .* could not be recovered", partial(without_first, "protocol"), local_says=NO_PROTOCOL
    ),
    "no-metadata": Fault(
        "CorruptInput", "metadata .* could not be recovered", partial(without_first, "metaData"), local_says=NO_METADATA
    ),
    "checkpoint-without-protocol": Fault(
        "CorruptInput", "protocol .* could not be recovered", partial(checkpoint, ["metaData"]), local_says=NO_PROTOCOL
    ),
    "checkpoint-without-metadata": Fault(
        "CorruptInput", "metadata .* could not be recovered", partial(checkpoint, ["protocol"]), local_says=NO_METADATA
    ),
    "checkpoint-cut": Fault(
        "CorruptInput",
        "is not a Parquet file",
        partial(checkpoint, [], end=20),
        local_says="the checkpoint cannot be read: ",
    ),
    "checkpoint-gone": Fault(
        "CorruptInput",
        "Couldn't find all part files of the checkpoint version: 4",
        checkpoint_gone,
        "the log has a gap: commit 4 is missing, 5 is there",
        "the log has a gap: commit 3 is missing, 5 is there",
    ),
    "cut": Fault("CorruptInput", "the commit file ends inside a line", partial(unfinished, lambda data: data[:-20])),
    "cut-in-the-middle": Fault(
        "CorruptInput", "the commit file ends inside a line", partial(unfinished, lambda data: data[:-20], after=2)
    ),
    "empty": Fault("CorruptInput", "the commit file is empty", partial(unfinished, lambda data: b"")),
    "empty-in-the-middle": Fault(
        "CorruptInput", "the commit file is empty", partial(unfinished, lambda data: b"", after=2)
    ),
    "no-json": Fault(
        "CorruptInput", "line 1 is not JSON", partial(unfinished, lambda data: b"\xff\xfe{" + data, after=1)
    ),
    "metadata-without-schema": Fault(
        "CorruptInput", "required field `schemaString`", partial(metadata_with, schemaString=None)
    ),
    "metadata-without-configuration": Fault(
        "CorruptInput", "required field `configuration`", partial(metadata_with, configuration=None)
    ),
    "schema-cut": Fault(
        "CorruptInput", "the schema is not JSON", partial(metadata_with, schemaString='{"type": "struct"')
    ),
    "schema-of-another-shape": Fault(
        "CorruptInput", "the schema is not a struct", partial(metadata_with, schemaString="[]")
    ),
    "decimal-too-wide": Fault(
        "CorruptInput", "precision must be between 1 and 38", partial(column_of, "decimal(50,2)")
    ),
    "decimal-scale": Fault("CorruptInput", "scale exceeds its precision", partial(column_of, "decimal(5,10)")),
    "geometry": Fault("Unsupported", "column extra has the type geometry", partial(column_of, "geometry(OGC:CRS84)")),
    "geography": Fault("Unsupported", "column extra has the type geography", partial(column_of, "geography")),
    "unknown-type": Fault("Unsupported", "column extra has the type hyperlink", partial(column_of, "hyperlink")),
    "catalog-managed": Fault(
        "Unsupported",
        "reader feature catalogManaged is not supported",
        partial(features, ["catalogManaged", "vacuumProtocolCheck"], writers=["inCommitTimestamp"]),
    ),
    "catalog-managed-alone": Fault(
        "Unsupported", "reader feature catalogManaged is not supported", partial(features, ["catalogManaged"])
    ),
    "catalog-owned": Fault(
        "Unsupported",
        "reader feature catalogOwned-preview is not supported",
        partial(features, ["catalogOwned-preview", "vacuumProtocolCheck"], writers=["inCommitTimestamp"]),
    ),
    "commit-coordinator": Fault("Unsupported", "commits go through a coordinator", coordinated),
    "unknown-feature": Fault("Unsupported", "reader feature timeTravel is not", partial(features, ["timeTravel"])),
    "reader-version": Fault(
        "Unsupported", "reader version 99 is not known", partial(protocol_with, minReaderVersion=99)
    ),
    "features-without-versions": Fault(
        "CorruptInput", "reader version 1 with a list of reader features", partial(protocol_with, minReaderVersion=1)
    ),
    "versions-without-features": Fault(
        "CorruptInput",
        "reader version 3 without a list of reader features",
        partial(protocol_with, readerFeatures=None),
    ),
    "property-without-feature": Fault(
        "CorruptInput",
        "the table uses domainMetadata, rowTracking, and its protocol does not list",
        partial(properties_with, **{"delta.enableRowTracking": "true"}),
    ),
    "feature-for-readers-only": Fault(
        "CorruptInput",
        "the table uses deletionVectors, and its protocol does not list",
        partial(protocol_with, writerFeatures=[]),
    ),
    "column-mapping-mode": Fault(
        "Unsupported",
        "column mapping mode sideways is not known",
        partial(properties_with, **{"delta.columnMapping.mode": "sideways"}),
    ),
    "colon-in-path": Fault("CorruptInput", PATH, partial(add_at, "time=10:00/part.parquet"), FOLLOWED_PATH + "a ':'"),
    "space-in-path": Fault("CorruptInput", PATH, partial(add_at, "a b.parquet"), FOLLOWED_PATH + "' '"),
    "percent-in-path": Fault("CorruptInput", PATH, partial(add_at, "100%zz.parquet"), FOLLOWED_PATH + "'%'"),
    "bracket-in-path": Fault("CorruptInput", PATH, partial(add_at, "a[1].parquet"), FOLLOWED_PATH + "'\\['"),
}
