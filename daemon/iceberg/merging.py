"""Decides which manifests to merge, by the properties `commit.manifest.*`: each commit adds one, readers open all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import TableProperties

from daemon.iceberg.manifests import MANIFEST_ENTRIES_MAX
from daemon.iceberg.properties import int_property


def live_files(manifest: ManifestFile) -> int:
    """Return the number of live entries in a manifest, by the counts in the manifest list."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def plan_merges(manifests: Sequence[ManifestFile], properties: Mapping[str, str]) -> Iterator[list[ManifestFile]]:
    """Yield groups of small manifests; each group becomes one manifest. At most one group for each spec and content.

    A group is merged once it has `commit.manifest.min-count-to-merge` manifests. A merged manifest has at most
    `commit.manifest.target-size-bytes` bytes and MANIFEST_ENTRIES_MAX entries. A manifest over half of these limits is
    not merged, so that the work of a commit does not grow with the table.
    """
    names = TableProperties
    if properties.get(names.MANIFEST_MERGE_ENABLED, "").strip().lower() == "false":
        return
    count_min = int_property(properties, names.MANIFEST_MIN_MERGE_COUNT, names.MANIFEST_MIN_MERGE_COUNT_DEFAULT)
    size_max = int_property(properties, names.MANIFEST_TARGET_SIZE_BYTES, names.MANIFEST_TARGET_SIZE_BYTES_DEFAULT)
    groups: dict[tuple[ManifestContent, int], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        if 2 * live_files(manifest) <= MANIFEST_ENTRIES_MAX and 2 * manifest.manifest_length <= size_max:
            groups[manifest.content, manifest.partition_spec_id].append(manifest)
    for small in groups.values():
        if len(small) >= max(count_min, 2):
            small.sort(key=live_files)
            entries = accumulate(map(live_files, small))
            sizes_bytes = accumulate(manifest.manifest_length for manifest in small)
            sums = zip(entries, sizes_bytes, strict=True)
            # At least two fit into one, because none exceeds half the limits.
            yield small[: sum(count <= MANIFEST_ENTRIES_MAX and size <= size_max for count, size in sums)]
