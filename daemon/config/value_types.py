"""The types of values in the settings: durations, locations, properties, references to secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated
from zoneinfo import available_timezones

from pydantic import AfterValidator, BeforeValidator, StringConstraints, ValidatorFunctionWrapHandler, WrapValidator
from pytimeparse2 import parse as parse_timespan

ENV_PREFIX = "DVSYNC_"

# Three slashes, then the path as it is: `sqlite:///var/x.db` is relative, `sqlite:////var/x.db` is not.
SQLITE_FILE = re.compile(r"(?P<scheme>sqlite(?:\+\w+)?:///)(?!:memory:|file:)(?P<path>[^?]+)(?P<query>.*)$")


def sqlite_file(url: str) -> Path | None:
    """Return the file of a database of SQLite; None for another database, and for one in memory."""
    match = SQLITE_FILE.match(url)
    return Path(match["path"]) if match else None


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


def property_text(value: object) -> str:
    """Convert a YAML value such as `true` or `8` to the string that PyIceberg and Spark expect."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("a property must be a text, a number, true or false")


def with_dotted_auth(value: object) -> object:
    """Write the sections under `auth` of a catalog with dots: `{auth: {type: basic}}` becomes `{auth.type: basic}`."""
    if not isinstance(value, Mapping):
        return value
    return {name: each for key in value for name, each in _dotted(key, value[key], is_section=key == "auth")}


def _dotted(key: str, value: object, *, is_section: bool = True) -> Iterator[tuple[str, object]]:
    if not is_section or not isinstance(value, Mapping) or _is_reference(value):
        # PyIceberg wants a list of scopes.
        yield key, " ".join(map(str, value)) if is_section and isinstance(value, list) else value
        return
    for name, inner in value.items():
        yield from _dotted(f"{key}.{name}", inner)


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


class Secret(str):
    """A text that was read through a reference. It is never shown."""


def or_reference(value: object, text: ValidatorFunctionWrapHandler) -> object:
    if not isinstance(value, Mapping):
        return text(value)
    if not _is_reference(value):
        raise ValueError("must be a text, {file: PATH} or {env: NAME}")
    ((kind, place),) = value.items()
    return Reference(f"{kind}:{place}")


def _is_reference(value: Mapping[object, object]) -> bool:
    (kind, place), *more = value.items() or [("", "")]
    return not more and kind in ("file", "env") and isinstance(place, str) and bool(place)


def location_text(value: str) -> str:
    """Refuse credentials in a location: Iceberg's metadata and the state database store locations in plain text."""
    if USERINFO.search(value):
        raise ValueError("a location must not contain a user or password: put credentials under storage")
    return value


Duration = BeforeValidator(duration_s)
Location = Annotated[str, StringConstraints(min_length=1), AfterValidator(location_text)]
Properties = dict[str, Annotated[str, BeforeValidator(property_text), WrapValidator(or_reference)]]
CatalogProperties = Annotated[Properties, BeforeValidator(with_dotted_auth)]
URL = re.compile(r"^\w[\w+]*://")

# In abfss://container@account the part before the @ is a container; in other URLs it is a user and perhaps a password.
USERINFO = re.compile(r"(?<=://)(?<!abfss://)(?<!abfs://)(?<!wasbs://)(?<!wasb://)(?:[^/@\s]*:\S*|[^/@\s]*)@")
