"""Snapshot expiry: removes old snapshots, and those that VACUUM made unreadable, from the Iceberg table's metadata.

No file is removed here: files that become unreferenced are marked as orphans, and `cleanup.py` removes them later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from math import ceil

from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot

from daemon.config.settings import MaintenanceSettings
from daemon.errors import ObjectStoreAway
from daemon.iceberg.manifests import read_manifest_list
from daemon.iceberg.marker import find_marker
from daemon.iceberg.properties import int_property
from daemon.iceberg.references import data_files_let_go
from daemon.iceberg.retention import RETENTION_MS, Retention, ended_tags, find_expired
from daemon.maintenance.cleanup import release_files
from daemon.mirror.substitution import find_mirror_name
from daemon.store.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.memory import find_record
from daemon.sync.outcomes import Shown, unchanged_outcome
from daemon.sync.transaction import Transaction
from daemon.translate.definition import RETENTIONS_S

# At most so many of the data files that a snapshot removed are probed. A sample is enough: VACUUM deletes all files
# that a Delta version removed, or none. Only if a snapshot shows several versions may VACUUM have deleted some of them.
PROBES_MAX = 100
SOURCE_FILES = 16  # if all of so many live files are missing, the store of the Delta table is not there
DAY_MS = 86_400_000
NOT_OURS = "not dvsync's"  # why a snapshot stays that somebody else committed


@dataclass(frozen=True)
class Expiry:
    """The result of an expiry, or of a dry run. `expired` are snapshot ids, the oldest first; of those in `unreadable`,
    data files are gone. `held` are unreadable snapshots that stay, each with the branch or tag that points at it, or
    `NOT_OURS`. `tags` are dvsync's own tags whose age is over.
    """

    expired: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    held: tuple[tuple[int, str], ...] = ()
    tags: tuple[str, ...] = ()


class Expirer:
    """Expires one table's snapshots. Reads the removed data files of each snapshot only once."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._let_go: dict[tuple[int, int], Sequence[tuple[str, int]]] = {}
        # The start of the period without a jump of the wall clock, and whether that period has lasted a day.
        self._steady_since_ms, self._steady_since_s = context.clock.now_ms(), context.clock.monotonic_s()
        self._is_steady = False

    def expire(self, *, dry_run: bool = False, probe: bool = True) -> Expiry:
        """Expire snapshots by age, by count and, with `probe`, because VACUUM has deleted their data files.

        Does nothing while a sync takes long, or if the table's current snapshot is not the recorded one. After an error
        nothing has changed, or the next sync finds out that the commit landed.
        """
        context = self._context
        table = context.target.find_table()
        if table is None:
            return Expiry()
        unreadable = self._find_unreadable(table) if probe else set()
        with context.hold_committing() as is_held:
            if not is_held:
                return Expiry()
            records = context.store.list_tables()
            record = find_record(records, context.settings)
            table = context.target.find_table()
            if record is None or table is None or record.snapshot_id != table.metadata.current_snapshot_id:
                return Expiry()
            known_ms = max(table.metadata.last_updated_ms, *(each.last_synced_at_ms or 0 for each in records))
            now_ms = self._trusted_ms(known_ms)
            retention = _retention(table, context.settings.maintenance)
            ended = ended_tags(table.metadata, now_ms=now_ms)
            found = find_expired(table.metadata, retention, now_ms=now_ms, unreadable=unreadable, ended=ended)
            held = [(ref.snapshot_id, name) for name, ref in sorted(table.metadata.refs.items()) if name not in ended]
            held += [(each.snapshot_id, NOT_OURS) for each in table.metadata.snapshots if find_marker(each) is None]
            expiry = Expiry(
                expired=tuple(snapshot.snapshot_id for snapshot in found),
                unreadable=tuple(snapshot.snapshot_id for snapshot in found if snapshot.snapshot_id in unreadable),
                held=tuple((snapshot_id, why) for snapshot_id, why in held if snapshot_id in unreadable),
                tags=ended,
            )
            if dry_run or not (found or ended):
                return expiry
            outcome = unchanged_outcome(record)
            with Transaction(context, Shown(record, table), to_version=outcome.to_version) as transaction:
                transaction.begin({})
                transaction.expire(expiry.expired, ended, outcome)
        release_files(context, record, dry_run=False)
        return expiry

    def _trusted_ms(self, known_ms: int) -> int:
        """Return the wall-clock time, limited as long as it may be wrong: an expired snapshot cannot be restored.

        A clock that jumps ahead is trusted only after a day, also one that at the start of the process is more than a
        day ahead of `known_ms`, the newest time that the table or the state store has recorded.
        """
        now_ms, now_s = self._context.clock.now_ms(), self._context.clock.monotonic_s()
        elapsed_ms = round((now_s - self._steady_since_s) * 1000)
        if elapsed_ms >= DAY_MS:
            self._steady_since_ms, self._steady_since_s, self._is_steady = now_ms, now_s, True
            return now_ms
        since_ms = self._steady_since_ms
        return min(now_ms, elapsed_ms + (since_ms if self._is_steady else min(since_ms, known_ms + DAY_MS)))

    def _find_unreadable(self, table: Table) -> set[int]:
        """Find snapshots that have lost a file, by probing those that the next one removed."""
        snapshots = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
        let_go: dict[tuple[int, int], Sequence[tuple[str, int]]] = {}
        unreadable: set[int] = set()
        for snapshot, following in _followed(snapshots):
            pair = (snapshot.snapshot_id, following.snapshot_id)
            try:
                if pair in self._let_go:
                    let_go[pair] = self._let_go[pair]
                else:
                    removed = sorted(data_files_let_go(table, snapshot, following))
                    let_go[pair] = removed[:: max(1, ceil(len(removed) / PROBES_MAX))]
            except FileNotFoundError:  # a manifest or manifest list of one of the two
                both = (snapshot, following)
                unreadable |= {each.snapshot_id for each in both if not self._has_manifests(table, each)}
        self._let_go = let_go
        numbers = {snapshot.snapshot_id: snapshot.sequence_number or 0 for snapshot in snapshots}
        showing: dict[str, set[int]] = defaultdict(set)
        for (snapshot_id, _), files in let_go.items():
            for path, added_in in files:
                last = numbers[snapshot_id]
                showing[path] |= {other for other, number in numbers.items() if added_in <= number <= last}
        gone = self._context.data_files_of(table).find_missing(list(showing))
        if gone:
            self._check_source_is_there()
        return unreadable | {snapshot_id for path in gone for snapshot_id in showing[path]}

    def _has_manifests(self, table: Table, snapshot: Snapshot) -> bool:
        with suppress(FileNotFoundError):
            manifests = read_manifest_list(table.io, snapshot.manifest_list)
            storage = FileIOStorage(self._context.target_properties(table))
            return not storage.find_missing([manifest.manifest_path for manifest in manifests])
        return False

    def _check_source_is_there(self) -> None:
        """Raise ObjectStoreAway if the Delta table is missing: when it is not mounted, every file seems deleted."""
        context = self._context
        record = context.find_record()
        some = islice(context.store.read_live_files(record.id), SOURCE_FILES) if record else ()
        paths = [file.path for file in some if not find_mirror_name(file.path)]
        if not context.log.is_there() or (paths and len(context.storage.find_missing(paths)) == len(paths)):
            raise ObjectStoreAway(
                "the Delta table is not at its location, so dvsync cannot know which files VACUUM removed",
                path=context.location,
                hint="Check that the store of the Delta table is mounted and answers. No snapshot was expired.",
            )


def _followed(snapshots: Sequence[Snapshot]) -> Iterator[tuple[Snapshot, Snapshot]]:
    """Pair each snapshot with its child, or with the next snapshot if the child was expired."""
    children = {child.parent_snapshot_id: child for child in reversed(snapshots) if child.parent_snapshot_id}
    for snapshot, following in pairwise(snapshots):
        yield snapshot, children.get(snapshot.snapshot_id, following)


def _retention(table: Table, settings: MaintenanceSettings) -> Retention:
    properties, names = table.properties, TableProperties
    age_max_ms = int_property(properties, names.MAX_SNAPSHOT_AGE_MS, names.MAX_SNAPSHOT_AGE_MS_DEFAULT)
    count_min = int_property(properties, names.MIN_SNAPSHOTS_TO_KEEP, names.MIN_SNAPSHOTS_TO_KEEP_DEFAULT)
    return Retention(
        age_max_ms=age_max_ms if settings.snapshot_age_max_s is None else round(settings.snapshot_age_max_s * 1000),
        age_cap_ms=int_property(properties, RETENTION_MS, round(min(RETENTIONS_S.values()) * 1000)),
        count_min=count_min,
        count_max=settings.snapshots_max,
    )
