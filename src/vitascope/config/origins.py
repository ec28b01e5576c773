"""Where a value came from, and how a setting is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = ["DEFAULT_ORIGIN", "Origin", "OriginKind", "SettingRow", "display"]


class OriginKind(StrEnum):
    """What kind of source a value came from; a later kind overrides an earlier one."""

    DEFAULT = "default"
    PROFILE = "profile"
    FILE = "file"
    SET = "set"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of one value."""

    kind: OriginKind
    label: str = ""
    """``balanced`` for a profile, ``my.yaml:12`` for a line of a file, ``--set`` or ``--crf`` for the command line."""

    @property
    def explicit(self) -> bool:
        """True when the user wrote it: not a default, and not out of a profile."""
        return self.kind not in (OriginKind.DEFAULT, OriginKind.PROFILE)

    def __str__(self) -> str:
        return f"profile {self.label}" if self.kind is OriginKind.PROFILE else self.label or str(self.kind)


DEFAULT_ORIGIN = Origin(OriginKind.DEFAULT)
"""The origin of everything that nobody set."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of ``vitascope config show``."""

    key: str
    value: Any
    plain_value: Any
    """The value as JSON and YAML have it: a number, text, true or false, null, a list or a mapping."""
    origin: Origin
    description: str

    @property
    def value_text(self) -> str:
        """The value on one line, as YAML would have it."""
        return display(self.value)


def display(value: object) -> str:
    """A value on one line, spelled as in YAML: ``null``, ``true``, ``[mask, key]``, ``16-32``."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case list() | tuple():
            return f"[{', '.join(map(display, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{display(name)}: {display(item)}' for name, item in value.items())}}}"
        case str() | Path():
            text = str(value)
            return text if text.isprintable() else repr(text)
        case _:
            return str(value)
