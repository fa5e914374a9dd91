"""Adds entries to `tables` in the text of a configuration, or takes one out. All other text stays as it was written.

ruamel.yaml does not do it: it indents anew, and loses the comments before an entry that follows a removed one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from daemon.errors import ConfigInvalid

Entry = Mapping[str, str]
KEY = "tables"


def add_entries(text: str, entries: Sequence[Entry]) -> str:
    """Return `text` with the entries after those that it has. Raises ConfigInvalid if they must be added by hand."""
    key, tables = _find_tables(text)
    by_hand = _lines(entries, 2)
    if tables is not None and tables.flow_style and tables.value:
        at = tables.end_mark.index - 1
        added = "".join(f", {_flow(entry)}" for entry in entries)
        edited, by_hand = text[:at] + added + text[at:], added
    elif tables is None or not tables.value:
        if key is None:
            edited = f"{text.rstrip()}\n\n{KEY}:\n{by_hand}" if text.strip() else f"{KEY}:\n{by_hand}"
        else:
            colon = text.index(":", key.end_mark.index) + 1
            end = tables.end_mark.index if tables is not None else colon
            rest = text[end:].partition("\n")
            edited = f"{text[:colon]}{rest[0]}\n{by_hand}{rest[2]}"
    else:
        at = _line_end(text, _end(tables.value[-1]))
        newline = "" if text[:at].endswith("\n") else "\n"
        edited = text[:at] + newline + _lines(entries, tables.start_mark.column) + text[at:]
    document = _document(text)
    wanted = {**document, KEY: [*(document.get(KEY) or ()), *map(dict, entries)]}
    return _checked(edited, wanted, f"Add to `{KEY}`, by hand:\n{by_hand.rstrip()}")


def remove_entry(text: str, number: int) -> str:
    """Return `text` without the entry `number`, from 0. Raises ConfigInvalid if it must be removed by hand."""
    key, tables = _find_tables(text)
    assert key is not None and tables is not None, "the entry was read from this text"
    document = _document(text)
    wanted = {**document, KEY: [entry for place, entry in enumerate(document[KEY]) if place != number]}
    entry = tables.value[number]
    if tables.flow_style:
        others = tables.value
        start = entry.start_mark.index if number == 0 else _end(others[number - 1])
        end = others[1].start_mark.index if number == 0 and len(others) > 1 else _end(entry)
        # A comment beside the entry may be about another one.
        beside = text[start : entry.start_mark.index] + text[_end(entry) : end]
        edited = text if "#" in beside else text[:start] + text[end:]
    else:
        start = text.rfind("\n", 0, text.rfind("-", 0, entry.start_mark.index)) + 1
        edited = text[:start] + text[_line_end(text, _end(entry)) :]
        if not wanted[KEY]:
            colon = text.index(":", key.end_mark.index) + 1
            edited = f"{edited[:colon]} []{edited[colon:]}"
    return _checked(edited, wanted, f"Remove it from `{KEY}` by hand.")


def _find_tables(text: str) -> tuple[yaml.ScalarNode | None, yaml.SequenceNode | None]:
    """Return the nodes of the key and of its list, if they are there."""
    root = yaml.compose(text, yaml.SafeLoader)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == KEY:
            return key, value if isinstance(value, yaml.SequenceNode) else None
    return None, None


def _end(node: yaml.Node) -> int:
    """Where the node's text ends. PyYAML ends a block where the next token begins, behind blank lines and comments."""
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return int(node.end_mark.index) - 1
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(node, yaml.MappingNode) else last)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _lines(entries: Sequence[Entry], indent: int) -> str:
    dash = " " * indent + "- "
    return "".join(
        f"{' ' * len(dash) if place else dash}{name}: {scalar(value)}\n"
        for entry in entries
        for place, (name, value) in enumerate(entry.items())
    )


def _flow(entry: Entry) -> str:
    return yaml.safe_dump(dict(entry), default_flow_style=True, allow_unicode=True, sort_keys=False, width=math.inf)[
        :-1
    ]


def scalar(text: str) -> str:
    """Format `text` as a YAML scalar on one line, with quotes if it needs them."""
    style = None if text.isprintable() else '"'
    written: str = yaml.safe_dump(text, default_style=style, allow_unicode=True, width=math.inf)
    return written.removesuffix("...\n").rstrip("\n")


def _document(text: str) -> dict[str, Any]:
    return yaml.safe_load(text) or {}


def _checked(edited: str, wanted: object, by_hand: str) -> str:
    """Return the edited text if it means what is wanted: YAML has more spellings than are edited here."""
    try:
        if yaml.safe_load(edited) == wanted:
            return edited
    except yaml.YAMLError:
        pass
    raise ConfigInvalid(f"`{KEY}` is written in a way that dvsync does not edit", hint=by_hand)
