"""What Delta's VACUUM removes: every file in the table's folder that Delta does not know, but for hidden folders."""

from __future__ import annotations

# Delta, DeltaTableUtils.isHiddenDirectory: `_…` and `.…` are left alone, but not these.
NOT_HIDDEN = ("_delta_index", "_change_data", "_delta_log")


def vacuum_cleans(location: str, source: str) -> bool:
    """Whether VACUUM, or the log's clean-up, of the Delta table at `source` would remove files at `location`."""
    if location != source and not location.startswith(f"{source}/"):
        return False
    parts = location.removeprefix(source).strip("/").split("/")
    return not any(
        part.startswith(("_", ".")) and not part.startswith(NOT_HIDDEN) and "=" not in part for part in parts
    )
