"""Which manifests are merged: pure, over random lists of them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import ManifestContent, ManifestFile

from daemon.iceberg.manifests import MANIFEST_ENTRIES_MAX
from daemon.iceberg.merging import live_files, plan_merges
from daemon.iceberg.pyiceberg_ext.records import manifest_record

MIB = 1 << 20


def manifest(number: int, entries: int, size_bytes: int, content: ManifestContent, spec_id: int) -> ManifestFile:
    return manifest_record(
        manifest_path=f"m{number}",
        manifest_length=size_bytes,
        partition_spec_id=spec_id,
        content=content,
        added_files_count=entries // 2,
        existing_files_count=entries - entries // 2,
    )


manifests = st.lists(
    st.tuples(
        st.integers(1, MANIFEST_ENTRIES_MAX),
        st.integers(1, 10 * MIB),
        st.sampled_from(list(ManifestContent)),
        st.integers(0, 1),
    ),
    max_size=40,
).map(lambda rows: [manifest(number, *row) for number, row in enumerate(rows)])


@given(manifests, st.integers(0, 20), st.integers(1, 10 * MIB))
def test_what_is_merged_is_small_and_of_one_kind(listed: list[ManifestFile], count_min: int, size_max: int) -> None:
    """No manifest is merged twice, each group fits into one manifest, and there is one for a kind that has enough."""
    properties = {
        "commit.manifest.min-count-to-merge": str(count_min),
        "commit.manifest.target-size-bytes": str(size_max),
    }
    groups = list(plan_merges(listed, properties))
    merged = Counter(each.manifest_path for group in groups for each in group)
    assert all(count == 1 for count in merged.values())
    for group in groups:
        assert len(group) >= 2
        assert len({(each.content, each.partition_spec_id) for each in group}) == 1
        assert sum(live_files(each) for each in group) <= MANIFEST_ENTRIES_MAX
        assert sum(each.manifest_length for each in group) <= size_max
    small = Counter(
        (each.content, each.partition_spec_id)
        for each in listed
        if live_files(each) <= MANIFEST_ENTRIES_MAX // 2 and each.manifest_length <= size_max / 2
    )
    enough = {kind for kind, count in small.items() if count >= max(2, count_min)}
    assert {(group[0].content, group[0].partition_spec_id) for group in groups} == enough


def test_merging_can_be_turned_off() -> None:
    """`commit.manifest-merge.enabled` and the defaults are Iceberg's own."""
    listed = [manifest(number, 1, 100, ManifestContent.DATA, 0) for number in range(100)]
    assert [len(group) for group in plan_merges(listed, {})] == [100]
    assert list(plan_merges(listed[1:], {})) == []
    assert list(plan_merges(listed, {"commit.manifest-merge.enabled": "false"})) == []
