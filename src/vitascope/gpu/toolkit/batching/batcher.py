"""Batchers: a waiting room, workers that take batches from it, and a future per request.

One lock guards the room. An idle worker takes a batch or sleeps. It is woken by a request that fills a batch
or starts waiting, by the oldest request's timeout, or by ``stop``. Nothing polls.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, Self

import numpy as np

from vitascope.closing import OwnProcess
from vitascope.device import select_device
from vitascope.errors import BatcherStoppedError, EngineError, RequestRejectedError
from vitascope.gpu.number_checks import check_count, check_number
from vitascope.gpu.pipeline.queues import INTERRUPT_CHECK_SECONDS, Turnstile
from vitascope.gpu.pipeline.report import Latency, LatencyHistogram
from vitascope.gpu.toolkit.batching.batch_arrays import Kinds, split, stack
from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer
from vitascope.gpu.toolkit.batching.requests import (
    BatchConfig,
    Clock,
    InferenceRequest,
    InferenceResponse,
    PriorityLevel,
    Promise,
    Reply,
    Waiting,
    WaitingRoom,
)
from vitascope.gpu.toolkit.worker_streams import (
    WorkerStream,
    finish,
    open_streams,
    origin_on,
    wait_for,
)

_MOST_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherStats:
    """Counts since ``start``; each accepted request is in exactly one of the last six of the first eight."""

    submitted: int = 0
    """Requests accepted."""
    turned_away: int = 0
    """Requests rejected because the queue was full."""
    waiting: int = 0
    running: int = 0
    """Requests in a running call."""
    completed: int = 0
    failed: int = 0
    """Requests whose call failed, or that were pending when the batcher stopped."""
    expired: int = 0
    """Requests whose level's deadline passed while waiting."""
    cancelled: int = 0
    """Requests withdrawn by the client before their call."""
    batches: int = 0
    """Successful calls of ``inference_fn``."""
    rows: int = 0
    """Rows of these calls, including padding."""
    latency: Latency = field(default_factory=Latency)
    """Time from a completed request's timestamp to its result."""
    queue_wait: Latency = field(default_factory=Latency)
    """The part from ``submit`` to the call."""

    @property
    def mean_batch_size(self) -> float:
        """Requests per call."""
        return self.completed / self.batches if self.batches else 0.0

    @property
    def padding_share(self) -> float:
        """Padding as a share of all rows, 0..1."""
        return 1 - self.completed / self.rows if self.rows else 0.0


class BatchTally:
    """Sums the workers' counts; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("submitted", "turned_away", "completed", "failed", "expired", "cancelled", "batches", "rows"), 0
        )
        self._latency, self._queue_wait = LatencyHistogram(), LatencyHistogram()
        # Durations are added to the histograms in bulk, at a tenth of the cost.
        self._latencies: list[float] = []
        self._queue_waits: list[float] = []

    def count(self, **more: int) -> None:
        """Add to named counts."""
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def let_in(self) -> None:
        """Count an accepted request."""
        with self._lock:
            self._counts["submitted"] += 1

    def complete(self, *, latency_seconds: Sequence[float], queue_seconds: Sequence[float]) -> None:
        """Count completed requests: one duration of each kind per request."""
        with self._lock:
            self._counts["completed"] += len(latency_seconds)
            self._latencies += latency_seconds
            self._queue_waits += queue_seconds
            if len(self._latencies) >= _MOST_KEPT:
                self._sort_in()

    def stats(self, *, waiting: int, running: int) -> BatcherStats:
        """Get the current counts."""
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
        """Call it with the lock held."""
        for histogram, seconds in ((self._latency, self._latencies), (self._queue_wait, self._queue_waits)):
            histogram.add_many(seconds)
            seconds.clear()


_NAMED = 8


@dataclass(frozen=True, slots=True, eq=False)
class ComputedPart:
    """A successful call of ``inference_fn``."""

    entries: Sequence[Waiting]
    results: Sequence[Any]
    """One result per entry."""
    rows: int
    """Rows of the call."""


class Answers:
    """Completes requests.

    Args:
        tally: Counts them.
        clock: The batcher's clock.
    """

    def __init__(self, tally: BatchTally, clock: Clock) -> None:
        self._tally = tally
        self._clock = clock

    def give(self, part: ComputedPart, *, began: float, ended: float) -> None:
        """Deliver the results of a call.

        Args:
            part: The call.
            began: Start of the batch, in the clock's seconds.
            ended: Time of the results, in the clock's seconds.
        """
        inference_ms = (ended - began) * 1e3
        given: list[tuple[Promise, InferenceResponse]] = []
        latency_seconds: list[float] = []
        queue_seconds: list[float] = []
        for entry, data in zip(part.entries, part.results, strict=True):
            if entry.future.done():  # already failed by stop
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
        for future, response in given:  # all at once, because each woken client needs the interpreter lock
            try:
                future.set_result(response)
            except InvalidStateError:  # stop has just failed and counted it
                self._tally.count(completed=-1)

    def expire(self, entries: Sequence[Waiting]) -> None:
        """Fail requests whose deadline passed while waiting."""
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
        """Fail all unanswered requests with the same error."""
        for entry in entries:
            if entry.future.done() and not entry.future.cancelled():
                continue
            if entry.future.running() or entry.future.set_running_or_notify_cancel():
                with suppress(InvalidStateError):  # already answered
                    entry.future.set_exception(error)
                    self._tally.count(failed=1)
            else:
                self._tally.count(cancelled=1)


def names_of(entries: Sequence[Waiting]) -> str:
    """List the first requests' ids for messages."""
    names = ", ".join(repr(entry.request.request_id) for entry in entries[:_NAMED])
    return f"{names}, ..." if len(entries) > _NAMED else names


InferenceFn = Callable[[Any], Any]
"""Takes a batch and returns its results; see ``InferenceRequest.data`` and ``InferenceResponse.data``."""


class Batcher:
    """Combines requests of many threads into calls of ``inference_fn``; base of the three batchers.

    Args:
        config: Sizes and timeouts.
        inference_fns: One function per worker.
        levels: Priority levels, most urgent first; if omitted, a single level with the rules of ``config``.
        starvation_seconds: See ``PriorityBatcher``.
        device: Device of the workers' current stream.
        device_id: Number of the GPU.
        sizer: Splits batches, and shrinks them when GPU memory runs out.
        clock: Clock of deadlines and of a request's ``timestamp``.

    Raises:
        DeviceError: ``cuda`` was requested and is not available.
        TypeError: ``inference_fn`` is not callable, or ``config`` has another type.
    """

    def __init__(
        self,
        config: BatchConfig,
        inference_fns: Sequence[InferenceFn],
        *,
        levels: Sequence[PriorityLevel] = (),
        starvation_seconds: float | None = None,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        sizer: AdaptiveBatchSizer | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(config, BatchConfig):
            raise TypeError(f"config is a BatchConfig, not {type(config).__name__}")
        self.config = config
        self.device = select_device(device, index=device_id)
        """The workers' device."""
        self._functions = list(inference_fns)
        if not all(map(callable, self._functions)):
            raise TypeError("inference_fn is a function that takes a batch and gives its results")
        self._sizer = sizer
        self._clock = clock or Clock()
        only = PriorityLevel(max_queue_size=config.max_queue_size, on_full=config.on_full)
        self._room = WaitingRoom(config, levels=levels or [only], starvation_seconds=starvation_seconds)
        self._kinds = Kinds()
        self._tally = BatchTally()
        self._answers = Answers(self._tally, self._clock)
        self._lock = threading.Lock()
        self._work_to_do = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._numbers, self._tickets = itertools.count(), itertools.count()
        self._running: dict[int, list[Waiting]] = {}
        self._clients = 0
        self._turnstile = Turnstile()
        self._threads: list[threading.Thread] = []
        self._asleep: dict[threading.Thread, float] = {}  # when each idle worker's timeout ends
        self._state: Literal["new", "open", "closing", "closed"] = "new"
        self._process = OwnProcess("the batcher")

    def start(self) -> Self:
        """Start the workers.

        Returns:
            The batcher.

        Raises:
            RuntimeError: It was already started.
        """
        if self._state != "new":
            raise RuntimeError("a batcher starts once; make a new one")
        streams = open_streams(self.device, len(self._functions))
        self._state = "open"
        self._threads = [
            threading.Thread(
                target=self._work, args=(stream, function), name=f"vitascope-batcher-{n}", daemon=True
            )
            for n, (stream, function) in enumerate(zip(streams, self._functions, strict=True))
        ]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Stop accepting requests, finish, and join the workers; idempotent.

        Args:
            drain: Compute waiting requests; False fails them with ``BatcherStoppedError``. A running call
                always completes.
            timeout_s: Longest wait for the workers.

        Raises:
            EngineError: ``inference_fn`` did not return in time. Its thread is abandoned, and every pending
                request failed with ``BatcherStoppedError``.
            RuntimeError: Called from ``inference_fn`` or from a future's callback.
        """
        if threading.current_thread() in self._threads:
            raise RuntimeError("a batcher cannot be stopped from its own thread")
        with self._lock:
            self._state = "closing" if self._threads and self._state in ("open", "closing") else "closed"
            given_up = [] if drain else self._room.clear()
            self._work_to_do.notify_all()
            self._has_room.notify_all()
        self._answers.fail(
            given_up, BatcherStoppedError("the batcher was stopped before this request's turn")
        )
        until = None if timeout_s is None else perf_counter() + timeout_s
        for thread in self._threads:
            thread.join(None if until is None else max(until - perf_counter(), 0.0))
        hung = [thread.name for thread in self._threads if thread.is_alive()]
        with self._lock:
            self._state = "closed"
            lost = self._room.clear() + [
                entry for entries in self._running.values() for entry in entries if hung
            ]
        self._answers.fail(
            lost, BatcherStoppedError("the batcher was stopped while its network was still running")
        )
        if hung:
            raise EngineError(
                f"inference_fn did not return within {timeout_s} s; abandoned: {', '.join(hung)}"
            )

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Stop; after an error, drop waiting requests."""
        self.stop(drain=error is None)

    @contextmanager
    def client(self) -> Iterator[None]:
        """Register the calling thread as a client that submits one request at a time.

        Once all registered clients wait for a response, nobody can join the batch, so it is sent before the
        timeout: a lone client never waits for it, and one that still prepares its request is waited for.

        Raises:
            UsageError: This process is a fork of the batcher's.
        """
        self._process.require()
        with self._lock:
            self._clients += 1
        try:
            yield
        finally:
            with self._lock:
                self._clients -= 1
                if self._everyone_waits():
                    self._work_to_do.notify()

    def submit(self, request: InferenceRequest, *, timeout_s: float | None = None) -> InferenceResponse:
        """Submit a request and wait for its response; for threads with one request at a time each.

        Args:
            request: The request; not modified.
            timeout_s: Longest wait for the response; on timeout the request is withdrawn, unless its call has
                started.

        Raises:
            TimeoutError: There was no response in time.
            RequestRejectedError: There was no room, or the level's deadline passed.
            BatcherStoppedError: The batcher is not running, or stopped before computing this request.
            TypeError: The data cannot be stacked, or ``stream_id`` is not hashable.
            ValueError: The priority does not exist, or the timestamp is in the future.
            UsageError: This process is a fork of the batcher's.
            RuntimeError: Called from ``inference_fn`` or a future's callback: later batches are answered
                after the current one ends, so this would deadlock.
            Exception: Whatever ``inference_fn`` raised; a note names the batch.
        """
        _refuse_own_threads(self._threads)
        reply = Reply()
        self._let_in(request, reply, stands_still=True)
        try:
            is_there = _waited_for(reply, timeout_s)
        except BaseException:  # Ctrl-C
            reply.cancel()
            raise
        if not is_there:
            reply.cancel()
            if not reply.wait(0):  # it may have arrived just now
                raise TimeoutError(f"no response to request {request.request_id!r} in {timeout_s} s")
        return reply.result()

    def submit_async(self, request: InferenceRequest) -> Future[InferenceResponse]:
        """Submit a request without waiting for its response.

        Blocks only if the queue is full and ``on_full`` is ``wait``; never in ``inference_fn`` and callbacks.

        Args:
            request: The request; not modified.

        Returns:
            A future of the response; ``cancel()`` withdraws the request until its call begins. Callbacks run
            on the batcher's thread. Waiting in them or in ``inference_fn``, with ``result()``,
            ``exception()``, ``concurrent.futures.wait`` or ``as_completed``, raises like ``submit``.
            ``done()`` never waits.

        Raises:
            RequestRejectedError: The queue is full.
            BatcherStoppedError: The batcher is not running.
            TypeError: The data cannot be stacked, or ``stream_id`` is not hashable.
            ValueError: The priority does not exist, or the timestamp is in the future.
            UsageError: This process is a fork of the batcher's.
        """
        future = _ResponseToBe(self._threads)
        self._let_in(request, future, stands_still=False)
        return future

    def _let_in(self, request: InferenceRequest, promise: Promise, *, stands_still: bool) -> None:
        """Add a request to the room; see ``submit_async``, and ``origin_on`` for ``stands_still``."""
        if not isinstance(request, InferenceRequest):
            raise TypeError(f"an InferenceRequest is expected, not {type(request).__name__}")
        self._process.require()
        hash(request.stream_id)  # raises for an unhashable id, which would end the workers
        level = request.priority
        if not (isinstance(level, int | np.integer) and 0 <= level < len(self._room.levels)):
            raise ValueError(
                f"request {request.request_id!r} has priority {level!r}; levels are 0 to {len(self._room.levels) - 1}"
            )
        kind = self._kinds.of(request.data)
        origin = origin_on(kind.cupy_device, kind.torch_device, stands_still=stands_still)
        with self._lock:
            now = self._clock.now()
            if not request.timestamp <= now:
                raise ValueError(
                    f"request {request.request_id!r} is stamped {request.timestamp - now:.3f} s in the future: "
                    "timestamps are time.perf_counter()"
                )
            self._require_open()
            if not self._room.has_room(level):
                self._wait_for_room(request, level)
                now = self._clock.now()
            entry = Waiting(request, kind, next(self._numbers), now, promise, origin)
            self._room.add(entry)
            self._tally.let_in()
            self._wake_for(entry)

    def _wait_for_room(self, request: InferenceRequest, level: int) -> None:
        rule = self._room.levels[level]
        while not self._room.has_room(level):
            if rule.on_full == "reject":
                self._tally.count(turned_away=1)
                raise RequestRejectedError(
                    f"request {request.request_id!r} was rejected: {rule.max_queue_size} requests are waiting"
                )
            if threading.current_thread() in self._threads:  # it may have to make room itself
                self._tally.count(turned_away=1)
                raise RequestRejectedError(
                    f"request {request.request_id!r} was rejected: {rule.max_queue_size} requests are waiting, and "
                    "the batcher's own thread cannot wait for room"
                )
            self._clock.wait(self._has_room, INTERRUPT_CHECK_SECONDS)
            self._require_open()

    def stats(self) -> BatcherStats:
        """Counts so far, from any thread."""
        with self._lock:
            return self._tally.stats(waiting=len(self._room), running=sum(map(len, self._running.values())))

    def _require_open(self) -> None:
        if self._state == "new":
            raise BatcherStoppedError(
                "the batcher was not started: call start(), or use it in a with statement"
            )
        if self._state != "open":
            raise BatcherStoppedError("the batcher was stopped")

    def _wake_for(self, entry: Waiting) -> None:
        """Wake an idle worker if a new request fills a batch, or is due before any worker's timeout."""
        if not self._asleep:
            return
        wake_at = self._room.wake_at()
        assert wake_at is not None  # a request has just arrived
        is_full = self._room.can_fill(entry.kind) or self._everyone_waits()
        if is_full or wake_at < min(self._asleep.values()):
            self._work_to_do.notify()

    def _everyone_waits(self) -> bool:
        if not self._clients:
            return False
        return self._clients <= len(self._room) + sum(map(len, self._running.values()))

    def _work(self, stream: WorkerStream, function: InferenceFn) -> None:
        try:
            while True:
                ticket, batch, expired = self._next()
                self._answers.expire(expired)
                if batch:
                    self._run(ticket, batch, stream, function)
                elif not expired:
                    return
        except BaseException as error:  # our own bug: no client may wait forever because of it
            with self._lock:
                self._state = "closing"
                lost = self._room.clear() + [entry for batch in self._running.values() for entry in batch]
                self._work_to_do.notify_all()
                self._has_room.notify_all()
            self._turnstile.stop()
            self._answers.fail(lost, error)
            raise

    def _next(self) -> tuple[int, list[Waiting], list[Waiting]]:
        """Wait for a batch or for expired requests; returns neither when the batcher closes and is empty."""
        with self._lock:
            while True:
                now = self._clock.now()
                expired = self._room.expire(now)
                nobody_comes = self._state != "open" or self._everyone_waits()
                batch = [] if expired else self._room.take(now, closing=nobody_comes)
                if expired or batch:
                    self._has_room.notify_all()
                    if len(self._room):  # wake another worker: this one will be busy
                        self._work_to_do.notify()
                    ticket = -1
                    if batch:
                        ticket = next(self._tickets)
                        self._running[ticket] = batch
                    return ticket, batch, expired
                if self._state != "open":
                    return -1, [], []
                wake_at = self._room.wake_at()
                self._asleep[threading.current_thread()] = math.inf if wake_at is None else wake_at
                self._clock.wait(self._work_to_do, None if wake_at is None else max(wake_at - now, 0.0))
                del self._asleep[threading.current_thread()]

    def _run(
        self, ticket: int, batch: Sequence[Waiting], stream: WorkerStream, function: InferenceFn
    ) -> None:
        """Compute a batch, and answer in the order in which batches were taken."""
        live = [entry for entry in batch if entry.future.set_running_or_notify_cancel()]
        began = self._clock.now()
        parts: list[ComputedPart] = []
        failure: BaseException | None = None
        try:
            if live:
                with stream.entered():
                    parts = self._infer(live, function)
        except BaseException as error:  # clients must get any error, and other requests must go on
            failure = error
        ended = self._clock.now()
        self._turnstile.enter(ticket)
        try:
            with self._lock:
                del self._running[ticket]
            self._tally.count(cancelled=len(batch) - len(live))
            if failure is not None:
                failure.add_note(f"batch of {len(live)} requests: {names_of(live)}")
                self._answers.fail(live, failure)
            self._tally.count(batches=len(parts), rows=sum(part.rows for part in parts))
            for part in parts:
                self._answers.give(part, began=began, ended=ended)
        finally:
            self._turnstile.leave()

    def _infer(self, live: Sequence[Waiting], function: InferenceFn) -> list[ComputedPart]:
        def call(entries: Sequence[Waiting]) -> list[ComputedPart]:
            rows = self.config.rows_for(len(entries))
            origins = [entry.origin for entry in entries]
            wait_for(origins)
            output = function(stack([entry.request.data for entry in entries], rows=rows))
            results = split(output, rows=rows, count=len(entries))  # while a GPU computes them
            finish(output, origins)
            return [ComputedPart(entries, results, rows)]

        return (
            call(live)
            if self._sizer is None
            else self._sizer.in_ranges(len(live), lambda first, end: call(live[first:end]))
        )


class _ResponseToBe(Future[InferenceResponse]):
    """A response that the batcher's own threads cannot wait for: they would deadlock."""

    def __init__(self, threads: Sequence[threading.Thread]) -> None:
        super().__init__()
        self._threads = threads
        self._waiters = _Waiters(self, threads)

    def result(self, timeout: float | None = None) -> InferenceResponse:
        if timeout != 0 and not self.done():
            _refuse_own_threads(self._threads)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if timeout != 0 and not self.done():
            _refuse_own_threads(self._threads)
        return super().exception(timeout)


class _Waiters(list[Any]):
    """List in which ``concurrent.futures.wait`` and ``as_completed`` register before waiting.

    Python has no public way to refuse them.
    """

    def __init__(self, future: _ResponseToBe, threads: Sequence[threading.Thread]) -> None:
        super().__init__()
        self._future = weakref.ref(
            future
        )  # a cycle would keep responses, some on a GPU, until it is collected
        self._threads = threads

    def append(self, waiter: Any) -> None:
        future = self._future()
        if future is None or not future.done():
            _refuse_own_threads(self._threads)
        super().append(waiter)


def _refuse_own_threads(threads: Sequence[threading.Thread]) -> None:
    if threading.current_thread() in threads:
        raise RuntimeError(
            "inference_fn and callbacks of a batcher cannot wait for its responses; call the network itself, or "
            "take them in a callback of submit_async()"
        )


def _waited_for(reply: Reply, timeout_s: float | None) -> bool:
    """Wait for a reply; return False on timeout."""
    if timeout_s is None and INTERRUPT_CHECK_SECONDS is None:
        return reply.wait(None)
    until = None if timeout_s is None else perf_counter() + timeout_s
    while True:
        left = None if until is None else max(until - perf_counter(), 0.0)
        slices = [seconds for seconds in (left, INTERRUPT_CHECK_SECONDS) if seconds is not None]
        if reply.wait(min(slices, default=None)):
            return True
        if left is not None and left <= min(slices):
            return False


class DynamicBatcher(Batcher):
    """Combines requests of several threads into batches, by the rules of ``BatchConfig``.

    ::

        with DynamicBatcher(BatchConfig(max_batch_size=8, timeout_ms=5), network) as batcher:
            response = batcher.submit(InferenceRequest(picture, "frame_001"))

    One worker thread calls ``inference_fn``, on a GPU with its own CUDA stream current in CuPy and torch, so
    the function needs no lock. Batches are formed in order of arrival.

    Args:
        config: Sizes and timeouts.
        inference_fn: Takes the stacked batch [rows, ...] in the requests' library, and returns results, rows
            first, in newly allocated memory.
        device: ``cuda``, ``cpu``, or ``auto``: the GPU if there is one. Sets the worker thread's current
            device and stream; arrays stay on their clients' device.
        device_id: Number of the GPU; ignored on a CPU.
        sizer: Splits batches that do not fit into GPU memory; without one clients get a
            ``DeviceMemoryError``.
        clock: Clock of deadlines; ``time.perf_counter`` if omitted.

    Raises:
        DeviceError: ``device="cuda"`` is not available.
        TypeError: ``inference_fn`` is not callable.
    """

    def __init__(
        self,
        config: BatchConfig,
        inference_fn: InferenceFn,
        *,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        sizer: AdaptiveBatchSizer | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(config, [inference_fn], device=device, device_id=device_id, sizer=sizer, clock=clock)


class StreamBatcher(Batcher):
    """A ``DynamicBatcher`` with several workers, each with its own CUDA stream; on a CPU, plain threads.

    Use it if one batch does not fill the GPU, or if the host's part of a call is long. Responses come in the
    order in which batches were formed, so streams of requests keep their order.

    For further arguments see ``DynamicBatcher``.

    Args:
        inference_fn: Like ``DynamicBatcher``'s, but called from several threads at a time; or a list of
            functions, one per stream, which need not be thread-safe. An engine is not: its CUDA graph has one
            set of buffers.
        num_streams: Batches in flight; if a list of functions is given, their number.
        sizer: See ``DynamicBatcher``; shared by the workers.

    Raises:
        ValueError: ``num_streams`` is below 1, or differs from the number of functions.
        DeviceError: ``device="cuda"`` is not available.
        TypeError: ``inference_fn`` is not callable.
    """

    def __init__(
        self,
        config: BatchConfig,
        inference_fn: InferenceFn | Sequence[InferenceFn],
        *,
        num_streams: int | None = None,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        sizer: AdaptiveBatchSizer | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_count("num_streams", num_streams, optional=True)
        if callable(inference_fn):
            functions = [inference_fn] * (2 if num_streams is None else num_streams)
        else:
            functions = list(inference_fn)
        if not functions or (num_streams is not None and num_streams != len(functions)):
            raise ValueError(
                f"{num_streams} streams for {len(functions)} functions: there must be one for each"
            )
        super().__init__(config, functions, device=device, device_id=device_id, sizer=sizer, clock=clock)


class PriorityBatcher(Batcher):
    """A ``DynamicBatcher`` with priority levels: a batch is filled from level 0 first.

    A request that has waited ``starvation_ms`` precedes all others, so it is computed right after those that
    starved before it, however many urgent ones arrive. A request takes the earlier ones of its stream along:
    priority never reorders a stream.

    For further arguments see ``DynamicBatcher``.

    Args:
        config: Sizes, and the timeout of levels without one. The levels set the queue's limits.
        levels: Levels, most urgent first; ``InferenceRequest.priority`` counts from 0.
        starvation_ms: None lets less urgent requests wait while urgent ones arrive.

    Raises:
        ValueError: ``levels`` is empty, or ``starvation_ms`` is invalid.
        DeviceError: ``device="cuda"`` is not available.
        TypeError: ``inference_fn`` is not callable.
    """

    def __init__(
        self,
        config: BatchConfig,
        inference_fn: InferenceFn,
        *,
        levels: Sequence[PriorityLevel] = (PriorityLevel(timeout_ms=0.0), PriorityLevel()),
        starvation_ms: float | None = 1000.0,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        sizer: AdaptiveBatchSizer | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not levels:
            raise ValueError("a batcher with priorities has at least one level")
        if not all(isinstance(level, PriorityLevel) for level in levels):
            raise TypeError(f"levels are PriorityLevels, not {[type(level).__name__ for level in levels]}")
        check_number("starvation_ms", starvation_ms, least=0, optional=True)
        super().__init__(
            config,
            [inference_fn],
            levels=levels,
            starvation_seconds=None if starvation_ms is None else starvation_ms / 1e3,
            device=device,
            device_id=device_id,
            sizer=sizer,
            clock=clock,
        )
