"""Decides which mirror of a data file is the cheapest one that all readers read as Delta does, if it needs one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow.parquet as pq

from daemon.errors import CorruptInput, MirrorKind, Unsupported
from daemon.mirror.compact import Struct
from daemon.mirror.footer import mend_footer
from daemon.mirror.parquet import as_arrow
from daemon.store.storage import check_path
from daemon.translate.schema import TableSchema

# Of a list of two levels whose elements are lists of three, as Spark's legacy format has them, Arrow says that
# "LIST-annotated groups must not be repeated".
NOT_OPENED: Final = "the file has lists of an older layout in one another: Arrow, and so PyIceberg, does not open it"


@dataclass(frozen=True)
class MirrorPlan:
    """The mirror that a file needs, and why. Only one of kind `footer` has a footer: that of the mirror."""

    kind: MirrorKind
    reason: str
    footer: Struct | None = None


def plan_mirror(
    path: str, footer: Struct, table: TableSchema, check: Callable[[pq.FileMetaData], object]
) -> MirrorPlan | None:
    """Return the mirror that the file at `path` needs; None if readers show the file itself as Delta does.

    `check` is the inspection of a file, which raises `Unsupported` (`Inspector.check_file`). A new footer is inspected
    like one that is in a file, so a mirror with it will be accepted. Raises what `check` raises if no mirror lifts it,
    then `lifted_by` is None; and as `mend_footer`.
    """
    cut = _refusal(lambda: check_path(path))
    refused: Unsupported | CorruptInput | None
    try:
        as_read = as_arrow(footer)
    except CorruptInput as error:
        refused = error
    else:
        refused = _refusal(lambda: check(as_read))
    if refused is None:
        return MirrorPlan("copy", cut.message) if cut else None
    if isinstance(refused, Unsupported) and refused.lifted_by == "rewrite":
        return MirrorPlan("rewrite", refused.message)
    mended = mend_footer(footer, table)
    still = _refusal(lambda: check(as_arrow(mended)))
    if still is None:
        return MirrorPlan("footer", NOT_OPENED if isinstance(refused, CorruptInput) else refused.message, mended)
    if still.lifted_by == "rewrite":
        return MirrorPlan("rewrite", still.message)
    raise still.lift_by(None)


def _refusal(check: Callable[[], object]) -> Unsupported | None:
    """Return why a check refuses the file. Raises it if no mirror helps."""
    try:
        check()
    except Unsupported as error:
        if error.lifted_by is None:
            raise
        return error
    return None
