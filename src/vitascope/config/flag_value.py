"""The value of a flag: what a command makes before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FlagValue:
    """The value of a flag, with the name the user typed."""

    value: Any
    name: str
    """For example ``--crf``."""
