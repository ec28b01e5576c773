"""The paints of ``render``: what stands around a person."""

from __future__ import annotations

from dataclasses import dataclass

from vitascope.frames import Frame

__all__ = ["MatteOnly", "OnColor", "OnFrame", "Paint", "Rgb", "Tint"]

Rgb = tuple[int, int, int]
"""Gamma-encoded red, green and blue, 0..255."""


@dataclass(frozen=True, slots=True)
class OnColor:
    """The person on one colour; black is a cutout."""

    rgb: Rgb


@dataclass(frozen=True, slots=True, eq=False)
class OnFrame:
    """The person on another picture."""

    background: Frame
    """A picture of the frame's size, format and colour, on its device."""


@dataclass(frozen=True, slots=True)
class Tint:
    """The picture with the person tinted: for judging a matte by eye."""

    rgb: Rgb
    opacity: float
    """0 leaves the picture alone, 1 paints the person over."""


@dataclass(frozen=True, slots=True)
class MatteOnly:
    """Alpha as a grey picture: black is background, white is person."""

    full_range: bool
    """True writes codes 0..peak (lossless files), False 16..235 and their 10-bit equals (players)."""
    bit_depth: int | None = None
    """8 or 10; the frame's own (at most 10) when None."""


Paint = OnColor | OnFrame | Tint | MatteOnly
