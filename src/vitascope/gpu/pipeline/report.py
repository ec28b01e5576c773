"""Where the time of a run went: what each thread measures. The verdict is drawn in ``profiling/pace.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from vitascope.gpu.pipeline.latency import Latency, LatencyHistogram
from vitascope.gpu.pipeline.queues import QueueReport

__all__ = ["Bottleneck", "Interruptible", "Measured", "Meter", "PipelineReport", "StageReport", "summarise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """What a stage's threads did, all its workers together."""

    name: str
    workers: int
    items: int
    """Items taken; of a source, items given."""
    busy_seconds: float
    """Wall time inside the stage's own work: no waiting for items, room or turn, no ``open``, no ``close``."""
    cpu_seconds: float
    """Processor time of the stage's own threads; threads that a native library starts are not in it."""
    load: float
    """``busy_seconds`` as a share of the wall time of all workers, 0..1."""
    latency: Latency
    """Busy time for one item; of a ``Group``, for one burst of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The stage that sets the pace."""

    stage: str
    score: float
    """0..1: 1 where half the cost of this stage would halve the time of the run, 0 where it would save nothing."""
    evidence: str
    """One sentence."""


class Measured(Protocol):
    """A run that can be asked how far it is: a pipeline, or several that work on one thing."""

    def snapshot(self) -> PipelineReport:
        """What happened so far; callable from any thread."""


class Interruptible(Measured, Protocol):
    """A run that can be given up, too."""

    def interrupt(self) -> None:
        """End it as Ctrl-C does, from any thread, without waiting: whoever runs it gets a ``KeyboardInterrupt``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """Where the time of a run went; of a running pipeline, up to now."""

    stages: tuple[StageReport, ...]
    """In order; the last one is called ``consumer`` when the results were taken from ``stream``."""
    queues: tuple[QueueReport, ...]
    """``queues[n]`` stands between ``stages[n]`` and ``stages[n + 1]``."""
    latency: Latency
    """From leaving the source to leaving the pipeline; a grouped result is as old as its oldest part."""
    wall_seconds: float
    cores_busy: float
    """Processor cores that the whole process kept busy on average, native threads included."""
    finished: bool
    """False while the pipeline runs."""
    stopped: bool
    """True when ``stop`` was called, Ctrl-C pressed, or the consumer left, before the run was over."""
    bottleneck: Bottleneck | None
    """None before the first item."""

    @property
    def items(self) -> int:
        """Items that left the pipeline."""
        return self.latency.count

    @property
    def items_per_second(self) -> float:
        """Items that left the pipeline, over the wall time."""
        return self.items / self.wall_seconds if self.wall_seconds else 0.0


class Meter:
    """What one thread did; written by that thread alone, read by others without a lock."""

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
        """Seconds of work, what goes on at the moment included."""
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
