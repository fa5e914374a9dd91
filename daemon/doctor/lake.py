"""The summary of many diagnoses: why tables are refused, what their first syncs read, and which readers fail."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from daemon.doctor.diagnosis import Diagnosis, Verdict, as_lines
from daemon.errors import SyncError
from daemon.texts import counted, some_of

# The column or columns that a message is about.
COLUMN = re.compile(r"\bcolumn (?!mapping\b)[^\s:,]+(, [^\s:,]+)*")


class Unexamined(msgspec.Struct, frozen=True):
    """A table that was not examined: a store, Spark or a file was away, or its pattern leaves it out; or a pattern."""

    source: str
    kind: str
    message: str
    hint: str


class Reason(msgspec.Struct, frozen=True):
    """Why tables are refused, what to do, and the sources of these tables. A table can have several reasons."""

    text: str
    hint: str
    tables: tuple[str, ...]


class SharedTrouble(msgspec.Struct, frozen=True):
    """A problem that these readers will have with each of these tables, by their sources."""

    readers: tuple[str, ...]
    text: str
    tables: tuple[str, ...]


class FirstSyncs(msgspec.Struct, frozen=True):
    """What the first syncs of the tables that can be followed read. `data_files` is the number of footers."""

    tables: int = 0
    data_files: int = 0
    rows: int = 0
    deletion_vectors: int = 0


class LakeDiagnosis(msgspec.Struct, frozen=True):
    """The diagnoses of tables, and their summary. `readers` has what troubles them in the tables that are followed.

    `passed_over` has the kind of each thing in a catalog that a pattern fits and that is no Delta table, by its name.
    """

    tables: tuple[Diagnosis, ...]
    unexamined: tuple[Unexamined, ...]
    reasons: tuple[Reason, ...]
    first_syncs: FirstSyncs
    readers: tuple[SharedTrouble, ...]
    passed_over: dict[str, str]

    @property
    def is_followed(self) -> bool:
        return not self.reasons and not self.unexamined


def summarize(
    examined: Sequence[tuple[str, Diagnosis | SyncError]], passed_over: Mapping[str, str] = MappingProxyType({})
) -> LakeDiagnosis:
    tables = tuple(each for _, each in examined if isinstance(each, Diagnosis))
    followed = [table for table in tables if table.is_followed]
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for table in tables:
        refusals = (each for each in table.findings if each.verdict is Verdict.REFUSED)
        # Without what differs from table to table: names of columns, versions and paths.
        keys = ((COLUMN.sub("a column", each.text.partition(" [")[0]), each.hint or "") for each in refusals)
        for key in dict.fromkeys(keys):
            reasons[key].append(table.source)
    troubles: dict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for table in followed:
        for trouble in table.readers:
            troubles[trouble.readers, trouble.text].append(table.source)
    errors = ((source, each) for source, each in examined if isinstance(each, SyncError))
    return LakeDiagnosis(
        tables,
        tuple(Unexamined(source, error.kind, str(error), error.hint) for source, error in errors),
        tuple(Reason(*key, tuple(sources)) for key, sources in sorted(reasons.items(), key=_by_weight)),
        FirstSyncs(
            len(followed),
            sum(table.data_files for table in followed),
            sum(table.rows for table in followed),
            sum(table.deletion_vectors for table in followed),
        ),
        tuple(SharedTrouble(*key, tuple(sources)) for key, sources in sorted(troubles.items(), key=_by_weight)),
        dict(passed_over),
    )


def _by_weight(item: tuple[object, list[str]]) -> tuple[int, object]:
    """What concerns the most tables comes first."""
    return -len(item[1]), item[0]


def lines_on(source: str, examined: Diagnosis | SyncError, *verdicts: Verdict) -> Sequence[str]:
    """What was found of one table, with the findings of these verdicts only."""
    if isinstance(examined, SyncError):
        return [f"{source}: could not be examined: {examined.kind}: {examined}", f"  {examined.hint}"]
    findings = tuple(finding for finding in examined.findings if finding.verdict in verdicts)
    return as_lines(msgspec.structs.replace(examined, findings=findings, readers=()))


def summary_lines(lake: LakeDiagnosis) -> Sequence[str]:
    patterns = [each.source for each in lake.unexamined if "*" in each.source]
    unexamined = [each.source for each in lake.unexamined if "*" not in each.source]
    count, syncs = len(lake.tables) + len(unexamined), lake.first_syncs
    lines = [f"{syncs.tables} of {count} tables can be followed."]
    for reason in lake.reasons:
        lines += [f"  {_counted(reason.tables)}: {reason.text}", f"    {reason.hint}"]
    if unexamined:
        lines.append(f"  {_counted(unexamined)}: could not be examined")
    if patterns:
        lines.append(f"  patterns that could not be listed: {', '.join(patterns)}")
    if syncs.tables:
        lines.append(
            f"First syncs read the footers of {counted(syncs.data_files, 'data file')} "
            f"({counted(syncs.rows, 'row')}) and {counted(syncs.deletion_vectors, 'deletion vector')}."
        )
    return [*lines, *reader_lines(lake.readers), *passed_over_lines(lake.passed_over)]


def reader_lines(troubles: Sequence[SharedTrouble]) -> Iterator[str]:
    if troubles:
        yield "Readers will have trouble with these tables:"
    for each in troubles:
        yield f"  {_counted(each.tables)}: {', '.join(each.readers)}: {each.text}"


def passed_over_lines(passed_over: Mapping[str, str]) -> Iterator[str]:
    """Yield a line on each catalog that has something that is no Delta table."""
    catalogs: dict[str, Counter[str]] = defaultdict(Counter)
    for name, kind in passed_over.items():
        catalogs[name.partition(":")[0]][kind] += 1
    for name, kinds in catalogs.items():
        yield f"source {name}: passed over {', '.join(counted(number, kind) for kind, number in kinds.most_common())}"


def _counted(sources: Sequence[str]) -> str:
    named = some_of([source.rstrip("/").rpartition("/")[2] for source in sources])
    return f"{len(sources)} ({named})"
