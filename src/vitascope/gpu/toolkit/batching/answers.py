"""Ending requests with a result, an error, or withdrawn: each ends once, and is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from vitascope.errors import RequestRejectedError
from vitascope.gpu.pipeline.report import Latency, LatencyHistogram
from vitascope.gpu.toolkit.batching.requests import Clock, InferenceResponse, Promise
from vitascope.gpu.toolkit.batching.waiting import Waiting

__all__ = ["Answers", "BatchTally", "BatcherStats", "ComputedPart", "names_of"]


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
    """Withdrawn by the client, before their batch began."""
    batches: int = 0
    """Calls of ``inference_fn`` that succeeded."""
    rows: int = 0
    """Rows of these calls, those that only filled up included."""
    latency: Latency = field(default_factory=Latency)
    """Time of completed requests, from their timestamp to their result."""
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


_NAMED = 8


@dataclass(frozen=True, slots=True, eq=False)
class ComputedPart:
    """One call of ``inference_fn`` that succeeded."""

    entries: Sequence[Waiting]
    results: Sequence[Any]
    """One for each entry."""
    rows: int
    """Rows of the call."""


class Answers:
    """Ends requests.

    Args:
        tally: Told of each.
        clock: The batcher's.
    """

    def __init__(self, tally: BatchTally, clock: Clock) -> None:
        self._tally = tally
        self._clock = clock

    def give(self, part: ComputedPart, *, began: float, ended: float) -> None:
        """Give each request of a call its result.

        Args:
            part: The call.
            began: When its batch was begun, in the clock's seconds.
            ended: When its results were there.
        """
        inference_ms = (ended - began) * 1e3
        given: list[tuple[Promise, InferenceResponse]] = []
        latency_seconds: list[float] = []
        queue_seconds: list[float] = []
        for entry, data in zip(part.entries, part.results, strict=True):
            if entry.future.done():  # stop gave it up
                continue
            request = entry.request
            queue_seconds.append(began - entry.arrived)
            latency_seconds.append(ended - request.timestamp)
            response = InferenceResponse(
                data,
                request.request_id,
                latency_seconds[-1] * 1e3,
                len(part.entries),
                queue_ms=queue_seconds[-1] * 1e3,
                inference_ms=inference_ms,
                padded_size=part.rows,
                stream_id=request.stream_id,
            )
            given.append((entry.future, response))
        self._tally.complete(latency_seconds=latency_seconds, queue_seconds=queue_seconds)
        for future, response in given:  # in one go: who has an answer wakes, and wants the interpreter's lock
            try:
                future.set_result(response)
            except InvalidStateError:  # stop has just given it up, and counted it
                self._tally.count(completed=-1)

    def expire(self, entries: Sequence[Waiting]) -> None:
        """Tell those whose deadline passed while they waited."""
        for entry in entries:
            if entry.future.set_running_or_notify_cancel():
                waited_ms = (self._clock.now() - entry.arrived) * 1e3
                self._tally.count(expired=1)
                entry.future.set_exception(
                    RequestRejectedError(
                        f"request {entry.request.request_id!r} waited {waited_ms:.1f} ms, past its level's deadline"
                    )
                )
            else:
                self._tally.count(cancelled=1)

    def fail(self, entries: Sequence[Waiting], error: BaseException) -> None:
        """Give all that have no answer yet the same error."""
        for entry in entries:
            if entry.future.done() and not entry.future.cancelled():
                continue
            if entry.future.running() or entry.future.set_running_or_notify_cancel():
                with suppress(InvalidStateError):  # it was answered meanwhile
                    entry.future.set_exception(error)
                    self._tally.count(failed=1)
            else:
                self._tally.count(cancelled=1)


def names_of(entries: Sequence[Waiting]) -> str:
    """The first requests' ids, for messages."""
    names = ", ".join(repr(entry.request.request_id) for entry in entries[:_NAMED])
    return f"{names}, ..." if len(entries) > _NAMED else names
