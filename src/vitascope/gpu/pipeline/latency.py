"""How long things take: counted in bins of equal ratio, told as percentiles."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

__all__ = ["Latency", "LatencyHistogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long something took, over all its occurrences; zeros when there were none."""

    count: int = 0
    mean_seconds: float = 0.0
    p50_seconds: float = 0.0
    """Median, within 2.2 % (the width of a histogram bin), as are the other percentiles."""
    p95_seconds: float = 0.0
    p99_seconds: float = 0.0
    max_seconds: float = 0.0
    octave_counts: tuple[int, ...] = ()
    """Distribution: place n counts durations from ``2**n`` to ``2**(n + 1)`` microseconds, the first one shorter ones,
    too, and the last place of all (32) longer ones; ends with the last that is not 0."""


class LatencyHistogram:
    """Durations in bins of equal ratio: percentiles in memory that does not grow with the count.

    Written by one thread; ``summary`` may be called from others, and is then approximate.
    """

    _BINS_PER_OCTAVE = 16  # 2 ** (1 / 32) - 1: a bin's centre is within 2.2 % of anything in it
    _SHORTEST_SECONDS = 1e-6
    _OCTAVES = 33  # up to 2.4 hours

    def __init__(self) -> None:
        self._bins = [0] * (self._BINS_PER_OCTAVE * self._OCTAVES)
        self._total_seconds = 0.0
        self._min_seconds = math.inf
        self._max_seconds = 0.0

    def add(self, seconds: float, *, count: int = 1) -> None:
        """Count one duration, or several that are like it."""
        ratio = max(seconds / self._SHORTEST_SECONDS, 1.0)
        index = int(math.log2(ratio) * self._BINS_PER_OCTAVE)
        self._bins[min(index, len(self._bins) - 1)] += count
        self._total_seconds += seconds * count
        if seconds < self._min_seconds:
            self._min_seconds = seconds
        if seconds > self._max_seconds:
            self._max_seconds = seconds

    def add_many(self, seconds: Sequence[float]) -> None:
        """Count many durations at once, at a tenth of the cost."""
        if not seconds:
            return
        ratios = np.maximum(np.asarray(seconds) / self._SHORTEST_SECONDS, 1.0)
        indices = (np.log2(ratios) * self._BINS_PER_OCTAVE).astype(np.intp)
        for index, count in zip(*np.unique(indices, return_counts=True), strict=True):
            self._bins[min(int(index), len(self._bins) - 1)] += int(count)
        self._total_seconds += sum(seconds)
        self._min_seconds = min(self._min_seconds, *seconds)
        self._max_seconds = max(self._max_seconds, *seconds)

    def absorb(self, other: LatencyHistogram) -> None:
        """Count everything that another one has counted, too."""
        self._bins = [mine + theirs for mine, theirs in zip(self._bins, other._bins, strict=True)]
        self._total_seconds += other._total_seconds
        self._min_seconds = min(self._min_seconds, other._min_seconds)
        self._max_seconds = max(self._max_seconds, other._max_seconds)

    @classmethod
    def summary(cls, histograms: Iterable[LatencyHistogram]) -> Latency:
        """Mean, maximum and nearest-rank percentiles over all the histograms together."""
        parts = list(histograms)
        bins = [sum(counts) for counts in zip(*(part._bins for part in parts), strict=True)]
        cumulative = list(accumulate(bins))
        count = cumulative[-1] if cumulative else 0
        if not count:
            return Latency()
        octaves = [sum(bins[n : n + cls._BINS_PER_OCTAVE]) for n in range(0, len(bins), cls._BINS_PER_OCTAVE)]
        while not octaves[-1]:
            octaves.pop()
        shortest = min(part._min_seconds for part in parts)
        longest = max(part._max_seconds for part in parts)

        def percentile(percent: int) -> float:
            index = bisect_left(cumulative, math.ceil(count * percent / 100))
            centre = cls._SHORTEST_SECONDS * 2 ** ((index + 0.5) / cls._BINS_PER_OCTAVE)
            return min(max(centre, shortest), longest)

        return Latency(
            count=count,
            mean_seconds=sum(part._total_seconds for part in parts) / count,
            p50_seconds=percentile(50),
            p95_seconds=percentile(95),
            p99_seconds=percentile(99),
            max_seconds=longest,
            octave_counts=tuple(octaves),
        )
