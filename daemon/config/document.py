"""Reading the YAML document: safe types only, and no key twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from daemon.errors import ConfigInvalid


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


_OPEN_BRACKETS = {"while parsing a flow sequence": "[", "while parsing a flow mapping": "{"}


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


def read_document(path: Path, text: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the file's mapping and its duplicate keys. Raises ConfigInvalid if it cannot be parsed."""
    example = "The config.yaml that comes with dvsync explains every key."
    name_it = f"Name the configuration file with --config PATH. {example}"
    hint = f"{example} A running daemon keeps its former configuration."
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8") if text is None else text)
    except OSError as error:
        raise ConfigInvalid(f"{path}: {(error.strerror or str(error)).lower()}", hint=name_it) from error
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
