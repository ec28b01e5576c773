"""Decides whether a series of measurements grows: a fitted line, and a trend robust to steps and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, median

_FEWEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakSlope:
    """The line of least squares through measurements of memory."""

    bytes_per_second: float
    """Slope; negative where memory shrinks."""
    error_bytes_per_second: float
    """Standard error of the slope."""
    confidence: float
    """Probability, 0 to 1, that memory grows at all: of Student's t with as many degrees of freedom as there are
    measurements less two. It takes measurements for independent; steps and saw-teeth make it bolder than it should be,
    so look at the slope as well."""
    count: int
    """Measurements."""
    seconds: float
    """From the first to the last."""

    @property
    def is_leak(self) -> bool:
        """True where growth is all but sure (confidence from 0.99), and no rounding error: 1 kB a second or more."""
        return self.confidence >= 0.99 and self.bytes_per_second >= 1000.0


def leak_slope(seconds: Sequence[float], sizes_bytes: Sequence[float]) -> LeakSlope:
    """The slope of sizes over time.

    Args:
        seconds: When each was measured.
        sizes_bytes: What was measured.

    Returns:
        A slope of 0 with a confidence of 0.5, which says nothing, for fewer than three measurements or no time between
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
    """Student's t distribution by Wallace's normal approximation (1959).

    Within 0.008 at one degree of freedom, 0.001 from three on.
    """
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return NormalDist().cdf(math.copysign(z, t))


_FEWEST_LOOKS = 9
_WARM_UP = 0.25
_SIGNIFICANT = 3.3  # standard errors: 1 in 2,000 by chance
_MOST_SCORE = 1000.0  # of measurements without noise, whose line has no error


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A trend."""

    slope: float
    """Units of the values for each unit of the positions: the line of least squares."""
    total: float
    """Gain of the values over the stretch that was looked at."""
    score: float
    """The slope in its own standard errors; 1000 at most."""


def steady_growth(positions: Sequence[float], values: Sequence[float], *, least: float) -> Growth | None:
    """The trend of a series that grows from start to end; None if it does not.

    The first quarter is left out: caches fill there, and pools take their size. What grows in one jump, or stops
    growing, is not a leak: each third of the rest must lie above the one before it by a fair part of the growth. The
    thirds are compared by their medians, so a single outlier decides nothing.

    Args:
        positions: Times or numbers of steps, ascending.
        values: As many.
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
