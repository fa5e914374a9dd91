"""Reads, resolves and checks `config.yaml` and the `DVSYNC_…` variables. All faults are reported at once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from daemon.config.checks import find_faults, find_unknown_properties
from daemon.config.fault_lines import GONE_KEYS, fault_line, find_replacement
from daemon.config.readable import Readable
from daemon.config.settings import Settings
from daemon.config.value_types import ENV_PREFIX, with_dotted_auth
from daemon.errors import ConfigInvalid
from daemon.masking import find_secrets

# The sections that are lists. Of these, a faulty entry is left out alone.
LISTS = ("tables", "hooks")
_OPEN_BRACKETS = {"while parsing a flow sequence": "[", "while parsing a flow mapping": "{"}
# How many keys are around a property of PyIceberg.
AROUND_PROPERTIES = {"storage": 1, "catalogs": 2, "sources": 2}
# Only these properties of PyIceberg, both of its SQL catalog, are spelled with underscores.
UNDERSCORED = ("init_catalog_tables", "pool_pre_ping")


def load_settings(path: Path, text: str | None = None, *, ask_pyiceberg: bool = False) -> Settings:
    """Read the file and the environment. If `text` is given, it is used instead of the file, which need not exist yet.

    With `ask_pyiceberg`, the types of catalogs and the names of properties are checked, too. Raises ConfigInvalid with
    all faults: one line each, with its place (`tables[2].poll_interval: …`).
    """
    readable, faults = _read(path, text)
    if readable is not None and ask_pyiceberg:
        faults += find_unknown_properties(readable.settings)
    if faults or readable is None:
        raise _invalid(path, faults)
    return readable.settings


def load_sections(path: Path, *sections: str) -> tuple[Settings, bool]:
    """Return the settings, and whether all are valid. Raises ConfigInvalid if a fault may concern these sections."""
    readable, faults = _read(path, None)
    places = [re.split(r"__|\W", fault.removeprefix(ENV_PREFIX), maxsplit=1)[0].lower() for fault in faults]
    # An unknown key may be a section that is spelled wrong.
    unsure = [place for place in places if place not in Settings.model_fields]
    about = [*set(sections).intersection(places), *(place for place in unsure if get_close_matches(place, sections))]
    if readable is None or about:
        raise _invalid(path, faults)
    return readable.settings, not faults


def _invalid(path: Path, faults: Sequence[str]) -> ConfigInvalid:
    where = f"{path} or the {ENV_PREFIX}… variables" if any(_find_variables()) else path
    hint = f"Correct {where}, then run `dvsync config check`. A running daemon keeps its former configuration."
    return ConfigInvalid("\n".join(faults), hint=hint)


def _read(path: Path, text: str | None) -> tuple[Readable | None, list[str]]:
    """Return what is valid in the document and the environment, if anything is, and all faults."""
    document, faults = _read_document(path, text)
    document = _merged(document, _read_variables(faults))
    if isinstance(catalogs := document.get("catalogs"), dict):
        document["catalogs"] = {name: with_dotted_auth(each) for name, each in catalogs.items()}
    readable = _validate(document, faults)
    if readable is None:
        return None, faults
    folder = path.absolute().parent
    readable = readable.dereferenced(folder, faults).resolved(folder)
    faults += find_faults(readable)
    return readable, faults


def _duplicate_keys(node: yaml.Node | None, seen: set[int], place: str = "") -> Iterator[str]:
    """Find keys that a mapping has twice: PyYAML keeps the last. `seen` are nodes so far: one may contain itself."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, each in enumerate(node.value):
            yield from _duplicate_keys(each, seen, f"{place}[{number}]")
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            inner = f"{place}.{name}".removeprefix(".")
            if name in keys - {"<<", "?"}:
                yield f"{inner}: appears twice, the second time in line {key.start_mark.line + 1}"
            keys.add(name)
            yield from _duplicate_keys(value, seen, inner)


def _problem_of(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    # PyYAML quotes the text at the fault. It may be a secret that was written without quotes, so cut it off.
    problem = error.problem or error.context or ""
    context, line = error.context or "", error.context_mark.line + 1 if error.context_mark else "?"
    if context in _OPEN_BRACKETS:
        bracket = _OPEN_BRACKETS[context]
        return f"the {bracket!r} of line {line} is not closed before here, or a comma is missing", "Close it. "
    if problem.startswith("expected "):
        problem = problem.partition(", but ")[0] + (f", {context} that begins in line {line}" if context else "")
        return problem, "Check the brackets, quotes and indentation up to there. "
    if "'\\t'" in problem:
        return "a tab where YAML wants spaces", "Indent with spaces. "
    if "quoted" in context:
        return f"the quote that begins in line {line} is not closed", "Close it, or leave it out. "
    problem = problem.partition("'")[0].strip()
    if problem.startswith("found"):
        return problem, "Put text that begins with one of *&!%@` in quotes. "
    return problem, "Check the indentation and the colons up to there. "


def _read_document(path: Path, text: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the file's mapping and its duplicate keys. Raises ConfigInvalid if it cannot be parsed."""
    example = "The config.yaml that comes with dvsync explains every key."
    name_it = f"Name the configuration file with --config PATH. {example}"
    hint = f"{example} A running daemon keeps its former configuration."
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8") if text is None else text)
    except FileNotFoundError as error:
        raise ConfigInvalid(f"{path.absolute()}: no such file", hint=f"`dvsync init` writes one. {name_it}") from error
    except OSError as error:
        raise ConfigInvalid(f"{path.absolute()}: {(error.strerror or str(error)).lower()}", hint=name_it) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigInvalid(f"{path}: the file is not UTF-8 text", hint=name_it) from error
    try:
        node = loader.get_single_node()
        duplicates = [*_duplicate_keys(node, set())]
        document = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem, advice = _problem_of(error)
        raise ConfigInvalid(f"{where}{problem}", path=str(path), hint=advice + hint) from None
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:  # by tags without sense
        is_deep = isinstance(error, RecursionError)
        reason = "the file is nested too deeply" if is_deep else "the file contains an invalid date, number or tag"
        raise ConfigInvalid(f"{path}: {reason}", hint=f"Correct the file. {hint}") from None
    finally:
        loader.dispose()
    if document is None:
        raise ConfigInvalid(f"{path}: the file is empty", hint=hint)
    if not isinstance(document, dict):
        raise ConfigInvalid(f"{path}: the top level must be a mapping of keys to values", hint=name_it)
    return document, duplicates


def _find_variables() -> Iterator[tuple[str, list[str]]]:
    """Yield dvsync's variables, known or not, and the keys of their values: `health`, `port` of DVSYNC_HEALTH__PORT."""
    for name in sorted(os.environ):
        section, *keys = name.upper().removeprefix(ENV_PREFIX).lower().split("__")
        # Another name without `__` may come from Kubernetes, for a service called dvsync: DVSYNC_PORT_8080_TCP.
        if name.upper().startswith(ENV_PREFIX) and (keys or section in Settings.model_fields or section in GONE_KEYS):
            yield name, [section, *keys]


def _read_variables(faults: list[str]) -> dict[str, Any]:
    """Return the settings of the variables. One that is not JSON, or of no section, is added to `faults`.

    Names of properties follow PyIceberg's own: `__` for a dot, `_` for a dash. `DVSYNC_STORAGE__S3__ACCESS_KEY_ID` sets
    `s3.access-key-id`. With `__FILE` at the end, the value is the path of a file that holds the property.
    """
    found: dict[str, Any] = {}
    for name, keys in _find_variables():
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


def read_source(name: str) -> dict[str, Any]:
    """Return what variables say of a catalog of `sources`, as a file may have it: secrets are references to them."""
    given = _read_variables([])["sources"][name]
    variable = f"{ENV_PREFIX}SOURCES__{name}__"
    return {
        key: {"env": (variable + key.replace(".", "__").replace("-", "_")).upper()}
        if [*find_secrets(key, given[key])]
        else given[key]
        for key in sorted(given, key=lambda key: (key not in ("type", "uri"), key))
    }


def _put(found: dict[str, Any], path: list[str], value: object) -> None:
    *outer, key = path
    for each in outer:
        inner = found.setdefault(each, {})
        found = inner if isinstance(inner, dict) else {}
    found[key] = value


def _merged(document: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(document)
    for key, value in variables.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _validate(document: dict[str, Any], faults: list[str]) -> Readable | None:
    """Validate the document. After faults, validate it again without the faulty parts, to check the rest as well."""
    left_out: frozenset[str] = frozenset()
    entries_out: dict[str, set[int]] = {section: set() for section in LISTS}
    try:
        settings = Settings.model_validate(document)
    except ValidationError as error:
        places: list[tuple[int | str, ...]] = []
        for fault in error.errors(include_url=False):
            if fault["type"] == "default_factory_not_called":
                continue  # `name` could not be derived from a faulty `target`; the target has its own fault.
            faults.append(fault_line(fault))
            match fault["loc"]:
                case (str(section), int(index), *_) if section in entries_out:
                    entries_out[section].add(index)
                case place:
                    places.append(place)
        remaining, left_out = _without(document, places)
        for section, out in entries_out.items():
            if out:
                remaining[section] = [each for i, each in enumerate(document[section]) if i not in out]
        try:
            settings = Settings.model_validate(remaining)
        except ValidationError:
            return None  # A key that is no text cannot be left out.
    places_in = {
        section: [f"{section}[{i}]" for i in range(len(getattr(settings, section)) + len(out)) if i not in out]
        for section, out in entries_out.items()
    }
    other_catalogs = [
        (f"tables[{i}]", each["catalog"])
        for i, each in enumerate(document["tables"] if entries_out["tables"] else ())
        if i in entries_out["tables"] and isinstance(each, dict) and isinstance(each.get("catalog"), str)
    ]
    return Readable(settings, places_in, left_out, tuple(other_catalogs))


def _without(
    document: dict[str, Any], places: Iterable[tuple[int | str, ...]]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the document without these places, or without the key around a missing one, and the keys it lacks."""
    paths = set()
    for place in places:
        value: Any = document
        path: list[str] = []
        for part in place:
            if not isinstance(value, dict) or part not in value:
                break
            path.append(str(part))
            value = value[part]
        paths.add(tuple(path))
    remaining = deepcopy(document)
    for *outer, key in filter(None, paths):
        reduce(lambda each, part: each.get(part, {}), outer, remaining).pop(key, None)
    return remaining, frozenset(".".join(path) for path in paths)
