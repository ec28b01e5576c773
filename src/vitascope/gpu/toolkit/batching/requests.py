"""Requests and responses of a batcher, and the rules by which requests become batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from concurrent.futures import Future, InvalidStateError
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral
from threading import Lock
from time import perf_counter
from typing import Any, Literal, TypeAlias

__all__ = [
    "BatchConfig",
    "Clock",
    "InferenceRequest",
    "InferenceResponse",
    "OnDeadline",
    "OnFull",
    "PriorityLevel",
    "Promise",
    "Reply",
]


class Clock:
    """Tells the time by ``time.perf_counter``, and waits; a test hands in another one."""

    def now(self) -> float:
        """Seconds from any origin; never goes back."""
        return perf_counter()

    def wait(self, condition: threading.Condition, seconds: float | None) -> object:
        """Wait on a condition that the caller holds until it is notified, or for so long; None: for ever."""
        return condition.wait(seconds)


class Reply:
    """One response to be, waited for by one thread.

    The methods that a batcher calls are those of ``concurrent.futures.Future``. It has no callbacks and no list of
    those who wait: a lock that the worker opens is all, at a fifth of a future's cost (``benchmarks/host_cost.py``).
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
        """Wait for the end, at most so long; False when it has not come. True once only."""
        return self._answered.acquire(timeout=-1 if seconds is None else seconds)

    def result(self) -> InferenceResponse:
        """The response, after ``wait`` said True.

        Raises:
            BaseException: What it was answered with instead.
        """
        if self._error is not None:
            raise self._error
        assert self._response is not None  # one of the two is there
        return self._response

    def done(self) -> bool:
        """True when it was answered or withdrawn."""
        return self._state in ("done", "cancelled")

    def running(self) -> bool:
        """True while its call goes on."""
        return self._state == "running"

    def cancelled(self) -> bool:
        """True when it was withdrawn."""
        return self._state == "cancelled"

    def cancel(self) -> bool:
        """Withdraw the request; False when its call has begun."""
        with self._guard:
            if self._state == "waiting":
                self._state = "cancelled"
            return self._state == "cancelled"

    def set_running_or_notify_cancel(self) -> bool:
        """Its call begins; False when it was withdrawn."""
        with self._guard:
            if self._state == "waiting":
                self._state = "running"
            return self._state == "running"

    def set_result(self, response: InferenceResponse) -> None:
        """Answer.

        Raises:
            InvalidStateError: It was answered or withdrawn before.
        """
        self._end(response, None)

    def set_exception(self, error: BaseException) -> None:
        """Answer with an error.

        Raises:
            InvalidStateError: It was answered or withdrawn before.
        """
        self._end(None, error)

    def _end(self, response: InferenceResponse | None, error: BaseException | None) -> None:
        with self._guard:
            if self._state in ("done", "cancelled"):
                raise InvalidStateError(f"the request was {self._state}")
            self._response, self._error, self._state = response, error, "done"
        self._answered.release()


Promise: TypeAlias = "Future[InferenceResponse] | Reply"
"""Where a batcher puts its answer."""


OnFull = Literal["wait", "reject"]
OnDeadline = Literal["reject", "delay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Sizes and times of batches.

    The rules are those of Triton Inference Server's dynamic batcher (NVIDIA, User Guide, Batchers): as soon as the
    network is free, a batch of ``max_batch_size`` or, failing that, of the largest preferred size that the waiting
    requests fill is sent at once. Until one is filled they wait, but none longer than ``timeout_ms``: then whatever is
    there is sent.

    Raises:
        ValueError: A size below 1, above the largest, a negative time, or a queue that holds nothing.
    """

    min_batch_size: int = 1
    """Fewest rows of a call. A smaller batch whose time has come is filled up with copies of its last request."""
    max_batch_size: int = 8
    """Most requests of a call."""
    timeout_ms: float = 50.0
    """Longest that a request waits for others to join it, while the network is free. 0 sends what is there."""
    preferred_batch_sizes: tuple[int, ...] = ()
    """Sizes that are worth sending before the timeout, besides the largest."""
    bucket_sizes: tuple[int, ...] = ()
    """Numbers of rows that calls may have, such as (1, 2, 4, 8): a batch is filled up to the next one, so that a
    network with a CUDA graph or a compiled plan for each size needs few of them. Empty: any number."""
    max_queue_size: int = 1024
    """Most requests waiting."""
    on_full: OnFull = "wait"
    """``wait`` holds the submitting thread until there is room; ``reject`` answers with an error at once."""

    def __post_init__(self) -> None:
        """Check sizes and times."""
        largest = self.max_batch_size
        sizes = (self.min_batch_size, largest, *self.preferred_batch_sizes, *self.bucket_sizes)
        if not all(map(_is_count, sizes)):
            raise ValueError(f"batch sizes are whole numbers from 1, not {sizes}")
        if self.min_batch_size > largest or any(size > largest for size in self.preferred_batch_sizes):
            raise ValueError(f"max_batch_size {largest} is below another size: {sizes}")
        if self.bucket_sizes and max(self.bucket_sizes) < largest:
            raise ValueError(f"no bucket of {self.bucket_sizes} holds a batch of {largest}")
        if not (self.timeout_ms >= 0 and math.isfinite(self.timeout_ms)):
            raise ValueError(f"timeout_ms is a time from 0, not {self.timeout_ms}")
        if not _is_count(self.max_queue_size):
            raise ValueError(
                f"a queue holds a whole number of requests, at least 1, not {self.max_queue_size!r}"
            )
        if self.on_full not in ("wait", "reject"):
            raise ValueError(f"on_full is 'wait' or 'reject', not {self.on_full!r}")

    def rows_for(self, count: int) -> int:
        """Rows of the call that carries ``count`` requests: the smallest bucket that holds them."""
        wanted = max(count, self.min_batch_size)
        return min((size for size in self.bucket_sizes if size >= wanted), default=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityLevel:
    """Rules by which the requests of one level wait.

    Raises:
        ValueError: A queue that holds nothing, a negative time, or a word that is not one of the two.
    """

    max_queue_size: int = 256
    """Most requests of this level waiting."""
    on_full: OnFull = "reject"
    """A full queue's answer: ``reject`` raises at once, ``wait`` holds the submitting thread until there is room."""
    timeout_ms: float | None = None
    """In the place of ``BatchConfig.timeout_ms``: 0 for requests that wait for nobody."""
    deadline_ms: float | None = None
    """Longest wait in the queue; None: any. Looked at whenever the network is free, so a call that runs comes first."""
    on_deadline: OnDeadline = "reject"
    """Past the deadline, ``reject`` answers with an error; ``delay`` puts the request behind the others of its level,
    where it stays until it is its turn or it starves."""

    def __post_init__(self) -> None:
        """Check the limits."""
        if self.max_queue_size < 1:
            raise ValueError(f"a level must hold at least 1 request, not {self.max_queue_size}")
        for name, value in (("timeout_ms", self.timeout_ms), ("deadline_ms", self.deadline_ms)):
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} is a time from 0, not {value}")
        if self.on_full not in ("wait", "reject") or self.on_deadline not in ("reject", "delay"):
            raise ValueError(
                "on_full is 'wait' or 'reject' and on_deadline 'reject' or 'delay', "
                f"not {self.on_full!r} and {self.on_deadline!r}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class InferenceRequest:
    """One client's input.

    Arrays on a GPU are read behind what the submitting thread's current stream was given before; they must not be
    written before the response is there.
    """

    data: Any
    """One array without a batch axis (NumPy, CuPy or torch), a number, or a tuple or dict of them. What is equal in
    shape, dtype and library is stacked along a new first axis."""
    request_id: Hashable
    """Comes back with the response."""
    timestamp: float = field(default_factory=perf_counter)
    """When the request came about, by ``time.perf_counter()``; ``latency_ms`` counts from here."""
    _: KW_ONLY
    stream_id: Hashable = None
    """Requests of one stream are answered in the order in which they were submitted. None: this one stands alone."""
    priority: int = 0
    """Level of a ``PriorityBatcher``; 0 is the most urgent."""


@dataclass(frozen=True, slots=True, eq=False)
class InferenceResponse:
    """One request's answer."""

    data: Any
    """This request's row of what ``inference_fn`` gave, in its form and library: an array without the batch axis, or a
    tuple or dict of them. Arrays are views into the batch's, which live as long as any of them."""
    request_id: Hashable
    latency_ms: float
    """From the request's ``timestamp`` until the result was finished, on a GPU too."""
    batch_size: int
    """Requests that shared the call."""
    _: KW_ONLY
    queue_ms: float
    """From ``submit`` until the call began."""
    inference_ms: float
    """The call, stacking and waiting for the GPU included."""
    padded_size: int
    """Rows of the call: ``batch_size`` and what filled it up."""
    stream_id: Hashable = None


def _is_count(value: object) -> bool:
    """A whole number from 1, of Python or NumPy."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1
