"""Flags of commands, before anything is loaded: words that they and settings choose from, and what was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Codec = Literal["h264", "h265", "av1", "prores", "vp9", "ffv1", "png"]
PlayerName = Literal["heresphere", "deovr", "skybox", "4xvr", "moon", "quest", "visionpro"]
EncoderSpeed = Literal["fast", "balanced", "quality"]
OutputKind = Literal["mask", "key", "cutout", "alpha", "blur", "replace", "overlay", "packed-alpha"]
PersonWord = Literal["largest", "pov"]
"""``largest``: who covers most of the picture over time. ``pov``: the wearer's own body at the bottom."""


@dataclass(frozen=True, slots=True)
class FlagValue:
    """The value of a flag, with the name the user typed."""

    value: Any
    name: str
    """For example ``--crf``."""


def given_flags(flags: Mapping[str, tuple[str, Any]]) -> dict[str, FlagValue]:
    """The flags that were given, by the dotted keys of their settings.

    Args:
        flags: For each key the flag's name, and its value; None where it was not given.
    """
    return {key: FlagValue(value, name) for key, (name, value) in flags.items() if value is not None}
