"""What a batcher has done so far."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from vitascope.gpu.pipeline.report import Latency, LatencyHistogram

__all__ = ["BatchTally", "BatcherStats"]

_MOST_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherStats:
    """Counts since ``start``; each request that was let in is in exactly one of the last six of the first eight."""

    submitted: int = 0
    """Requests let in."""
    turned_away: int = 0
    """Requests that were not let in, because the queue was full."""
    waiting: int = 0
    running: int = 0
    """In a batch that is being computed."""
    completed: int = 0
    failed: int = 0
    """Their batch's call failed, or the batcher stopped before it."""
    expired: int = 0
    """Their level's deadline passed while they waited."""
    cancelled: int = 0
    """By the client, before their batch began."""
    batches: int = 0
    """Calls of ``inference_fn`` that succeeded."""
    rows: int = 0
    """Rows of these calls, those that only filled up included."""
    latency: Latency = field(default_factory=Latency)
    """How long completed requests took, from their timestamp to their result."""
    queue_wait: Latency = field(default_factory=Latency)
    """The part of it from ``submit`` to the call."""

    @property
    def mean_batch_size(self) -> float:
        """Requests a call."""
        return self.completed / self.batches if self.batches else 0.0

    @property
    def padding_share(self) -> float:
        """Rows that only filled up, of all: 0..1."""
        return 1 - self.completed / self.rows if self.rows else 0.0


class BatchTally:
    """Adds up what workers report; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("submitted", "turned_away", "completed", "failed", "expired", "cancelled", "batches", "rows"), 0
        )
        self._latency, self._queue_wait = LatencyHistogram(), LatencyHistogram()
        # Not sorted into the histograms yet: many at once cost a tenth.
        self._latencies: list[float] = []
        self._queue_waits: list[float] = []

    def count(self, **more: int) -> None:
        """Add to counts by name."""
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def let_in(self) -> None:
        """One more request was let in."""
        with self._lock:
            self._counts["submitted"] += 1

    def complete(self, *, latency_seconds: Sequence[float], queue_seconds: Sequence[float]) -> None:
        """Requests have their results: one duration of each kind for each."""
        with self._lock:
            self._counts["completed"] += len(latency_seconds)
            self._latencies += latency_seconds
            self._queue_waits += queue_seconds
            if len(self._latencies) >= _MOST_KEPT:
                self._sort_in()

    def stats(self, *, waiting: int, running: int) -> BatcherStats:
        """The sums as they are."""
        with self._lock:
            self._sort_in()
            return BatcherStats(
                **self._counts,
                waiting=waiting,
                running=running,
                latency=LatencyHistogram.summary([self._latency]),
                queue_wait=LatencyHistogram.summary([self._queue_wait]),
            )

    def _sort_in(self) -> None:
        """Under the lock."""
        for histogram, seconds in ((self._latency, self._latencies), (self._queue_wait, self._queue_waits)):
            histogram.add_many(seconds)
            seconds.clear()
