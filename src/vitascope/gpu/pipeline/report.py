"""Measures where the time of a run went: per thread, and as percentiles of durations.

The verdict is drawn in ``profiling/pace.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Protocol

import numpy as np

from vitascope.gpu.pipeline.queues import QueueReport


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """The work of a stage's threads, all workers together."""

    name: str
    workers: int
    items: int
    """Items taken; of a source, items given."""
    busy_seconds: float
    """Wall time inside the stage's own work: no waiting for items, room or turn, no ``open``, no ``close``."""
    cpu_seconds: float
    """CPU time of the stage's own threads, without those that a native library starts."""
    load: float
    """``busy_seconds`` as a share of the wall time of all workers, 0..1."""
    latency: Latency
    """Busy time for one item; of a ``Group``, for one burst of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The slowest stage."""

    stage: str
    score: float
    """0..1: 1 where half the cost of this stage would halve the time of the run, 0 where it would save nothing."""
    evidence: str
    """One sentence."""


class Measured(Protocol):
    """A run that can report its progress: a pipeline, or several that share the work."""

    def snapshot(self) -> PipelineReport:
        """The report so far; callable from any thread."""


class Interruptible(Measured, Protocol):
    """A run that can also be interrupted."""

    def interrupt(self) -> None:
        """End the run from any thread, without waiting; the thread that runs it gets a ``KeyboardInterrupt``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """Where the time of a run went, so far if it still runs."""

    stages: tuple[StageReport, ...]
    """In order; the last one is called ``consumer`` when the results were taken from ``stream``."""
    queues: tuple[QueueReport, ...]
    """``queues[n]`` stands between ``stages[n]`` and ``stages[n + 1]``."""
    latency: Latency
    """From leaving the source to leaving the pipeline; a grouped result is as old as its oldest part."""
    wall_seconds: float
    cores_busy: float
    """CPU cores that the whole process kept busy on average, native threads included."""
    finished: bool
    """False while the pipeline runs."""
    stopped: bool
    """True when ``stop`` was called, Ctrl-C pressed, or the consumer left, before the run was over."""
    bottleneck: Bottleneck | None
    """None before the first item."""
    machine_cores_busy: float | None = None
    """CPU cores that all processes of the machine kept busy on average; None if the system does not report it."""

    @property
    def items(self) -> int:
        """Items that left the pipeline."""
        return self.latency.count

    @property
    def items_per_second(self) -> float:
        """Items that left the pipeline, over the wall time."""
        return self.items / self.wall_seconds if self.wall_seconds else 0.0


class Meter:
    """The work of one thread; only that thread writes it, others read it without a lock."""

    def __init__(self) -> None:
        self.items = 0
        self.busy_seconds = 0.0
        self.cpu_seconds = 0.0
        self.latency = LatencyHistogram()
        self._busy_since = 0.0  # 0 while waiting
        self._since_lap = 0.0

    def resume(self) -> None:
        """Work begins."""
        self._busy_since = perf_counter()

    def pause(self) -> None:
        """Work is interrupted, by a wait or for good."""
        spent = perf_counter() - self._busy_since if self._busy_since else 0.0
        self._busy_since = 0.0
        self.busy_seconds += spent
        self._since_lap += spent

    def lap(self) -> None:
        """Count the work since the last lap as one duration."""
        self.latency.add(self._since_lap)
        self._since_lap = 0.0

    def busy_until(self, now: float) -> float:
        """Seconds of work, including ongoing work."""
        since = self._busy_since
        return self.busy_seconds + (max(now - since, 0.0) if since else 0.0)


def summarise(name: str, meters: Sequence[Meter], *, wall_seconds: float, now: float) -> StageReport:
    """Add up what the workers of one stage measured until ``now``."""
    busy_seconds = sum(meter.busy_until(now) for meter in meters)
    return StageReport(
        name=name,
        workers=len(meters),
        items=sum(meter.items for meter in meters),
        busy_seconds=busy_seconds,
        cpu_seconds=sum(meter.cpu_seconds for meter in meters),
        load=min(busy_seconds / (wall_seconds * len(meters)), 1.0) if wall_seconds else 0.0,
        latency=LatencyHistogram.summary(meter.latency for meter in meters),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Statistics of durations; zeros if there were none."""

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
        """Count one duration, or several equal ones."""
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
        """Add the counts of another histogram."""
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
