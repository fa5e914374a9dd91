"""Which snapshots are expired, against a slow and simple model of the specification's words."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from daemon.iceberg.marker import Marker
from daemon.iceberg.retention import Retention, find_expired
from tests.kit.made import MadeTable, data_file

NOW_MS = 1_000_000


def snapshot(snapshot_id: int, parent: int | None, age_ms: int, *, ours: bool) -> Snapshot:
    marker = Marker("t", snapshot_id, 0).to_summary() if ours else {}
    return Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent,
        sequence_number=snapshot_id,
        timestamp_ms=NOW_MS - age_ms,
        manifest_list=f"snap-{snapshot_id}",
        summary=Summary(Operation.APPEND, **marker),
    )


def ours(each: Snapshot) -> bool:
    return each.summary is not None and "dvsync.delta.version" in each.summary.additional_properties


def metadata(snapshots: list[Snapshot], refs: dict[str, SnapshotRef]) -> TableMetadata:
    """As much of a table's metadata as is looked at."""
    return TableMetadataV2.model_construct(snapshots=snapshots, refs=refs)


def ref(snapshot_id: int, kind: str, count: int | None = None, age_ms: int | None = None) -> SnapshotRef:
    return SnapshotRef(snapshot_id=snapshot_id, type=kind, min_snapshots_to_keep=count, max_snapshot_age_ms=age_ms)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Snapshot], dict[str, SnapshotRef]]:
    """A tree of snapshots, each younger than its parent, with `main` and other references to any of them."""
    ages = sorted(draw(st.lists(st.integers(0, 100), min_size=1, max_size=12)), reverse=True)
    snapshots = [
        snapshot(number, draw(st.sampled_from([None, *range(1, number)])), age, ours=draw(st.booleans()))
        for number, age in enumerate(ages, start=1)
    ]
    ids = st.sampled_from([each.snapshot_id for each in snapshots])
    limits = st.none() | st.integers(1, 5)
    refs = {"main": ref(draw(ids), "branch", draw(limits), draw(st.none() | st.integers(1, 100)))}
    for number in range(draw(st.integers(0, 3))):
        branch = draw(st.booleans())
        refs[f"r{number}"] = ref(draw(ids), "branch", draw(limits)) if branch else ref(draw(ids), "tag")
    return snapshots, refs


retentions = st.builds(Retention, st.integers(0, 100), st.integers(0, 100), st.integers(1, 5), st.integers(1, 8))


@given(histories(), retentions, st.sets(st.integers(1, 12)))
def test_expired_is_what_the_specification_says(
    history: tuple[list[Snapshot], dict[str, SnapshotRef]], retention: Retention, unreadable: set[int]
) -> None:
    """Snapshot by snapshot: does anything keep it?"""
    snapshots, refs = history
    by_id = {each.snapshot_id: each for each in snapshots}
    expired = find_expired(metadata(snapshots, refs), retention, now_ms=NOW_MS, unreadable=unreadable)

    def line(snapshot_id: int | None) -> list[int]:
        return [] if snapshot_id is None else [snapshot_id, *line(by_id[snapshot_id].parent_snapshot_id)]

    lines = {name: line(of.snapshot_id) for name, of in refs.items() if of.snapshot_ref_type.value == "branch"}
    reached = {snapshot_id for ids in lines.values() for snapshot_id in ids}
    # Ours belong to the main branch even when those that lead to them are gone.
    lines["main"] += [
        each.snapshot_id for each in reversed(snapshots) if each.snapshot_id not in reached and ours(each)
    ]
    for each in snapshots:
        age_ms, kept = NOW_MS - each.timestamp_ms, False
        for name, ids in lines.items():
            if each.snapshot_id in ids and each.snapshot_id not in unreadable:
                newer = ids.index(each.snapshot_id)
                count_min = refs[name].min_snapshots_to_keep or retention.count_min
                age_max = min(refs[name].max_snapshot_age_ms or retention.age_max_ms, retention.age_cap_ms)
                kept |= newer < count_min
                kept |= age_ms <= age_max and (name != "main" or newer < retention.count_max)
        kept |= not ours(each)
        kept |= any(of.snapshot_id == each.snapshot_id for of in refs.values())
        assert (each in expired) is not kept, each.snapshot_id
    assert [each.timestamp_ms for each in expired] == sorted(each.timestamp_ms for each in expired)


def test_expired_snapshots_leave_the_metadata_only(tmp_path: Path) -> None:
    """The table goes on without them, and no file is touched."""
    made = MadeTable(tmp_path)
    for name in "abc":
        made.commit(added_data_files=[data_file(name)])
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    made.target.expire(made.table(), [1, 2], [], made.announced.extend)
    assert [each.snapshot_id for each in made.table().snapshots()] == [3]
    assert set(made.live()) == {"a", "b", "c"}
    now = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert files <= now and len(now - files) == 1
    made.commit(added_data_files=[data_file("d")])
    assert set(made.live()) == {"a", "b", "c", "d"}
    made.close()
