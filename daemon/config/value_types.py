"""The types of values in the settings: durations, locations, properties, references to secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from zoneinfo import available_timezones

from pydantic import AfterValidator, BeforeValidator, StringConstraints, ValidatorFunctionWrapHandler, WrapValidator
from pytimeparse2 import parse as parse_timespan

from daemon.masking import USERINFO

ENV_PREFIX = "DVSYNC_"

# Three slashes, then the path as it is: `sqlite:///var/x.db` is relative, `sqlite:////var/x.db` is not.
SQLITE_FILE = re.compile(r"(?P<scheme>sqlite(?:\+\w+)?:///)(?!:memory:|file:)(?P<path>[^?]+)(?P<query>.*)$")


def sqlite_file(url: str) -> Path | None:
    """Return the file of a database of SQLite; None for another database, and for one in memory."""
    match = SQLITE_FILE.match(url)
    return Path(match["path"]) if match else None


def is_rest(properties: Mapping[str, str]) -> bool:
    """Whether these are the properties of a REST catalog."""
    return properties.get("type", "").lower() == "rest" or properties.get("uri", "").startswith("http")


def is_metastore(properties: Mapping[str, str]) -> bool:
    """Whether these are the properties of a catalog in a Hive Metastore or in Glue, where names ignore case."""
    return properties.get("type", "").lower() in ("hive", "glue") or properties.get("uri", "").startswith("thrift")


def duration_s(value: object) -> float:
    """Convert `10s`, `1m30s` or `250ms` to seconds. A bare number is refused: its unit would be a guess."""
    if isinstance(value, str) and re.search(r"[a-z]", value, re.IGNORECASE):
        try:
            seconds = parse_timespan(value)
        except ValueError:
            seconds = None
        if isinstance(seconds, int | float):
            return float(seconds)
    raise ValueError(f"{value!r} is not a duration: write a number and its unit, such as 500ms, 10s or 5m")


def who_deletes(value: str) -> str:
    share = re.fullmatch(r"([0-9]{1,3}(\.[0-9]+)?)%", value)
    if value in ("none", "command") or (share and 0 < float(share[1]) <= 100):
        return value
    raise ValueError(f"{value!r} is neither none nor command nor a share above 0% and up to 100%, such as 10%")


def property_text(value: object) -> str:
    """Convert a YAML value such as `true` or `8` to the string that PyIceberg and Spark expect."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("a property must be a text, a number, true or false")


def with_dotted_auth(properties: object) -> object:
    """`{auth: {type: basic}}` becomes `{auth.type: basic}`. PyIceberg's parameters have no dashes, variables' have."""
    if not isinstance(properties, Mapping):
        return properties
    flat: dict[object, object] = {}
    for key, value in properties.items():
        if key == "auth" and isinstance(value, Mapping) and value:
            for name, inner in value.items():
                if isinstance(inner, Mapping) and inner:
                    flat |= {f"auth.{name}.{parameter}": each for parameter, each in inner.items()}
                else:
                    flat[f"auth.{name}"] = inner
        else:
            flat[key] = value
    for key in SCOPES:
        scopes = flat.get(key)
        if isinstance(scopes, list) and all(isinstance(each, str) for each in scopes):
            flat[key] = " ".join(scopes)
    return {
        key.replace("-", "_") if isinstance(key, str) and key.startswith("auth.") else key: value
        for key, value in flat.items()
    }


def identifier(value: str) -> str:
    if re.fullmatch(r"[^.\s]+(\.[^.\s]+)+", value):
        return value
    raise ValueError(f"{value!r} is not an Iceberg identifier: join namespace and name by a dot, such as sales.orders")


def folder_names(value: str) -> str:
    if re.fullmatch(r"[^/]+(/[^/]+)*", value):
        return value
    raise ValueError(f"{value!r} is not a folder's name, or the names of the last folders of a path, such as eu/tmp_*")


def time_zone_name(value: str) -> str:
    if value in available_timezones():
        return value
    raise ValueError(f"{value!r} is not a time zone: write UTC or a name such as Europe/Paris")


class Reference(str):
    """`file:PATH` or `env:NAME`. `load.py` replaces it by the text of that file or variable."""


def or_reference(value: object, text: ValidatorFunctionWrapHandler) -> object:
    if not isinstance(value, Mapping):
        return text(value)
    (kind, place), *more = value.items() or [("", "")]
    if more or kind not in ("file", "env") or not isinstance(place, str) or not place:
        raise ValueError("must be a text, {file: PATH} or {env: NAME}")
    return Reference(f"{kind}:{place}")


def location_text(value: str) -> str:
    """Refuse credentials in a location: Iceberg's metadata and the state database store locations in plain text."""
    if USERINFO.search(value):
        raise ValueError("a location must not contain a user or password: put credentials under storage")
    return value


Duration = BeforeValidator(duration_s)
Location = Annotated[str, StringConstraints(min_length=1), AfterValidator(location_text)]
Properties = dict[str, Annotated[str, BeforeValidator(property_text), WrapValidator(or_reference)]]
# PyIceberg wants lists of them. Until then they are texts.
SCOPES = ("auth.google.scopes", "auth.entra.scopes")
URL = re.compile(r"^\w[\w+]*://")
