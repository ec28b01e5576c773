"""Which part of a pyramid of features belongs to a part of the picture: for networks whose memory lies in the plane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from vitascope.gpu.kernels.region import Region

__all__ = ["at_level", "each_part"]

Level = TypeVar("Level")


def at_level(part: Region, level: int) -> Region:
    """A part of the picture in the samples of a level, each level half the size of the one before, rounded up.

    Args:
        part: In samples of the picture; begins at a multiple of ``2 ** level``, and ends at one or at the picture's
            edge.
        level: How often the picture was halved.

    Raises:
        ValueError: It begins inside a sample of the level.
    """
    step = 1 << level
    if part.x % step or part.y % step:
        raise ValueError(f"{part} does not begin at a multiple of {step}")
    return Region(part.x >> level, part.y >> level, -(-part.width // step), -(-part.height // step))


def each_part(levels: Sequence[Level], parts: Sequence[Region]) -> Iterator[tuple[Level, list[Region]]]:
    """For each level of features, from half size down, where every eye's part lies in it."""
    for level, features in enumerate(levels, start=1):
        yield features, [at_level(part, level) for part in parts]
