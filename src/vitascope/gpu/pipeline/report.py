"""Reports of a run: work measured per thread, and latencies as percentiles.

``profiling/pace.py`` finds the bottleneck.
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
    """Work of a stage's threads, summed over its workers."""

    name: str
    workers: int
    items: int
    """Items taken; for a source, items produced."""
    busy_seconds: float
    """Wall time in the stage's own work: without waits for items, room or turn, ``open`` and ``close``."""
    cpu_seconds: float
    """CPU time of the stage's own threads, without threads of native libraries."""
    load: float
    """``busy_seconds`` as a share of all workers' wall time, 0..1."""
    latency: Latency
    """Busy time per item; for a ``Group``, per burst of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The slowest stage."""

    stage: str
    score: float
    """0..1: 1 if halving this stage's cost would halve the run's time, 0 if it would save nothing."""
    evidence: str
    """The reason, in one sentence."""


class Measured(Protocol):
    """A run that reports its progress: a pipeline, or several that share a task."""

    def snapshot(self) -> PipelineReport:
        """Report so far, from any thread; after the run, the final report."""


class Interruptible(Measured, Protocol):
    """A run that can also be interrupted."""

    def interrupt(self) -> None:
        """Interrupt from any thread, without waiting: the running thread gets a ``KeyboardInterrupt``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """Where a run's time went, up to now if it still runs."""

    stages: tuple[StageReport, ...]
    """In order; the last is ``consumer`` if results were taken from ``stream``."""
    queues: tuple[QueueReport, ...]
    """``queues[n]`` lies between ``stages[n]`` and ``stages[n + 1]``."""
    latency: Latency
    """Time from leaving the source to leaving the pipeline; a grouped result is as old as its oldest part."""
    wall_seconds: float
    cores_busy: float
    """CPU cores kept busy by the whole process on average, including native threads."""
    finished: bool
    """False while the pipeline runs."""
    stopped: bool
    """True if ``stop``, Ctrl-C or a leaving consumer ended the run early."""
    bottleneck: Bottleneck | None
    """None before the first item."""
    machine_cores_busy: float | None = None
    """CPU cores kept busy by all processes of the machine on average; None if the system does not report it."""

    @property
    def items(self) -> int:
        """Items that left the pipeline."""
        return self.latency.count

    @property
    def items_per_second(self) -> float:
        """Items that left the pipeline, per second of wall time."""
        return self.items / self.wall_seconds if self.wall_seconds else 0.0


class Meter:
    """Work of one thread; written by that thread alone, read by others without a lock."""

    def __init__(self) -> None:
        self.items = 0
        self.busy_seconds = 0.0
        self.cpu_seconds = 0.0
        self.latency = LatencyHistogram()
        self._busy_since = 0.0  # 0 while waiting
        self._since_lap = 0.0

    def resume(self) -> None:
        """Start counting work."""
        self._busy_since = perf_counter()

    def pause(self) -> None:
        """Stop counting, for a wait or for good."""
        spent = perf_counter() - self._busy_since if self._busy_since else 0.0
        self._busy_since = 0.0
        self.busy_seconds += spent
        self._since_lap += spent

    def lap(self) -> None:
        """Count the work since the last lap as one duration."""
        self.latency.add(self._since_lap)
        self._since_lap = 0.0

    def busy_until(self, now: float) -> float:
        """Seconds of work, including work in progress."""
        since = self._busy_since
        return self.busy_seconds + (max(now - since, 0.0) if since else 0.0)


def summarise(name: str, meters: Sequence[Meter], *, wall_seconds: float, now: float) -> StageReport:
    """Sum the measurements of a stage's workers up to ``now``."""
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
    """Median, within 2.2 % (a histogram bin's width), like the other percentiles."""
    p95_seconds: float = 0.0
    p99_seconds: float = 0.0
    max_seconds: float = 0.0
    octave_counts: tuple[int, ...] = ()
    """Distribution: entry n counts durations of ``2**n`` to ``2**(n + 1)`` microseconds. The first entry
    includes shorter ones, entry 32, the last possible, longer ones. Trailing zeros are cut."""


class LatencyHistogram:
    """Durations in bins of equal ratio: percentiles in constant memory.

    Written by one thread; other threads may call ``summary`` and get an approximation.
    """

    _BINS_PER_OCTAVE = 16  # 2 ** (1 / 32) - 1: a bin's centre is within 2.2 % of all its durations
    _SHORTEST_SECONDS = 1e-6
    _OCTAVES = 33  # up to 2.4 hours

    def __init__(self) -> None:
        self._bins = [0] * (self._BINS_PER_OCTAVE * self._OCTAVES)
        self._total_seconds = 0.0
        self._min_seconds = math.inf
        self._max_seconds = 0.0

    def add(self, seconds: float, *, count: int = 1) -> None:
        """Count one duration, or ``count`` equal ones."""
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
        """Mean, maximum and nearest-rank percentiles over all histograms."""
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
