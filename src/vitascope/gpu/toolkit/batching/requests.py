"""Requests and responses of a batcher, and the waiting room that forms batches.

Order of service: starved requests, then level by level those in time, then the level's delayed ones. A picked
request takes the earlier ones of its stream along, whatever their level, so a stream is never reordered.

Requests of one batch have the same shape and kind. Other kinds wait for a batch of their own, under the same
rules. ``WaitingRoom`` has neither threads nor a clock.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import chain, islice, takewhile
from threading import Lock
from time import perf_counter
from typing import Any, Literal, TypeAlias

from vitascope.errors import UsageError
from vitascope.gpu.number_checks import check_count, check_number


class Clock:
    """Reads ``time.perf_counter`` and waits; tests pass another one."""

    def now(self) -> float:
        """Seconds since any origin; never goes back."""
        return perf_counter()

    def wait(self, condition: threading.Condition, seconds: float | None) -> object:
        """Wait on a held condition until it is notified or the time has passed; None waits indefinitely."""
        return condition.wait(seconds)


class Reply:
    """A pending response, waited for by one thread.

    Has the methods of ``concurrent.futures.Future`` that a batcher calls, without callbacks or a list of
    waiters: one lock, released by the worker, at a fifth of a future's cost (``benchmarks/host_cost.py``).
    """

    __slots__ = ("_answered", "_error", "_guard", "_response", "_state")

    def __init__(self) -> None:
        self._guard = Lock()
        self._answered = Lock()
        self._answered.acquire()
        self._state: Literal["waiting", "running", "cancelled", "done"] = "waiting"
        self._response: InferenceResponse | None = None
        self._error: BaseException | None = None

    def wait(self, seconds: float | None) -> bool:
        """Wait for the response; False on timeout. Returns True only once."""
        return self._answered.acquire(timeout=-1 if seconds is None else seconds)

    def result(self) -> InferenceResponse:
        """Get the response, after ``wait`` returned True.

        Raises:
            BaseException: The error of a failed request.
        """
        if self._error is not None:
            raise self._error
        assert self._response is not None  # otherwise there is an error
        return self._response

    def done(self) -> bool:
        """Whether it was answered or withdrawn."""
        return self._state in ("done", "cancelled")

    def running(self) -> bool:
        """Whether its call is running."""
        return self._state == "running"

    def cancelled(self) -> bool:
        """Whether it was withdrawn."""
        return self._state == "cancelled"

    def cancel(self) -> bool:
        """Withdraw the request; False if its call has begun."""
        with self._guard:
            if self._state == "waiting":
                self._state = "cancelled"
            return self._state == "cancelled"

    def set_running_or_notify_cancel(self) -> bool:
        """Mark its call as begun; False if it was withdrawn."""
        with self._guard:
            if self._state == "waiting":
                self._state = "running"
            return self._state == "running"

    def set_result(self, response: InferenceResponse) -> None:
        """Set the response.

        Raises:
            InvalidStateError: It is already answered or withdrawn.
        """
        self._end(response, None)

    def set_exception(self, error: BaseException) -> None:
        """Set an error.

        Raises:
            InvalidStateError: It is already answered or withdrawn.
        """
        self._end(None, error)

    def _end(self, response: InferenceResponse | None, error: BaseException | None) -> None:
        with self._guard:
            if self._state in ("done", "cancelled"):
                raise InvalidStateError(f"the request was {self._state}")
            self._response, self._error, self._state = response, error, "done"
        self._answered.release()


Promise: TypeAlias = "Future[InferenceResponse] | Reply"
"""Receives a batcher's response."""


OnFull = Literal["wait", "reject"]
OnDeadline = Literal["reject", "delay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Sizes and timeouts of batches.

    Follows Triton Inference Server's dynamic batcher (NVIDIA, User Guide, Batchers): once the network is
    free, a batch of ``max_batch_size`` or else of the largest filled preferred size is sent at once.
    Otherwise requests wait, up to ``timeout_ms``: then a partial batch is sent.

    Raises:
        ValueError: A size is below 1 or above the largest, a time is negative, or the queue size is 0.
    """

    min_batch_size: int = 1
    """Fewest rows of a call. Copies of the last request pad smaller batches."""
    max_batch_size: int = 8
    """Most requests per call."""
    timeout_ms: float = 50.0
    """Longest wait for other requests while the network is free. 0 sends what is there."""
    preferred_batch_sizes: tuple[int, ...] = ()
    """Sizes worth sending before the timeout, besides the largest."""
    bucket_sizes: tuple[int, ...] = ()
    """Allowed numbers of rows, such as (1, 2, 4, 8): batches are padded to the next one, so that a network
    with a CUDA graph or compiled plan per size needs few of them. Empty: any number."""
    max_queue_size: int = 1024
    """Most requests waiting."""
    on_full: OnFull = "wait"
    """``wait`` blocks the submitting thread until there is room; ``reject`` raises at once."""

    def __post_init__(self) -> None:
        """Check sizes and timeouts."""
        for name in ("preferred_batch_sizes", "bucket_sizes"):
            if not isinstance(given := getattr(self, name), list | tuple):
                raise UsageError(f"{name} is {given!r}, expected sizes such as (1, 2, 4, 8)")
        largest = self.max_batch_size
        sizes = (self.min_batch_size, largest, *self.preferred_batch_sizes, *self.bucket_sizes)
        for size in sizes:
            check_count("a batch size", size)
        if self.min_batch_size > largest or any(size > largest for size in self.preferred_batch_sizes):
            raise ValueError(f"max_batch_size {largest} is below another size: {sizes}")
        if self.bucket_sizes and max(self.bucket_sizes) < largest:
            raise ValueError(f"no bucket of {self.bucket_sizes} holds a batch of {largest}")
        check_number("timeout_ms", self.timeout_ms, least=0)
        check_count("max_queue_size", self.max_queue_size)
        if self.on_full not in ("wait", "reject"):
            raise ValueError(f"on_full is 'wait' or 'reject', not {self.on_full!r}")

    def rows_for(self, count: int) -> int:
        """Get the rows of a call with ``count`` requests: the smallest bucket that holds them."""
        wanted = max(count, self.min_batch_size)
        return min((size for size in self.bucket_sizes if size >= wanted), default=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityLevel:
    """Rules for the waiting requests of one level.

    Raises:
        ValueError: The queue size is 0, a time is negative, or a word is unknown.
    """

    max_queue_size: int = 256
    """Most requests of this level waiting."""
    on_full: OnFull = "reject"
    """If the queue is full, ``reject`` raises at once; ``wait`` blocks the submitting thread until there is room."""
    timeout_ms: float | None = None
    """Overrides ``BatchConfig.timeout_ms``; 0 for requests that do not wait for others."""
    deadline_ms: float | None = None
    """Longest wait in the queue; None for no limit. Checked when the network is free, after any running call."""
    on_deadline: OnDeadline = "reject"
    """Past the deadline, ``reject`` answers with an error; ``delay`` moves the request behind the others of
    its level until its turn comes or it starves."""

    def __post_init__(self) -> None:
        """Check the limits."""
        check_count("max_queue_size", self.max_queue_size)
        check_number("timeout_ms", self.timeout_ms, least=0, optional=True)
        check_number("deadline_ms", self.deadline_ms, least=0, optional=True)
        if self.on_full not in ("wait", "reject") or self.on_deadline not in ("reject", "delay"):
            raise ValueError(
                "on_full is 'wait' or 'reject' and on_deadline 'reject' or 'delay', "
                f"not {self.on_full!r} and {self.on_deadline!r}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class InferenceRequest:
    """A client's input.

    Arrays on a GPU are read behind the earlier work on the submitting thread's current stream. Do not write
    to them before the response is ready.
    """

    data: Any
    """An array without a batch axis (NumPy, CuPy or torch), a number, or a tuple or dict of them. Data of
    equal shape, dtype and library is stacked along a new first axis."""
    request_id: Hashable
    """Returned with the response."""
    timestamp: float = field(default_factory=perf_counter)
    """Creation time, by ``time.perf_counter()``; ``latency_ms`` counts from here."""
    _: KW_ONLY
    stream_id: Hashable = None
    """Requests of one stream are answered in submission order. None: no stream."""
    priority: int = 0
    """Level of a ``PriorityBatcher``; 0 is the most urgent."""


@dataclass(frozen=True, slots=True, eq=False)
class InferenceResponse:
    """The response to a request."""

    data: Any
    """The request's row of ``inference_fn``'s output, in its structure and library: an array without the
    batch axis, or a tuple or dict of them. Arrays are views of the batch's, which live as long as any
    view."""
    request_id: Hashable
    latency_ms: float
    """Time from the request's ``timestamp`` to its finished result, on a GPU too."""
    batch_size: int
    """Requests in the same call."""
    _: KW_ONLY
    queue_ms: float
    """Time from ``submit`` to the start of the call."""
    inference_ms: float
    """Time of the call, including stacking and waiting for the GPU."""
    padded_size: int
    """Rows of the call, including padding."""
    stream_id: Hashable = None


@dataclass(slots=True, eq=False)
class Waiting:
    """A waiting request."""

    request: InferenceRequest
    kind: Hashable
    """Equal for requests that can be stacked."""
    number: int
    """Order of arrival."""
    arrived: float
    future: Promise = field(default_factory=Future)
    origin: Any = None
    """The submitting thread's streams."""


class WaitingRoom:
    """Waiting requests by level, kind and stream; the caller holds the lock.

    Args:
        config: Sizes and timeouts.
        levels: Levels, most urgent first.
        starvation_seconds: Wait after which a request precedes all others; None: never.
    """

    def __init__(
        self, config: BatchConfig, *, levels: Sequence[PriorityLevel], starvation_seconds: float | None = None
    ) -> None:
        self.levels = tuple(levels)
        self._linger_seconds = [
            (config.timeout_ms if level.timeout_ms is None else level.timeout_ms) / 1e3
            for level in self.levels
        ]
        self._deadline_seconds = [
            math.inf if level.deadline_ms is None else level.deadline_ms / 1e3 for level in self.levels
        ]
        self._patience_seconds = list(map(min, self._linger_seconds, self._deadline_seconds))
        self._most = config.max_batch_size
        self._preferred = tuple(sorted(config.preferred_batch_sizes, reverse=True))
        self._starvation = starvation_seconds
        self._in_time: list[OrderedDict[int, Waiting]] = [OrderedDict() for _ in levels]
        self._put_back: list[OrderedDict[int, Waiting]] = [OrderedDict() for _ in levels]
        self._streams: dict[Hashable, OrderedDict[int, Waiting]] = {}
        self._kinds: dict[Hashable, int] = {}
        self._count = 0
        self._fills = min((self._most, *self._preferred))

    def __len__(self) -> int:
        """Number of waiting requests."""
        return self._count

    def has_room(self, level: int) -> bool:
        """Whether another request of this level may enter."""
        return len(self._in_time[level]) + len(self._put_back[level]) < self.levels[level].max_queue_size

    def can_fill(self, kind: Hashable) -> bool:
        """Whether a kind may have enough requests for a batch that is sent at once."""
        return self._kinds.get(kind, 0) >= self._fills

    def add(self, entry: Waiting) -> None:
        """Add a request; numbers and arrival times must increase."""
        self._in_time[entry.request.priority][entry.number] = entry
        self._kinds[entry.kind] = self._kinds.get(entry.kind, 0) + 1
        self._count += 1
        stream = entry.request.stream_id
        if stream is not None:
            self._streams.setdefault(stream, OrderedDict())[entry.number] = entry

    def expire(self, now: float) -> list[Waiting]:
        """Enforce deadlines: move delayed requests back; remove and return rejected ones."""
        rejected = []
        for level, (rule, deadline) in enumerate(zip(self.levels, self._deadline_seconds, strict=True)):
            if deadline == math.inf:
                continue
            line = self._in_time[level]
            while line and now >= next(iter(line.values())).arrived + deadline:
                number, entry = line.popitem(last=False)
                self._put_back[level][number] = entry
                if rule.on_deadline == "reject":
                    rejected.append(entry)
                    self._remove(entry)
        return rejected

    def take(self, now: float, *, closing: bool = False) -> list[Waiting]:
        """Remove and return the next batch.

        Args:
            now: Current time of the clock, in seconds.
            closing: No more requests will come, so none waits for others.

        Returns:
            At most ``max_batch_size`` requests of one kind; empty if it is better to wait.
        """
        due: set[Hashable] | None = None
        for kind in self._kinds_in_order(now):
            batch = self._candidates(kind, now)
            size = self._size_to_send(len(batch))
            if not size and batch:
                if due is None:
                    due = self._due_kinds(now)
                size = len(batch) if closing or kind in due else 0
            if size:
                for entry in batch[:size]:
                    self._remove(entry)
                return batch[:size]
        return []

    def wake_at(self) -> float | None:
        """When to ask again if no request arrives, after ``expire`` and ``take`` returned nothing; None: never."""
        earliest = None
        for patience, line in zip(self._patience_seconds, self._in_time, strict=True):
            if line:
                time = next(iter(line.values())).arrived + patience
                if earliest is None or time < earliest:
                    earliest = time
        return earliest

    def clear(self) -> list[Waiting]:
        """Remove and return all requests, in order of arrival."""
        everyone = sorted(self._everyone(), key=lambda entry: entry.number)
        for entry in everyone:
            self._remove(entry)
        return everyone

    def _everyone(self) -> Iterator[Waiting]:
        return chain.from_iterable(line.values() for line in (*self._in_time, *self._put_back))

    def _remove(self, entry: Waiting) -> None:
        level, stream = entry.request.priority, entry.request.stream_id
        if self._in_time[level].pop(entry.number, None) is None:
            del self._put_back[level][entry.number]
        self._count -= 1
        self._kinds[entry.kind] -= 1
        if not self._kinds[entry.kind]:
            del self._kinds[entry.kind]
        if stream is not None:
            del self._streams[stream][entry.number]
            if not self._streams[stream]:
                del self._streams[stream]

    def _size_to_send(self, ready: int) -> int:
        """Number of ready requests to send at once; 0 if they should wait for others."""
        if ready >= self._most:
            return self._most
        return next((size for size in self._preferred if size <= ready), 0)

    def _due_kinds(self, now: float) -> set[Hashable]:
        """Kinds of requests that waited long enough, or of the first in their stream if they are behind others."""
        due = set()
        for linger, line, put_back in zip(self._linger_seconds, self._in_time, self._put_back, strict=True):
            late = takewhile(partial(_has_waited, now, linger), line.values())
            for entry in chain(late, put_back.values()):
                due.add(next(iter(self._its_stream(entry))).kind)
                if len(due) == len(self._kinds):
                    return due
        return due

    def _kinds_in_order(self, now: float) -> list[Hashable]:
        if len(self._kinds) < 2:
            return list(self._kinds)
        return list(dict.fromkeys(entry.kind for entry in self._in_order(now)))

    def _candidates(self, kind: Hashable, now: float) -> list[Waiting]:
        """Next requests of a kind, at most a full batch; an entry never precedes an earlier one of its stream."""
        if len(self._in_time) == len(self._kinds) == 1 and not self._put_back[0]:
            return list(islice(self._in_time[0].values(), self._most))  # one level, one kind: by arrival
        chosen: dict[int, Waiting] = {}
        for entry in self._in_order(now):
            if entry.kind != kind or entry.number in chosen:
                continue
            for earlier in self._its_stream(entry):
                if earlier.number > entry.number or earlier.kind != kind:
                    break
                chosen[earlier.number] = earlier
                if len(chosen) == self._most:
                    return list(chosen.values())
        return list(chosen.values())

    def _its_stream(self, entry: Waiting) -> Sequence[Waiting] | Iterator[Waiting]:
        stream = entry.request.stream_id
        return (entry,) if stream is None else iter(self._streams[stream].values())

    def _in_order(self, now: float) -> Iterator[Waiting]:
        starves = partial(_has_waited, now, math.inf if self._starvation is None else self._starvation)
        lines = (*self._in_time, *self._put_back)
        starving = chain.from_iterable(takewhile(starves, line.values()) for line in lines)
        yield from sorted(starving, key=lambda entry: entry.number)
        for line in chain.from_iterable(zip(self._in_time, self._put_back, strict=True)):
            yield from (entry for entry in line.values() if not starves(entry))


def _has_waited(now: float, seconds: float, entry: Waiting) -> bool:
    return now >= entry.arrived + seconds
