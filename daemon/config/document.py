"""The YAML document: safe, strict, each key once."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from daemon.errors import ConfigInvalid


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that remembers keys written twice; YAML forbids them, PyYAML keeps the last one in silence."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.faults: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    self.faults.append(f"line {key.start_mark.line + 1}: the key {key.value!r} is there twice")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_document(path: Path, text: str | None) -> tuple[dict[str, Any], list[str]]:
    """The file's mapping and the faults of its spelling. Raises ConfigInvalid where nothing can be read from it."""
    hint = "Give the configuration with --config PATH; the config.yaml that comes with dvsync explains every key."
    try:
        loader = _StrictLoader(path.read_text(encoding="utf-8") if text is None else text)
    except OSError as error:
        raise ConfigInvalid(f"{path}: {(error.strerror or str(error)).lower()}", hint=hint) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigInvalid(f"{path}: not a text in UTF-8", hint=hint) from error
    try:
        document = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        # What PyYAML quotes may be a secret that was written without quotes.
        problem = (error.problem or error.context or "").partition("'")[0].strip()
        advice = "A text that begins with one of *&!%@` needs quotes. " + hint
        raise ConfigInvalid(f"{where}{problem}", path=str(path), hint=advice) from None
    except (ValueError, RecursionError) as error:
        reason = "it contains an invalid date or number" if isinstance(error, ValueError) else "it is nested too deeply"
        raise ConfigInvalid(f"{path}: {reason}", hint=hint) from None
    finally:
        loader.dispose()
    if document is None:
        raise ConfigInvalid(f"{path}: is empty", hint=hint)
    if not isinstance(document, dict):
        raise ConfigInvalid(f"{path}: must be a mapping of keys to values at its top", hint=hint)
    # pydantic-settings takes keyword arguments that begin with `_` as instructions.
    unknown = [key for key in document if not isinstance(key, str) or key.startswith("_")]
    faults = [*loader.faults, *(f"{key}: unknown key" for key in unknown)]
    return {key: value for key, value in document.items() if key not in unknown}, faults
