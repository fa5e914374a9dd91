"""Reading the YAML document: safe types only, and no key twice."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from daemon.errors import ConfigInvalid


class _StrictLoader(yaml.SafeLoader):
    """A SafeLoader that records duplicate keys. YAML forbids them; PyYAML silently keeps the last one."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.faults: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    self.faults.append(f"line {key.start_mark.line + 1}: the key {key.value!r} appears twice")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _problem_of(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Say what is wrong, and what to do about it."""
    # PyYAML quotes the text at the fault. It may be a secret that was written without quotes, so cut it off.
    problem = error.problem or error.context or ""
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


def read_document(path: Path, text: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the file's mapping and its duplicate and unknown keys. Raises ConfigInvalid if it cannot be parsed."""
    hint = "Name the configuration file with --config PATH. The config.yaml that comes with dvsync explains every key."
    try:
        loader = _StrictLoader(path.read_text(encoding="utf-8") if text is None else text)
    except OSError as error:
        raise ConfigInvalid(f"{path}: {(error.strerror or str(error)).lower()}", hint=hint) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigInvalid(f"{path}: the file is not UTF-8 text", hint=hint) from error
    try:
        document = loader.get_single_data()
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
    faults = [*loader.faults, *(f"{key}: unknown key" for key in unknown)]
    return {key: value for key, value in document.items() if key not in unknown}, faults
