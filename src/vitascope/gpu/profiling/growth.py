"""Whether a series of measurements keeps growing: the line of ``leak_slope``, and what tells a leak from a warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from vitascope.gpu.memory.leak_slope import leak_slope

__all__ = ["Growth", "steady_growth"]

_FEWEST = 9
_WARM_UP = 0.25
_SIGNIFICANT = 3.3  # standard errors: 1 in 2,000 by chance
_MOST_SCORE = 1000.0  # of measurements without noise, whose line has no error


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A trend."""

    slope: float
    """Units of the values for each unit of the positions: the line of least squares."""
    total: float
    """What the values gained over the stretch that was looked at."""
    score: float
    """The slope in its own standard errors; 1000 at most."""


def steady_growth(positions: Sequence[float], values: Sequence[float], *, least: float) -> Growth | None:
    """The trend of a series that grows from beginning to end; None where it does not.

    The first quarter is left out: caches fill there, and pools take their size. What grows in one jump, or stops
    growing, is not a leak: each third of the rest must lie above the one before it by a fair part of the growth. The
    thirds are told by their medians, so a single outlier decides nothing.

    Args:
        positions: Times or numbers of steps, ascending.
        values: As many.
        least: Growth over the whole stretch that is worth a word, in units of the values.
    """
    begin = int(len(positions) * _WARM_UP)
    x, y = positions[begin:], values[begin:]
    if len(x) < _FEWEST:
        return None
    line = leak_slope(x, y)
    slope = line.bytes_per_second
    total = slope * line.seconds
    if slope <= 0 or total < least or slope < _SIGNIFICANT * line.error_bytes_per_second:
        return None
    bounds = [len(y) * n // 3 for n in range(4)]
    thirds = [median(y[first:end]) for first, end in pairwise(bounds)]
    steps = [later - earlier for earlier, later in pairwise(thirds)]
    if fmean(steps) <= 0 or min(steps) < 0.25 * fmean(steps):
        return None
    error = max(line.error_bytes_per_second, slope / _MOST_SCORE)
    return Growth(slope=slope, total=total, score=slope / error)
