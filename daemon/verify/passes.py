"""How a table is verified in parts: which part is next and when, and what the parts so far amount to."""

from __future__ import annotations

import math

from daemon.config.settings import VerifySettings
from daemon.verify.findings import Level, Proof, Sample
from state import SHARES, Differences, ProofRecord

# A table with more data files is compared in parts, whose records are in memory, some kilobytes each. For the deeper
# levels, Spark reads the whole table in each part.
FILES_AT_ONCE = 20_000

DEPTH = {level: depth for depth, level in enumerate(Level)}


def next_part(last: ProofRecord | None, settings: VerifySettings, files: int, *, now_ms: int) -> Sample:
    """Return the part to compare after `last`, of a table of this many data files. After a whole pass the first one.

    It is what has become due since `last` began: all of the table in a period, however late each part is.
    """
    first = last.covered % SHARES if last and _is_enough(last, settings) else 0
    since_ms = now_ms - last.at_ms if last and first else 0
    due = max(SHARES / _parts(files), SHARES * since_ms / (settings.period_s * 1000))
    return Sample(first, min(SHARES, first + math.ceil(due)))


def _is_enough(last: ProofRecord, settings: VerifySettings) -> bool:
    """Return whether `last` went as deep as the settings ask."""
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
