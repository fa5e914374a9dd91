"""Verifies one table: which snapshot and version are compared, and how deep."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from threading import Event

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from daemon.config.settings import Reader
from daemon.delta.log import DeltaLog
from daemon.delta.table_state import TableState
from daemon.errors import CorruptInput, FileLiveTwice, ObjectMissing, TargetChanged, Unsupported
from daemon.iceberg.manifests import forget_metadata
from daemon.iceberg.marker import Marker, find_marker, shown_by
from daemon.mirror.substitution import MirroredState, Mirrors
from daemon.pipeline.inspection import Inspector
from daemon.spark.answers import collect
from daemon.spark.bitmaps import aggregate_positions
from daemon.spark.row_hashes import FILE, POSITION, read_delta, read_iceberg
from daemon.store.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.mirrors import find_mirrors_in
from daemon.translate.definition import find_faults, shape_for
from daemon.translate.existing_table import NAME_MAPPING, own_mapping
from daemon.translate.readers import misreaders, others_misread
from daemon.verify.findings import FILES_AT_ONCE, Fault, Findings, Level, Proof, Sample, Scope
from daemon.verify.metadata import MetadataCheck
from daemon.verify.rows import compare_positions, compare_rows
from state import Difference


@dataclass
class Verifier:
    """Compares one Iceberg table with its Delta table. Reads only, and may run beside a daemon."""

    context: TableContext
    _seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A log remembers the commit that it read last, by which the follower notices that another one replaced it.
        log = DeltaLog(self.context.storage, self.context.location, self.context.clock)
        self.context = replace(self.context, observe_step=self._took, log=log)

    def verify(self, scope: Scope, stop: Event) -> Proof | None:
        """Compare a snapshot with the Delta version that it shows. Returns None if `stop` was set before the end.

        Raises ObjectMissing if there is no Iceberg table or Delta has removed the version, TargetChanged if somebody
        else made the current snapshot, Unsupported if no snapshot shows the version that `scope` names or Spark would
        misread the table, and the errors of both stores and of Spark.
        """
        context = self.context
        forget_metadata()
        table = context.load_table()
        snapshot, marker = _find_shown(table, scope.at)
        runner = context.runner
        if scope.level is not Level.METADATA:
            misread = [fault for fault in sorted(find_faults(table)) if misreaders(fault, [Reader.SPARK])]
            if misread:
                raise Unsupported(
                    f"Spark cannot verify positions and rows: `readers` leaves out {others_misread(misread[0])}",
                    path=table.metadata_location,
                    hint="Verify the table's metadata only: `dvsync verify --metadata`, or verify: {level: metadata}.",
                )
            # Deeper levels need Spark anyway, and Delta's own reading of its log does not share a fault of ours.
            runner = replace(runner, engine="spark")
        try:
            with replace(context, runner=runner).open_delta_state(marker.version) as state:
                if state.metadata.id != marker.delta_table_id:
                    raise Unsupported(
                        f"the snapshot shows an earlier Delta table at this location (id {marker.delta_table_id})",
                        version=marker.version,
                        hint="The Delta table was replaced: wait until dvsync has followed it, then verify again.",
                    )
                return self._compare(table, snapshot, state, scope, stop)
        except FileLiveTwice as error:
            # Whatever the snapshot shows, it is not what Delta shows.
            findings = Findings()
            findings.add(Difference(Level.METADATA, Fault.LIVE_TWICE, error.path or context.location, error.message))
            return Proof(scope.level, marker.version, snapshot.snapshot_id, 0, 0, 0, findings, {})

    def is_outdated(self, proof: Proof) -> bool:
        """Return whether differences may be gone because Iceberg or Delta moved on. Raises as both stores do."""
        record = self.context.find_record()
        return (
            record is None
            or record.resync_wanted
            or record.snapshot_id != proof.snapshot_id
            or self.context.log.has_version(proof.version + 1)
        )

    def _compare(self, table: Table, snapshot: Snapshot, state: TableState, scope: Scope, stop: Event) -> Proof | None:
        context, findings, level = self.context, Findings(), scope.level
        mirrors = Mirrors.of(context.location, find_mirrors_in(table, snapshot, state))
        state, data_files = MirroredState.over(state, mirrors), context.data_files_of(table)
        storage = FileIOStorage(context.target_properties(table))
        # If a collated column has bounds after all, readers use them.
        schema = replace(shape_for(state.metadata, table, context.settings).table, collated=frozenset())
        inspector = None
        if scope.at is None:
            if schema.schema.as_struct() != table.schema().as_struct():
                detail = f"{table.schema().as_struct()} in Iceberg, {schema.schema.as_struct()} from Delta"
                findings.add(Difference(Level.METADATA, Fault.SCHEMA, table.metadata_location, detail))
            # Readers use the mapping that the table has.
            mapping = own_mapping(table)
            if mapping is None:
                detail = f"someone else changed the property {NAME_MAPPING}"
                findings.add(Difference(Level.METADATA, Fault.SCHEMA, table.metadata_location, detail))
            inspector = Inspector(data_files, replace(schema, name_mapping=mapping or schema.name_mapping))
        metadata = MetadataCheck(table, snapshot, schema, data_files, storage, inspector, findings, stop)
        live = None
        if level is not Level.METADATA:
            with context.step(Level.BITMAPS):
                live = self._read_positions(table, snapshot, scope.sample, findings)
        parts = scope.sample.split(max(1, math.ceil(state.files / FILES_AT_ONCE)))
        for number, part in enumerate(parts):
            with context.step(Level.METADATA):
                in_part = pa.array([part.has(add.path) for add in state.read_adds()], pa.bool_())
                pairs = metadata.compare(state.find_adds(in_part), part)
            if stop.is_set():
                return None
            if live is not None:
                with context.step(Level.BITMAPS):
                    compare_positions(context, live, pairs, part, findings)
            if context.progress:
                context.progress.advanced(number + 1, len(parts), "files")
        if level is Level.ROWS and live is not None:
            with context.step(Level.ROWS), context.runner.spark.session() as spark:
                delta = read_delta(spark, context.log, state.version)
                iceberg = read_iceberg(spark, table.metadata_location, snapshot.snapshot_id)
                columns = [name for name in iceberg.columns if name in delta.columns and name not in (FILE, POSITION)]
                compare_rows(delta, iceberg, columns, scope.sample, findings, mirrors=mirrors)
        return Proof(
            level=level,
            version=state.version,
            snapshot_id=snapshot.snapshot_id,
            files=metadata.files,
            files_total=state.files,
            rows=metadata.rows,
            findings=findings,
            seconds={each: self._seconds[each] for each in Level if each in self._seconds},
        )

    def _read_positions(self, table: Table, snapshot: Snapshot, sample: Sample, findings: Findings) -> pa.Table | None:
        """Let Spark's Iceberg reader return the positions of the sample's live rows. None if it refuses the table."""
        try:
            with self.context.runner.spark.session() as spark:
                rows = read_iceberg(spark, table.metadata_location, snapshot.snapshot_id).where(sample.condition(FILE))
                return collect(aggregate_positions(rows, file=FILE, position=POSITION))
        except (CorruptInput, ObjectMissing) as error:
            path = error.path or table.metadata_location
            findings.add(Difference(Level.BITMAPS, Fault.UNREADABLE, path, error.message))
            return None

    def _took(self, level: str, seconds: float) -> None:
        self._seconds[level] = self._seconds.get(level, 0.0) + seconds


def _find_shown(table: Table, at: int | None) -> tuple[Snapshot, Marker]:
    current, marker = table.current_snapshot(), shown_by(table)
    if at is None or (marker and marker.version == at):
        if current is None or marker is None:
            raise TargetChanged(
                "the current snapshot of the Iceberg table was not committed by dvsync",
                path=table.metadata_location,
                hint="`dvsync status` says who committed it, at most ten minutes later; `dvsync resync` brings back "
                "Delta's state.",
            )
        return current, marker
    for snapshot in reversed(table.metadata.snapshots):
        found = find_marker(snapshot)
        if found and found.version == at:
            return snapshot, found
    raise Unsupported(
        f"no snapshot of the Iceberg table shows exactly version {at} of the Delta table",
        path=table.metadata_location,
        hint="It was expired, or shares a snapshot with later versions: `dvsync snapshots` lists what is there.",
    )
