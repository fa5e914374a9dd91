"""Reads the settings that the environment overrides: `DVSYNC_HEALTH__PORT=9000` is `port` under `health`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from daemon.config.fault_lines import GONE_KEYS, find_replacement
from daemon.config.settings import Settings
from daemon.config.value_types import ENV_PREFIX

# How many keys are around a property of PyIceberg.
AROUND_PROPERTIES = {"storage": 1, "catalogs": 2}
# Only these properties of PyIceberg, both of its SQL catalog, are spelled with underscores.
UNDERSCORED = ("init_catalog_tables", "pool_pre_ping")


def find_variables() -> Iterator[tuple[str, list[str]]]:
    """Yield the names of dvsync's variables, and the keys around and at their values, known or not."""
    for name in sorted(os.environ):
        section, *keys = name.upper().removeprefix(ENV_PREFIX).lower().split("__")
        # Another name without `__` may come from Kubernetes, for a service called dvsync: DVSYNC_PORT_8080_TCP.
        if name.upper().startswith(ENV_PREFIX) and (keys or section in Settings.model_fields or section in GONE_KEYS):
            yield name, [section, *keys]


def read_variables(faults: list[str]) -> dict[str, Any]:
    """Return the settings of the variables. One that is not JSON, or of no section, is added to `faults`.

    Names of properties follow PyIceberg's own: `__` for a dot, `_` for a dash. `DVSYNC_STORAGE__S3__ACCESS_KEY_ID` sets
    `s3.access-key-id`. With `__FILE` at the end, the value is the path of a file that holds the property.
    """
    found: dict[str, Any] = {}
    for name, keys in find_variables():
        if keys[0] not in Settings.model_fields:
            replacement = find_replacement(keys[0])
            reason = f"is no longer a setting: {replacement}" if replacement else "no such setting"
            faults.append(f"{name} (environment): {reason}")
            continue
        value: Any = os.environ[name]
        outer = AROUND_PROPERTIES.get(keys[0], len(keys))
        if keys[outer:]:
            in_file = keys[-1] == "file" and len(keys) > outer + 1
            property_name = ".".join(keys[outer:-1] if in_file else keys[outer:])
            if property_name not in UNDERSCORED:
                property_name = property_name.replace("_", "-")
            keys[outer:] = [property_name, "file"] if in_file else [property_name]
        elif value[:1] in ("[", "{"):
            try:
                value = json.loads(value)
            except ValueError:
                faults.append(f"{keys[0]}: the value of {name} (environment) is not JSON")
                continue
        _put(found, keys, value)
    return found


def _put(found: dict[str, Any], path: list[str], value: object) -> None:
    *outer, key = path
    for each in outer:
        inner = found.setdefault(each, {})
        found = inner if isinstance(inner, dict) else {}
    found[key] = value
