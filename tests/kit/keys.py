"""A reference of all configuration keys in Markdown, made from the texts below the settings' fields.

`make docs` prints it into docs/configuration.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from inspect import getsource
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from daemon.config.settings import NOTIFIED, DefaultsSettings, Settings, TableSettings
from daemon.config.value_types import Duration

WORDS: dict[Any, str] = {
    bool: "`true`, `false`",
    str: "text",
    Path: "path",
    dict: "properties",
    tuple: "a list of texts",
}
LINE_MAX = 120
TIME_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
SIZE_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def render_keys() -> str:
    """Return one Markdown list for each section, with the values and the meaning of each key."""
    parts = [_section(name, field) for name, field in Settings.model_fields.items()]
    return "\n\n".join(parts) + "\n"


def _section(name: str, field: FieldInfo) -> str:
    if name == "tables":
        keys = [key for key in TableSettings.model_fields if key not in DefaultsSettings.model_fields]
        intro = "A list. Each table can set these keys and those of `defaults`."
        return f"### `tables`\n\n{intro}\n\n" + _list(TableSettings, keys)
    model: Any = field.annotation
    if get_origin(model) is tuple:
        model, _ = get_args(model)
        return f"### `{name}`\n\nA list. {_text(Settings, name)}\n\n" + _list(model, list(model.model_fields))
    if isinstance(model, type) and issubclass(model, BaseModel):
        return f"### `{name}`\n\n" + _list(model, list(model.model_fields))
    return f"### `{name}`\n\n{_text(Settings, name)}"


def _list(model: type[BaseModel], keys: list[str]) -> str:
    return "\n".join(_line(model, key) for key in keys)


def _line(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    text = f"`{field.alias or name}` ({_accepted(field)}): {_text(model, name)}"
    return fill(text, LINE_MAX, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _text(model: type[BaseModel], name: str) -> str:
    """Return the text below a field, in one line."""
    owner = next(each for each in model.__mro__ if name in vars(each).get("__annotations__", {}))
    for field, below in pairwise(_body(owner)):
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == name:
            return " ".join(ast.literal_eval(below.value).split())  # type: ignore[attr-defined]
    raise LookupError(name)


@cache
def _body(model: type) -> list[ast.stmt]:
    (definition,) = ast.parse(getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    return definition.body


def _accepted(field: FieldInfo) -> str:
    """Describe the accepted values. The default is bold; a key without one is unset, unless it is required."""
    values, default = _values(field), _default(field)
    if default in (None, "required"):
        return f"{values}, required" if default else values
    if default in values:
        return values.replace(default, f"**{default}**", 1)
    return f"**{default}**" if values in WORDS.values() else f"**{default}**, {values}"


def _values(field: FieldInfo) -> str:
    """Describe the accepted values and their bounds."""
    kinds = [kind for kind in _kinds(field.annotation) if kind is not type(None)]
    literals = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    if literals:
        return ", ".join(f"`{value}`" for value in literals)
    (kind,) = kinds
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "a mapping of its keys"
    if get_origin(kind) is tuple and isinstance(each := get_args(kind)[0], type) and issubclass(each, StrEnum):
        return f"a list of {', '.join(each)}"
    if get_origin(kind) in WORDS:
        return WORDS[get_origin(kind)]
    if kind in WORDS:
        return WORDS[kind]
    (low,) = (bound.ge for bound in _metadata(field) if isinstance(bound, Ge))
    (high,) = (bound.le for bound in _metadata(field) if isinstance(bound, Le))
    return f"{_spelled(field, low)} to {_spelled(field, high)}"


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the alternatives of a union type, without their annotations."""
    if get_origin(annotation) in (Literal, dict, tuple):
        yield annotation
    elif arguments := get_args(annotation):
        wrapped = arguments[:1] if hasattr(annotation, "__metadata__") else arguments
        for argument in wrapped:
            yield from _kinds(argument)
    else:
        yield annotation


def _metadata(field: FieldInfo) -> Iterator[Any]:
    yield from field.metadata
    for argument in get_args(field.annotation):
        yield from getattr(argument, "__metadata__", ())


def _default(field: FieldInfo) -> str | None:
    if field.default is PydanticUndefined:
        return "required" if field.default_factory is None else None
    if field.default in (None, "", ()):
        return None
    if isinstance(field.default, tuple):
        return "all but `synced`" if field.default == NOTIFIED else ", ".join(f"`{value}`" for value in field.default)
    return f"`{_spelled(field, field.default)}`"


def _spelled(field: FieldInfo, value: Any) -> str:
    """Format a value as it is written in the file, such as `10s` or `64MiB`."""
    if isinstance(value, bool):
        return str(value).lower()
    if Duration in _metadata(field):
        return _with_unit(value, TIME_UNITS, 1000, "ms")
    if ByteSize in _kinds(field.annotation):
        return _with_unit(value, SIZE_UNITS, 1, "B")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _with_unit(value: float, units: tuple[tuple[int, str], ...], smallest: int, unit: str) -> str:
    for size, word in units:
        if value >= size and value % size == 0:
            return f"{value / size:g}{word}"
    return f"{value * smallest:g}{unit}"


if __name__ == "__main__":
    print(render_keys(), end="")
