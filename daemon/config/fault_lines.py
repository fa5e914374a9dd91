"""Says what is wrong with a value or a key, in words of the configuration instead of Pydantic's."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, get_args

from pydantic_core import ErrorDetails

from daemon.config.settings import Settings

_HOOKS = "write an entry of `hooks`"

_CONSTANT = "leave it out, dvsync chooses the value"
# Keys of early configurations. One of `defaults` or of a table is named without what is around it.
GONE_KEYS = {
    **dict.fromkeys(("state.lease", "spark.idle_timeout", "verify.files_at_once", "limits.commits_max"), _CONSTANT),
    **dict.fromkeys(("limits.fold_after_versions", "maintenance.history", "maintenance.dead_share"), _CONSTANT),
    **dict.fromkeys(("maintenance.delete_files_max", "maintenance.partition_delete_files_max"), _CONSTANT),
    **dict.fromkeys(("maintenance.deleted_share", "maintenance.small_delete_file_max"), _CONSTANT),
    **dict.fromkeys(
        ("maintenance.compact", "maintenance.expire", "maintenance.cleanup"), "leave it out of `steps`, a list"
    ),
    "pipeline": "write `engine` under `defaults` or in the table; dvsync chooses what is large enough for Spark",
    "delete_granularity": "set the table property write.delete.granularity of the Iceberg table",
    "maintenance.snapshots_min": "set the table property history.expire.min-snapshots-to-keep of the Iceberg table",
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


# Faults in these sections do not quote the value.
SECRET_SECTIONS = ("catalogs", "storage", "spark", "state", "hooks")

# What a value is, by the type of Pydantic's error: its own words are those of Python.
PLAIN_WORDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "not a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "not a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "neither true nor false"),
    **dict.fromkeys(("list_type", "tuple_type", "frozen_set_type"), "not a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "not a section of keys"),
    "string_type": "not a text",
}
WHOLE_WORDS = {
    "missing": "is missing",
    "invalid_key": "has a key that is not a text. YAML reads on, off, yes and no as true and false: write it in quotes",
    "byte_size": "is not a size: write a number and its unit, such as 64MiB",
    "too_short": "is an empty list: leave the key out, or write something into it",
}


def fault_line(fault: ErrorDetails) -> str:
    kind, parts = fault["type"], fault["loc"]
    if parts[-1] == "[key]":
        kind, parts = "invalid_key", parts[:-1]
    if kind == "invalid_key":
        # The place of the key itself would read like that of a list's element.
        parts = parts[:-1]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")
    match kind:
        case "extra_forbidden":
            replacement = find_replacement(place)
            near = get_close_matches(str(parts[-1]).lower(), _keys_beside(parts), n=1)
            unknown = f"unknown key, did you mean {near[0]}?" if near else "unknown key"
            return f"{place}: " + (f"is no longer a key: {replacement}" if replacement else unknown)
        case "value_error":
            return f"{place}: {fault['ctx']['error']}"
        case "string_pattern_mismatch" if fault["loc"][-1] == "url":
            return f"{place}: is not an SQLAlchemy URL, such as sqlite:///var/dvsync.db"
        case _ if kind in WHOLE_WORDS:
            return f"{place}: {WHOLE_WORDS[kind]}"
        case _:
            # Values of these places may be secrets, so the message does not quote them.
            is_secret = fault["loc"][0] in SECRET_SECTIONS or fault["loc"] == ("health", "token")
            value = repr(fault["input"]) if not is_secret and isinstance(fault["input"], str | int | float) else ""
            if words := PLAIN_WORDS.get(kind):
                return f"{place}: is {words}" + (f": {value}" if value else "")
            return f"{place}: {fault['msg'][0].lower()}{fault['msg'][1:]}" + (f", not {value}" if value else "")


def _keys_beside(place: tuple[int | str, ...]) -> list[str]:
    model: Any = Settings
    for part in place[:-1]:
        if isinstance(part, str):
            fields = {field.alias or name: field for name, field in model.model_fields.items()}
            model = fields[part].annotation
            model = next((each for each in get_args(model) if isinstance(each, type)), model)
    return [field.alias or name for name, field in model.model_fields.items()]
