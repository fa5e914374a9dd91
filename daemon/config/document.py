"""Reading the YAML document: safe types only, and no key twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from daemon.errors import ConfigInvalid


def _duplicate_keys(node: yaml.Node | None, place: str = "", seen: tuple[yaml.Node, ...] = ()) -> Iterator[str]:
    """Find keys that a mapping has twice. YAML forbids them; PyYAML silently keeps the last one.

    `seen` are the nodes above: a node may contain itself.
    """
    if node in seen:
        return
    if isinstance(node, yaml.SequenceNode):
        for number, each in enumerate(node.value):
            yield from _duplicate_keys(each, f"{place}[{number}]", (*seen, node))
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            inner = f"{place}.{name}".removeprefix(".")
            if name in keys - {"<<", "?"}:
                yield f"{inner}: appears twice, the second time in line {key.start_mark.line + 1}"
            keys.add(name)
            yield from _duplicate_keys(value, inner, (*seen, node))


_OPEN_BRACKETS = {"while parsing a flow sequence": "[", "while parsing a flow mapping": "{"}


def _problem_of(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Say what is wrong, and what to do about it."""
    # PyYAML quotes the text at the fault. It may be a secret that was written without quotes, so cut it off.
    problem = error.problem or error.context or ""
    if error.context in _OPEN_BRACKETS and error.context_mark:
        bracket, line = _OPEN_BRACKETS[error.context], error.context_mark.line + 1
        return f"the {bracket!r} of line {line} is not closed before here, or a comma is missing", "Close it. "
    if problem.startswith("expected "):
        problem = problem.partition(", but ")[0]
        if error.context and error.context_mark:
            problem += f", {error.context} that begins in line {error.context_mark.line + 1}"
        return problem, "Check the brackets, quotes and indentation up to there. "
    if "'\\t'" in problem:
        return "a tab where YAML wants spaces", "Indent with spaces. "
    if error.context and "quoted" in error.context and error.context_mark:
        line = error.context_mark.line + 1
        return f"the quote that begins in line {line} is not closed", "Close it, or leave it out. "
    problem = problem.partition("'")[0].strip()
    if problem.startswith("found"):
        return problem, "Put text that begins with one of *&!%@` in quotes. "
    return problem, "Check the indentation and the colons up to there. "


def read_sections(path: Path, *sections: str) -> dict[str, Any] | None:
    """Return these sections of a document that cannot be parsed as a whole; None if one of them cannot be either.

    A section goes from its key at the start of a line to the next line that is not indented, no comment and no item.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = {match["key"]: match[0] for match in _SECTION.finditer(text)}
    if "tables" not in found and "catalogs" not in found:
        return None  # The document is written in another style, in which sections do not begin lines.
    parsed: dict[str, Any] = {}
    for section in sections:
        if section not in found:
            continue
        try:
            parsed |= yaml.safe_load(found[section])
        except (yaml.YAMLError, ValueError, RecursionError):
            return None
    return parsed


# The last of two sections of one name counts, as in PyYAML; the whole document then has another fault, too.
_SECTION = re.compile(r"^(?P<key>[a-z_]+):.*(?:\n(?:[ \t#-].*)?(?=\n|\Z))*", re.MULTILINE)


def read_document(path: Path, text: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the file's mapping and its duplicate and unknown keys. Raises ConfigInvalid if it cannot be parsed."""
    hint = "Name the configuration file with --config PATH. The config.yaml that comes with dvsync explains every key."
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8") if text is None else text)
    except OSError as error:
        raise ConfigInvalid(f"{path}: {(error.strerror or str(error)).lower()}", hint=hint) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigInvalid(f"{path}: the file is not UTF-8 text", hint=hint) from error
    try:
        node = loader.get_single_node()
        duplicates = [*_duplicate_keys(node)]
        document = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem, advice = _problem_of(error)
        raise ConfigInvalid(f"{where}{problem}", path=str(path), hint=advice + hint) from None
    except (ValueError, RecursionError) as error:
        is_value = isinstance(error, ValueError)
        reason = "the file contains an invalid date or number" if is_value else "the file is nested too deeply"
        raise ConfigInvalid(f"{path}: {reason}", hint=hint) from None
    finally:
        loader.dispose()
    if document is None:
        raise ConfigInvalid(f"{path}: the file is empty", hint=hint)
    if not isinstance(document, dict):
        raise ConfigInvalid(f"{path}: the top level must be a mapping of keys to values", hint=hint)
    # Take out keys that begin with `_`: pydantic-settings treats such keyword arguments as its own options.
    unknown = [key for key in document if not isinstance(key, str) or key.startswith("_")]
    faults = [*duplicates, *(f"{key}: unknown key" for key in unknown)]
    return {key: value for key, value in document.items() if key not in unknown}, faults
