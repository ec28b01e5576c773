"""Hints that stand on a line of their own, read without YAML: a file of 100,000 strokes takes YAML minutes.

::

    marks:
      - {at: 12.5, stroke: [[0.4, 0.3], [0.45, 0.5]], radius: 0.02, do: remove}

Such a section, as the studio writes it, is taken out of the text; whatever is not exactly so is left to YAML.

Lines end as for ``str.splitlines``, which is where they end for YAML (NEL, U+2028 and U+2029, too) in what it takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

_ITEM = re.compile(r"  - \{[^{}\"'#]+\}")
_NAME = re.compile(r"([{ ])([a-z_]+): ")
_VALUE = re.compile(r": (keep|remove|left|right|both)(?=[,}])")
_QUOTED = r': "\1"'


class LinedSection(NamedTuple):
    """A section whose items stand on a line each."""

    name: str
    line: int
    """Line of its name, from 1; its first item stands on the next one."""
    items: list[dict[str, Any]]


def taken_out(text: str, names: Sequence[str]) -> tuple[str, list[LinedSection]]:
    """Take sections whose every item is plain out of a text.

    Args:
        text: YAML.
        names: Names of the sections to look for.

    Returns:
        The text with the line breaks that it had, such sections empty in it; and the sections.
    """
    lines, whole = text.splitlines(), text.splitlines(keepends=True)
    heads = [at for at, line in enumerate(lines) if line and not line[0].isspace()]
    sections = []
    for head, following in pairwise([*heads, len(lines)]):
        name = lines[head].removesuffix(":")
        end = following
        while end > head + 1 and not lines[end - 1]:
            end -= 1
        if name not in names or name == lines[head] or end == head + 1:
            continue
        items = items_of(lines[head + 1 : end])
        if items is not None:
            sections.append(LinedSection(name, head + 1, items))
            for at in range(head + 1, end):
                whole[at] = whole[at][len(lines[at]) :]
    return "".join(whole), sections


def is_item(line: str) -> bool:
    """True where a line holds an item that begins and ends on it."""
    return _ITEM.fullmatch(line) is not None


def items_of(lines: Sequence[str]) -> list[dict[str, Any]] | None:
    """Read items from their lines; None if one holds anything but words and numbers that JSON also has."""
    if not all(map(is_item, lines)):
        return None
    text, names = _NAME.subn(r'\1"\2": ', ",".join([line[4:] for line in lines]))
    try:
        items = json.loads(f"[{_VALUE.sub(_QUOTED, text)}]", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    # An item that JSON would read as two, or as part of another, is none; nor is one with a name that stands twice.
    is_plain = len(items) == len(lines) and all(isinstance(item, dict) for item in items)
    return items if is_plain and sum(map(len, items)) == names else None


def _refuse(constant: str) -> float:
    raise ValueError(constant)
