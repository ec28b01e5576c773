"""Whether a series of measurements keeps growing: trend and its significance, without assumptions on the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Growth", "steady_growth"]

_MOST_POINTS = 400  # pairs are compared: 80,000 of them
_WARM_UP = 0.25
_SIGNIFICANT = 3.3  # standard deviations: 1 in 2,000 by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A trend."""

    slope: float
    """Units of the values for each unit of the positions; the median over all pairs (Theil 1950, Sen 1968)."""
    total: float
    """What the values gained over the stretch that was looked at."""
    score: float
    """Standard deviations from no trend (Mann 1945, Kendall 1975)."""


def steady_growth(positions: Sequence[float], values: Sequence[float], *, least: float) -> Growth | None:
    """The trend of a series that grows from beginning to end; None where it does not.

    The first quarter is left out: caches fill there, and pools take their size. What grows in one jump, or stops
    growing, is not a leak: each third of the rest must lie above the one before it by a fair part of the growth.

    Args:
        positions: Times or numbers of steps, ascending.
        values: As many.
        least: Growth over the whole stretch that is worth a word, in units of the values.
    """
    x, y = np.asarray(positions, float), np.asarray(values, float)
    begin = int(len(x) * _WARM_UP)
    x, y = x[begin:], y[begin:]
    if len(x) < 9:
        return None
    if len(x) > _MOST_POINTS:
        chosen = np.linspace(0, len(x) - 1, _MOST_POINTS).astype(int)
        x, y = x[chosen], y[chosen]
    later, earlier = np.tril_indices(len(x), -1)
    apart = x[later] > x[earlier]
    rises = y[later] - y[earlier]
    slope = float(np.median(rises[apart] / (x[later] - x[earlier])[apart])) if apart.any() else 0.0
    score = _mann_kendall(y, float(np.sign(rises).sum()))
    total = slope * float(x[-1] - x[0])
    thirds = [float(np.median(part)) for part in np.array_split(y, 3)]
    steps = np.diff(thirds)
    if score < _SIGNIFICANT or total < least or steps.min() < 0.25 * steps.mean() or steps.mean() <= 0:
        return None
    return Growth(slope=slope, total=total, score=score)


def _mann_kendall(values: np.ndarray, rising: float) -> float:
    """The statistic as a normal deviate, with the correction for ties."""
    count = len(values)
    _, ties = np.unique(values, return_counts=True)
    variance = (
        count * (count - 1) * (2 * count + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())
    ) / 18
    return (rising - math.copysign(1, rising)) / math.sqrt(variance) if variance > 0 and rising else 0.0
