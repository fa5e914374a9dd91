"""Keys of early configurations, and what replaces them: `config check` says so."""

from __future__ import annotations

import re

_CONSTANT = "leave it out, dvsync chooses the value"
_HOOKS = "write an entry of `hooks`"

# A key of `defaults` or of a table is named without what is around it.
GONE_KEYS = {
    "pipeline": "write `engine` under `defaults` or in the table; dvsync chooses what is large enough for Spark",
    "delete_granularity": "set the table property write.delete.granularity of the Iceberg table",
    "state.lease": _CONSTANT,
    "spark.idle_timeout": _CONSTANT,
    "maintenance.delete_files_max": _CONSTANT,
    "maintenance.deleted_share": _CONSTANT,
    "maintenance.partition_delete_files_max": _CONSTANT,
    "maintenance.small_delete_file_max": _CONSTANT,
    "maintenance.dead_share": _CONSTANT,
    "maintenance.history": _CONSTANT,
    "maintenance.snapshots_min": "set the table property history.expire.min-snapshots-to-keep of the Iceberg table",
    "verify.files_at_once": _CONSTANT,
    "limits.commits_max": _CONSTANT,
    "limits.fold_after_versions": _CONSTANT,
    "limits.fold_when_busy": "write `one_snapshot_per_version: true` for `fold_when_busy: false`",
    "notify": f"{_HOOKS} with the same `events`",
    "after_sync": f"{_HOOKS} with `events: [synced]`",
    "lineage": f"{_HOOKS} with `format: openlineage`; OPENLINEAGE_NAMESPACE sets the namespace",
    "telemetry": "set OTEL_EXPORTER_OTLP_ENDPOINT and the other variables of OpenTelemetry",
    "health.certificate": "let a reverse proxy speak HTTPS",
    "health.key": "let a reverse proxy speak HTTPS",
    "health.ready_when": "ask /livez for the daemon alone, /readyz for its tables as well",
}


def find_replacement(place: str) -> str | None:
    """Return what replaces the key at `place`, such as `tables[2].maintenance.history`; None if it never was a key."""
    return GONE_KEYS.get(re.sub(r"^(tables\[\d+\]|defaults)\.", "", place))
