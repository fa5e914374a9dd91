"""A look at each data file before it is registered: its size, its footer, and whether readers will agree with Delta.

Runs in the daemon for what a commit adds and in Spark tasks for a first sync.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput, SyncError, Unsupported
from daemon.storage import FileIOStorage
from daemon.translate.calendar import check_calendar, check_int96
from daemon.translate.data_files import metrics_of
from daemon.translate.file_schema import FileSchema, Path, check_file_schema
from daemon.translate.metrics import Metrics
from daemon.translate.schema import TableSchema

# Requests for footers wait on the store, not on the processor.
LOOKS_AT_ONCE = 16
# PyIceberg 0.12 takes these for the end of a path, and reads another file.
CUT_AT = "#?"


@dataclass
class Inspector:
    """Looks at data files of one table. `may_overflow` lets INT96 timestamps pass that some readers cannot show."""

    storage: FileIOStorage
    table: TableSchema
    may_overflow: bool = False
    # Files of one writer have one schema: each is checked once. By their bytes, as Arrow compares without field ids.
    _checked: dict[bytes, FileSchema] = field(default_factory=dict)

    def inspect(self, adds: Mapping[str, AddFile]) -> Inspection:
        """The metrics of every file. `adds` goes by plain absolute path.

        Raises `ObjectMissing`, `CorruptInput` for a file that is not the one that was added, `Unsupported` for one that
        some reader would show otherwise than Delta does.
        """
        if len(adds) < LOOKS_AT_ONCE:
            looked = [self._look(path, add) for path, add in adds.items()]
        else:
            with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
                looked = list(pool.map(self._look, adds, adds.values()))
        return Inspection(
            metrics={path: metrics for path, (metrics, _) in zip(adds, looked, strict=True)},
            hidden=frozenset().union(*(file.hidden for _, file in looked)),
        )

    def _look(self, path: str, add: AddFile) -> tuple[Metrics, FileSchema]:
        check_path(path)
        with self.storage.open_input(path) as file:
            if file.size() != add.size:
                raise CorruptInput(
                    f"the data file has {file.size()} bytes, the Delta log says {add.size}",
                    path=path,
                    hint="Restore the file, or remove it from Delta's log (FSCK REPAIR, or a delete that covers it).",
                )
            try:
                footer = pq.read_metadata(file)
                schema = footer.schema.to_arrow_schema().remove_metadata()
            except (pa.ArrowInvalid, OSError) as error:
                raise CorruptInput(
                    f"the file has no Parquet footer: {error}", path=path, hint="Restore the file on the Delta side."
                ) from error
        metrics = metrics_of(add, path, self.table, footer.num_rows)
        try:
            key = schema.serialize().to_pybytes()
            found = self._checked.get(key)
            if found is None:
                found = self._checked[key] = check_file_schema(schema, self.table)
            check_calendar(footer.metadata or {}, found, metrics, self.table)
            if not self.may_overflow:
                check_int96(found, metrics, self.table)
        except SyncError as error:
            raise error.located(path=path) from error.__cause__
        return metrics, found


@dataclass(frozen=True)
class Inspection:
    """What was seen. `hidden` are columns of the files that Delta's schema does not have."""

    metrics: Mapping[str, Metrics]
    hidden: frozenset[Path]


def check_path(path: str) -> None:
    """Raise `Unsupported` for a path that PyIceberg would cut."""
    if any(sign in path for sign in CUT_AT):
        raise Unsupported(
            "the path has a '#' or a '?' in it, where PyIceberg cuts paths: it would read another file, or none",
            path=path,
            hint="Move the table to a location without these characters.",
        )
