"""The error kinds of dvsync. Each kind stands for one reaction of the daemon or of the operator.

Every error says what happened and where (table, Delta version, file, byte offset) and carries a hint of one
sentence. All packages raise these errors; `scheduling` and `cli` react to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from shlex import quote
from typing import ClassVar, Literal, Self

from daemon.masking import scrub
from daemon.texts import TEXT_CHARACTERS_MAX, excerpt

_BARE_COMMAND = re.compile("`dvsync (?P<verb>resync|resume|expire)`(?: the table)?")


def as_shown(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Make `text` safe to show: secrets are masked, its length is limited, control characters are escaped."""
    return excerpt(scrub(text), characters_max, keep="\n")


class SyncError(Exception):
    """The base class of all kinds; only subclasses are raised. Users see the class name as `kind`."""

    characters_max: ClassVar[int] = TEXT_CHARACTERS_MAX
    parks: ClassVar[bool] = False
    # True: a newer version of the Delta table may lack the cause, so the table is tried again once there is one.
    may_end_by_version: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        table: str | None = None,
        version: int | None = None,
        path: str | None = None,
        offset: int | None = None,
    ) -> None:
        # A library's message may quote credentials, and text from a Delta log may contain anything.
        self.message = as_shown(message, self.characters_max)
        super().__init__(self.message)
        self.hint = as_shown(hint)
        self.table = table
        self.version = version
        self.path = path
        self.offset = offset

    @property
    def kind(self) -> str:
        return type(self).__name__

    def located(self, *, table: str | None = None, version: int | None = None, path: str | None = None) -> Self:
        """Add places that an inner package did not know; set ones stay. The hint's commands get the table's name."""
        self.table = self.table or table
        if self.table:
            name = quote(self.table)
            self.hint = _BARE_COMMAND.sub(lambda bare: f"`dvsync {bare['verb']} {name}`", self.hint)
        self.version = self.version if self.version is not None else version
        self.path = self.path or path
        return self

    def __str__(self) -> str:
        places = (("table", self.table), ("version", self.version), ("file", self.path), ("offset", self.offset))
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        return f"{self.message} [{as_shown(where)}]" if where else self.message

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        # Errors cross a process boundary when the kernel runs on Spark's workers: keep every field.
        fields = {name: getattr(self, name) for name in ("hint", "table", "version", "path", "offset")}
        return partial(type(self), self.message, **fields), ()


@contextmanager
def errors_at(*, version: int | None = None, path: str | None = None) -> Iterator[None]:
    """Add places to the errors of the block, as `SyncError.located` does."""
    try:
        yield
    except SyncError as error:
        raise error.located(version=version, path=path) from error.__cause__


class Retryable(SyncError):
    """A temporary fault: the daemon backs off and tries again."""


class ObjectStoreAway(Retryable):
    """The store of the Delta or Iceberg files does not answer."""


class CatalogAway(Retryable):
    """The Iceberg catalog does not answer, or with older metadata than it had."""


class SourceCatalogAway(Retryable):
    """The catalog of the Delta table does not answer, or makes no sense."""


class Unauthorized(SourceCatalogAway):
    """The catalog of the Delta table refuses our token, or the right to read the table."""


class StateStoreAway(Retryable):
    """The state database cannot be read or written (locked, full, away)."""


class StateInUse(StateStoreAway):
    """Another process works on the state database: it holds the lease."""


class PipelineAway(Retryable):
    """Spark could not be started, or died while it worked."""


class TargetHeld(Retryable):
    """Another dvsync, with its own state database, already keeps the Iceberg table in step."""


class CommitIncomplete(Retryable):
    """A Delta commit file ends in the middle of a line, or grew while dvsync read it: its writer has not finished."""


class CommitConflict(Retryable):
    """Another writer committed first; our commit certainly did not land."""


class ObjectMissing(Retryable):
    """A file that a Delta commit names is not there."""

    may_end_by_version = True


class LogMissing(ObjectMissing):
    """There is no Delta log at a table's source: the table is gone, or was never there."""


class CommitOutcomeUnknown(SyncError):
    """Our Iceberg commit may or may not have landed: the next cycle searches the table for our marker first."""


class ResyncNeeded(SyncError):
    """dvsync cannot follow the Delta log commit by commit from here: it compares whole states."""


class StateMismatch(ResyncNeeded):
    """The state store is wrong about the Iceberg table: dvsync rebuilds the table's state first."""


class ReplacementNeeded(ResyncNeeded):
    """Committing a difference cannot repair the Iceberg table (it shows a file twice, say): it is rewritten."""


class Parking(SyncError):
    """Retrying cannot help until a person has acted: the table is parked."""

    parks = True


class TargetChanged(Parking):
    """Someone else committed to the Iceberg table, or rolled it back: the table is parked."""


class TargetUnreadable(Parking):
    """A metadata file, manifest or manifest list of the Iceberg table is damaged: the table is parked."""


class CorruptInput(Parking):
    """A length, checksum, cardinality or action of the Delta table is wrong: the table is parked."""

    may_end_by_version = True


class FileLiveTwice(CorruptInput):
    """Delta shows a data file more than once, or some readers of Delta do: Iceberg cannot, and Spark is not asked."""


class AccountMismatch(Parking):
    """The totals of a new snapshot differ from Delta's totals: nothing is committed, the table is parked."""


class ProofFailed(Parking):
    """A verification found differences, and the configuration wants the table parked then."""


class SchemaChanged(Parking):
    """The Delta table's columns or partitioning changed, and the configuration wants the table parked then."""


# What a mirror of a data file is: its bytes with a new Parquet footer; its bytes under another name; its rows written
# again. Cheaper ones come first.
MirrorKind = Literal["footer", "copy", "rewrite"]
MIRRORS_HINT = " Or let dvsync show mirrors of such files, by the setting mirrors: "
MIRRORS_COST = {
    "footer": "which copies their bytes",
    "copy": "which copies their bytes",
    "rewrite": "which reads their rows and writes them again",
}


class Unsupported(Parking):
    """dvsync does not support a Delta feature or an Iceberg format version: the table is parked.

    `lifted_by` is the kind of mirror of the data file that readers would read as Delta does, unless the file has other
    faults, too. None: no mirror helps.
    """

    may_end_by_version = True

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        table: str | None = None,
        version: int | None = None,
        path: str | None = None,
        offset: int | None = None,
        lifted_by: MirrorKind | None = None,
    ) -> None:
        super().__init__(message, hint=hint, table=table, version=version, path=path, offset=offset)
        self.lifted_by = lifted_by

    def lift_by(self, kind: MirrorKind | None) -> Self:
        """Set what lifts the refusal of a data file, and let the hint name the setting for it."""
        self.lifted_by = kind
        self.hint = self.hint.partition(MIRRORS_HINT)[0] + (
            f"{MIRRORS_HINT}{kind}, {MIRRORS_COST[kind]}." if kind else ""
        )
        return self

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        make, arguments = super().__reduce__()
        return partial(make, lifted_by=self.lifted_by), arguments


class InternalError(SyncError):
    """An exception that is none of these kinds: a bug in dvsync."""


class ConfigInvalid(Parking):
    """`config.yaml` or the environment is wrong: the daemon refuses to start."""

    # The message has one line for each fault, and the operator must see all of them.
    characters_max = 1_000_000
