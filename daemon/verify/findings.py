"""What a verification found in a part of a table, and which part is next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from random import randrange
from typing import TYPE_CHECKING, Any
from zlib import crc32

from msgspec.structs import asdict

from daemon.errors import SyncError
from state import SHARES, Difference, Differences, ProofRecord

if TYPE_CHECKING:
    from daemon.config.settings import VerifySettings

# The first differences of each kind are named; all of them are counted.
NAMED_MAX = 5
POSITIONS_NAMED_MAX = 10
# A table with more data files is compared in parts, whose records are in memory, some kilobytes each. For the deeper
# levels, Spark reads the whole table in each part.
FILES_AT_ONCE = 20_000


class Level(StrEnum):
    """How deep a verification goes. Each level includes those before it."""

    METADATA = "metadata"  # files, counts, partitions, bounds and delete files, from metadata and footers
    BITMAPS = "bitmaps"  # the positions of the rows that Spark's Iceberg reader returns
    ROWS = "rows"  # the values of all rows, column by column


DEPTH = {level: depth for depth, level in enumerate(Level)}


class Fault(StrEnum):
    """The kinds of differences."""

    SCHEMA = "wrong schema"
    FILE_MISSING = "data file missing"
    FILE_SURPLUS = "data file too many"
    FILE_TWICE = "data file twice"
    FILE_DAMAGED = "data file damaged"
    FILE_SCHEMA = "data file with other columns"
    SIZE = "wrong size"
    ROW_COUNT = "wrong row count"
    PARTITION = "wrong partition"
    NULL_COUNT = "wrong null count"
    BOUNDS = "wrong bounds"
    ROW_ID = "wrong first row id"
    DELETED_COUNT = "wrong number of deleted rows"
    DELETE_FILE = "delete file without effect"
    DELETE_FILE_DAMAGED = "delete file damaged"
    VECTOR_NOT_ALONE = "deletion vector not alone"
    ROWS_MISSING = "rows missing"
    ROWS_SURPLUS = "deleted rows shown"
    VALUES = "different values"
    UNREADABLE = "table not readable"
    LIVE_TWICE = "data file twice in Delta"


OF_THE_TABLE = {Fault.SCHEMA, Fault.UNREADABLE, Fault.LIVE_TWICE}


@dataclass
class Findings:
    """The differences so far. Of each kind at most NAMED_MAX are kept."""

    named: list[Difference] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, difference: Difference) -> None:
        self.counts[difference.fault] += 1
        if self.counts[difference.fault] <= NAMED_MAX:
            self.named.append(difference)

    def joined(self, earlier: Differences) -> Differences:
        """Add these differences to those of an earlier part. Each part finds those of the whole table."""
        counts = Counter(earlier.counts) + self.counts
        for fault in OF_THE_TABLE & counts.keys():
            counts[fault] = max(self.counts[fault], earlier.counts.get(fault, 0))
        named: list[Difference] = [*earlier.first, *self.named]
        first = [[each for each in named if each.fault == fault][:NAMED_MAX] for fault in counts]
        return Differences(dict(counts), tuple(each for some in first for each in some))


@dataclass(frozen=True)
class Proof:
    """The result for one table: `files` were compared, with their live `rows`, of `files_total`; `seconds` by level."""

    level: Level
    version: int
    snapshot_id: int
    files: int
    files_total: int
    rows: int
    findings: Findings
    seconds: dict[Level, float]

    @property
    def is_right(self) -> bool:
        return not self.findings.counts


@dataclass(frozen=True)
class Sample:
    """A part of a table's files, chosen by a hash of their paths: those whose hash is in `first` to `end` of SHARES."""

    first: int = 0
    end: int = SHARES

    @classmethod
    def of(cls, per_cent: float) -> Sample:
        """A random part of the files: another one in each round."""
        width = max(1, round(SHARES * per_cent / 100))
        first = randrange(SHARES - width + 1)
        return cls(first, first + width)

    def has(self, path: str) -> bool:
        return self.first <= crc32(path.encode()) % SHARES < self.end

    def condition(self, column: str) -> str:
        """Return the same as `has`, for the paths in a column, as a condition in Spark's SQL."""
        share = f"crc32(cast({column} AS binary)) % {SHARES}"
        return f"{share} >= {self.first} AND {share} < {self.end}"

    def split(self, parts: int) -> list[Sample]:
        """Divide the sample into up to `parts` smaller ones of about the same size."""
        width = self.end - self.first
        bounds = [self.first + width * number // parts for number in range(parts + 1)]
        return [Sample(first, end) for first, end in pairwise(bounds) if first < end]


@dataclass(frozen=True)
class Scope:
    """What is compared: how deep, which files, and the Delta version; None for the one that is shown now."""

    level: Level = Level.BITMAPS
    sample: Sample = Sample()
    at: int | None = None


def next_part(last: ProofRecord | None, settings: VerifySettings, files: int, *, now_ms: int) -> Sample:
    """Return the part to compare after `last`, of a table of this many data files. After a whole pass the first one.

    It is what has become due since `last` began: all of the table in a period, however late each part is.
    """
    first = last.covered % SHARES if last and _is_enough(last, settings) else 0
    since_ms = now_ms - last.at_ms if last and first else 0
    due = max(SHARES / _parts(files), SHARES * since_ms / (settings.period_s * 1000))
    return Sample(first, min(SHARES, first + math.ceil(due)))


def _is_enough(last: ProofRecord, settings: VerifySettings) -> bool:
    return DEPTH[Level(last.level)] >= DEPTH[Level(settings.level)]


def is_outweighed(last: ProofRecord | None, level: Level) -> bool:
    """Return whether a deeper verification found differences: one of this level cannot say that they are gone."""
    return last is not None and bool(last.differences.counts) and DEPTH[Level(last.level)] > DEPTH[level]


def due_ms(last: ProofRecord | None, settings: VerifySettings, files: int, *, now_ms: int) -> float:
    """Return when the next part is due, epoch milliseconds. Never, if it would be outweighed."""
    if is_outweighed(last, Level(settings.level)):
        return math.inf
    # A time in the future means that the clock was ahead.
    if last is None or not _is_enough(last, settings) or last.at_ms > now_ms:
        return 0
    return last.at_ms + settings.period_s * 1000 / _parts(files)


def add_part(last: ProofRecord | None, proof: Proof, part: Sample, *, at_ms: int) -> ProofRecord:
    """Return the table's record after `part` was compared, from `at_ms` on."""
    before = last if last and last.level == proof.level and 0 < last.covered == part.first else None
    found = proof.findings.joined(before.found if before else Differences())
    is_complete = part.end >= SHARES and (part.first == 0 or before is not None)
    differences = last.differences if last else Differences()
    complete_at_ms = last.complete_at_ms if last and DEPTH[Level(last.level)] >= DEPTH[proof.level] else None
    return ProofRecord(
        level=proof.level,
        at_ms=at_ms,
        version=proof.version,
        snapshot_id=proof.snapshot_id,
        files_total=proof.files_total,
        files=proof.files + (before.files if before else 0),
        covered=part.end,
        complete_at_ms=at_ms if is_complete else complete_at_ms,
        found=found,
        differences=found if is_complete or found.counts else differences,
    )


def _parts(files: int) -> int:
    return max(1, math.ceil(files / FILES_AT_ONCE))


def hint_for(table: str, faults: Collection[str]) -> str:
    """Return what a person can do about differences of these kinds."""
    if Fault.FILE_DAMAGED in faults:
        return (
            "Restore the damaged or missing data files, or remove them from the Delta table: a resync cannot. Then "
            f"`dvsync verify {table}`, and `dvsync resync {table}` if something still differs."
        )
    if Fault.LIVE_TWICE in faults:
        return (
            f"Iceberg cannot show that: OPTIMIZE the Delta table, then `dvsync resync {table}`. If a file is still "
            "there twice, the next sync says what to do."
        )
    return f"`dvsync resync {table}` rewrites the Iceberg table from Delta."


def as_json_object(table: str, proof: Proof | SyncError) -> dict[str, Any]:
    """Return the result for one table as `dvsync verify --json` prints it."""
    if isinstance(proof, SyncError):
        error = {"kind": proof.kind, "message": str(proof), "hint": proof.hint}
        return {"table": table, "is_right": None, "error": error}
    return {
        "table": table,
        "is_right": proof.is_right,
        "level": proof.level,
        "delta_version": proof.version,
        "snapshot_id": proof.snapshot_id,
        "files": proof.files,
        "files_total": proof.files_total,
        "rows": proof.rows,
        "seconds": {level.value: round(seconds, 3) for level, seconds in proof.seconds.items()},
        "differences": dict(proof.findings.counts),
        "first_differences": [asdict(difference) for difference in proof.findings.named],
    }
