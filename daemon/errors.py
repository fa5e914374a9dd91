"""The error kinds of dvsync: each kind is one thing that the daemon or the operator does about it.

Every error names what happened and where (table, Delta version, file, byte offset) and carries a hint of one
sentence. All packages raise them; `scheduling` and `cli` decide what follows.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

from daemon.masking import scrub
from daemon.texts import TEXT_CHARACTERS_MAX, excerpt


def as_told(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """`text` as it may be shown: its secrets masked, not too long, and nothing in it but line breaks to obey."""
    return excerpt(scrub(text), characters_max, keep="\n")


class SyncError(Exception):
    """Base of all kinds; never raised itself. `kind` is the word that users see."""

    characters_max: ClassVar[int] = TEXT_CHARACTERS_MAX
    # Trying again changes nothing until a person has acted.
    parks: ClassVar[bool] = False

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
        # What libraries say may quote the credentials that they were given, and what a log says may be anything.
        self.message = as_told(message, self.characters_max)
        super().__init__(self.message)
        self.hint = as_told(hint)
        self.table = table
        self.version = version
        self.path = path
        self.offset = offset

    @property
    def kind(self) -> str:
        return type(self).__name__

    def located(self, *, table: str | None = None, version: int | None = None, path: str | None = None) -> Self:
        """Fill in the places that an inner package could not know; what it did say stays."""
        self.table = self.table or table
        self.version = self.version if self.version is not None else version
        self.path = self.path or path
        return self

    def __str__(self) -> str:
        places = (("table", self.table), ("version", self.version), ("file", self.path), ("offset", self.offset))
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        return f"{self.message} [{as_told(where)}]" if where else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross a process boundary when the kernel runs on Spark's workers: keep every field.
        places: dict[str, Any] = {
            "table": self.table,
            "version": self.version,
            "path": self.path,
            "offset": self.offset,
        }
        return partial(type(self), self.message, hint=self.hint, **places), ()


class Retryable(SyncError):
    """Something is away or in the way for now: back off and try again."""


class ObjectStoreAway(Retryable):
    """The store that holds the Delta or the Iceberg files does not answer."""


class CatalogAway(Retryable):
    """The Iceberg catalog does not answer."""


class StateStoreAway(Retryable):
    """The state database cannot be read or written (locked, full, away)."""


class PipelineAway(Retryable):
    """Spark could not be started, or died while it worked."""


class TargetHeld(Retryable):
    """Another dvsync, with a state database of its own, keeps the Iceberg table in step."""


class CommitIncomplete(Retryable):
    """A Delta commit file ends in the middle of a line, or grew while it was read: it is still being written."""


class CommitConflict(Retryable):
    """Another writer was first; our commit certainly did not land."""


class ObjectMissing(Retryable):
    """A file that a Delta commit names is not there."""


class CommitOutcomeUnknown(SyncError):
    """Our Iceberg commit may or may not have landed: look for our marker before anything else."""


class ResyncNeeded(SyncError):
    """The Delta log cannot be followed step by step from here: compare whole states."""


class StateMismatch(ResyncNeeded):
    """The state store is wrong about the Iceberg table: what is remembered is rebuilt first."""


class ReplacementNeeded(ResyncNeeded):
    """The Iceberg table shows what no difference mends, such as a file twice: all of it is written anew."""


class TargetChanged(SyncError):
    """Someone else committed to the Iceberg table, or rolled it back: the table is parked."""

    parks = True


class TargetUnreadable(SyncError):
    """A metadata file, manifest or manifest list of the Iceberg table is not what was written: the table is parked."""

    parks = True


class CorruptInput(SyncError):
    """A length, checksum, cardinality or action does not hold: the table is parked."""

    parks = True


class AccountMismatch(SyncError):
    """What a snapshot would show does not add up to what Delta says: nothing is committed, the table is parked."""

    parks = True


class Unsupported(SyncError):
    """A Delta feature or an Iceberg format version that is not handled: the table is parked."""

    parks = True


class InternalError(SyncError):
    """An exception that is none of these kinds: a bug in dvsync."""


class ConfigInvalid(SyncError):
    """`config.yaml` or the environment is wrong: refuse to start."""

    parks = True
    # A line a fault, each of which the operator must see.
    characters_max = 1_000_000
