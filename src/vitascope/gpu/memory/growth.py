"""Decide whether measurements grow: by a fitted line, or by a trend despite steps and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, median

_FEWEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakSlope:
    """Least-squares line through measurements of memory."""

    bytes_per_second: float
    """Slope; negative if memory shrinks."""
    error_bytes_per_second: float
    """Standard error of the slope."""
    confidence: float
    """Probability, 0 to 1, that memory grows at all, by Student's t with two degrees of freedom fewer than
    measurements. It assumes independent measurements; steps and saw-teeth inflate it, so look at the slope as
    well."""
    count: int
    """Number of measurements."""
    seconds: float
    """Time from the first to the last, in seconds."""

    @property
    def is_leak(self) -> bool:
        """True if growth is almost certain (confidence from 0.99) and at least 1 kB per second."""
        return self.confidence >= 0.99 and self.bytes_per_second >= 1000.0


def leak_slope(seconds: Sequence[float], sizes_bytes: Sequence[float]) -> LeakSlope:
    """Fit the slope of sizes over time.

    Args:
        seconds: Times of the measurements.
        sizes_bytes: Measured sizes.

    Returns:
        Slope 0 and confidence 0.5, which mean nothing, for fewer than three measurements or no time between
        them.
    """
    count = len(seconds)
    span = max(seconds) - min(seconds) if count else 0.0
    if count < _FEWEST or span <= 0:
        return LeakSlope(
            bytes_per_second=0.0, error_bytes_per_second=0.0, confidence=0.5, count=count, seconds=span
        )
    mean_time, mean_size = sum(seconds) / count, sum(sizes_bytes) / count
    times = [second - mean_time for second in seconds]
    sizes = [size - mean_size for size in sizes_bytes]
    spread = sum(time * time for time in times)
    slope = sum(time * size for time, size in zip(times, sizes, strict=True)) / spread
    squares = sum((size - slope * time) ** 2 for time, size in zip(times, sizes, strict=True))
    freedom = count - 2
    error = math.sqrt(squares / freedom / spread)
    if error > abs(slope) * 1e-12:
        confidence = _student_cdf(slope / error, freedom)
    else:  # a perfect line
        confidence = 0.5 if slope == 0 else float(slope > 0)
    return LeakSlope(
        bytes_per_second=slope,
        error_bytes_per_second=error,
        confidence=confidence,
        count=count,
        seconds=span,
    )


def _student_cdf(t: float, freedom: int) -> float:
    """Student's t distribution, by Wallace's normal approximation (1959).

    Within 0.008 at one degree of freedom, 0.001 from three on.
    """
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return NormalDist().cdf(math.copysign(z, t))


_FEWEST_LOOKS = 9
_WARM_UP = 0.25
_SIGNIFICANT = 3.3  # standard errors: 1 in 2,000 by chance
_MOST_SCORE = 1000.0  # for measurements without noise, whose line has no error


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A trend."""

    slope: float
    """Slope of the least-squares line, in units of the values per unit of the positions."""
    total: float
    """Growth of the values over the examined part."""
    score: float
    """Slope divided by its standard error; at most 1000."""


def steady_growth(positions: Sequence[float], values: Sequence[float], *, least: float) -> Growth | None:
    """Get the trend of a series that grows from beginning to end; None if it does not.

    The first quarter is ignored: caches fill and pools grow then. Growth in one jump, or growth that stops,
    is not a leak: each third of the rest must exceed the one before by a fair part of the growth. Thirds are
    compared by medians, so a single outlier does not matter.

    Args:
        positions: Times or step numbers, ascending.
        values: Values, one per position.
        least: Smallest growth over all samples that counts, in units of the values.
    """
    begin = int(len(positions) * _WARM_UP)
    x, y = positions[begin:], values[begin:]
    if len(x) < _FEWEST_LOOKS:
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
