"""Time work on a GPU's own clock, with events of CuPy or PyTorch, whichever launches the kernels.

``GpuClock`` times the spans of a ``Profiler``, and ``StreamTimes`` sums up named parts of a job. Both use pairs of
events around the work, and the host never waits for these.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from vitascope.errors import DeviceError


class CudaEvents(Protocol):
    """The interface to a library's events.

    An event belongs to the GPU that was current when it was first recorded; ``event.record()`` records it on the
    current stream.
    """

    def place(self) -> tuple[int, int]:
        """Index of the current GPU, and address of the current stream; 0 is the default stream."""
        ...

    def capturing(self) -> bool:
        """True while the current stream is captured into a graph, when times are meaningless."""
        ...

    def create(self) -> Any:
        """Create an event with a timer."""
        ...

    def record_idle(self, event: Any) -> None:
        """Record an event on a new stream, which waits for nothing."""
        ...

    def done(self, event: Any) -> bool:
        """True if the GPU has reached the event; never waits."""
        ...

    def synchronize(self, event: Any) -> None:
        """Block the host until the GPU has reached the event."""
        ...

    def elapsed_ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two reached events, negative if ``stop`` came first; resolution 0.5 µs (CUDA)."""
        ...

    def push_range(self, name: str) -> None:
        """Open an NVTX range on this thread."""
        ...

    def pop_range(self) -> None:
        """Close the innermost NVTX range of this thread."""
        ...


class CupyEvents:
    """Events of CuPy."""

    def __init__(self) -> None:
        import cupy

        self._cuda = cupy.cuda
        # CuPy's own functions, without a wrapper, because a job opens ranges for every batch.
        self.push_range: Callable[[str], None] = cupy.cuda.nvtx.RangePush
        """Open an NVTX range."""
        self.pop_range: Callable[[], None] = cupy.cuda.nvtx.RangePop
        """Close the innermost NVTX range."""

    def place(self) -> tuple[int, int]:
        """Index of the current GPU, and address of the current stream."""
        return int(self._cuda.runtime.getDevice()), int(self._cuda.get_current_stream().ptr)

    def capturing(self) -> bool:
        """True while the current stream is captured."""
        stream = self._cuda.get_current_stream()
        # The default stream cannot be captured, and cannot be queried while another stream is.
        return stream.ptr != 0 and bool(stream.is_capturing())

    def create(self) -> Any:
        """Create an event with a timer."""
        return self._cuda.Event()

    def record_idle(self, event: Any) -> None:
        """Record an event on a new stream."""
        event.record(self._cuda.Stream(non_blocking=True))

    def done(self, event: Any) -> bool:
        """True if the GPU has reached the event."""
        return bool(event.done)

    def synchronize(self, event: Any) -> None:
        """Block until the GPU has reached the event."""
        event.synchronize()

    def elapsed_ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two reached events."""
        return float(self._cuda.get_elapsed_time(start, stop))


class TorchEvents:
    """Events of PyTorch."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda

    def place(self) -> tuple[int, int]:
        """Index of the current GPU, and address of the current stream."""
        return int(self._cuda.current_device()), int(self._cuda.current_stream().cuda_stream)

    def capturing(self) -> bool:
        """True while the current stream is captured."""
        return bool(self._cuda.is_current_stream_capturing())

    def create(self) -> Any:
        """Create an event with a timer."""
        return self._cuda.Event(enable_timing=True)

    def record_idle(self, event: Any) -> None:
        """Record an event on a stream of PyTorch's pool, which rarely has work."""
        event.record(self._cuda.Stream())

    def done(self, event: Any) -> bool:
        """True if the GPU has reached the event."""
        return bool(event.query())

    def synchronize(self, event: Any) -> None:
        """Block until the GPU has reached the event."""
        event.synchronize()

    def elapsed_ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two reached events."""
        return float(start.elapsed_time(stop))

    def push_range(self, name: str) -> None:
        """Open an NVTX range."""
        self._cuda.nvtx.range_push(name)

    def pop_range(self) -> None:
        """Close the innermost NVTX range."""
        self._cuda.nvtx.range_pop()


def cupy_events(*, load: bool) -> CudaEvents | None:
    """CuPy's events; None if it has no GPU.

    Args:
        load: Import CuPy; False only uses it if it is already imported.
    """
    if not load and "cupy" not in sys.modules:
        return None
    try:
        with warnings.catch_warnings():
            # CuPy warns about missing toolkits; whether it works is tested below.
            warnings.simplefilter("ignore")
            import cupy
    except ImportError:
        return None
    try:
        return CupyEvents() if cupy.cuda.runtime.getDeviceCount() else None
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver
        return None


def torch_events(*, load: bool) -> CudaEvents | None:
    """PyTorch's events; None if it has no GPU.

    Args:
        load: Import PyTorch and start CUDA; False only uses it if both are already done.
    """
    if not load and "torch" not in sys.modules:
        return None
    try:
        import torch
    except ImportError:
        return None
    cuda: Any = torch.cuda
    in_use = cuda.is_available() if load else cuda.is_initialized()
    return TorchEvents() if in_use else None


T = TypeVar("T")

_PAIRS_KEPT = 32


class EventPairs(Generic[T]):
    """Times work on the current stream of one library and GPU; the host only waits for the GPU on request.

    All measurements of GPU work in a running program use this: ``GpuClock``, for the spans of a ``Profiler``, and
    ``StreamTimes``, for sums alone. CuPy holds the interpreter lock while it creates, records and queries an event,
    so events are reused, and few are queried.

    Any thread may record; only one at a time may call ``passed``.

    Args:
        events: Events of the library whose streams are timed.
    """

    __slots__ = ("_events", "_idle", "_pending")

    def __init__(self, events: CudaEvents) -> None:
        self._events = events
        self._idle: list[Any] = []
        self._pending: deque[tuple[Any, Any, T]] = deque()

    def mark(self) -> Any:
        """Record an event on the current stream of the current GPU."""
        try:
            event = self._idle.pop()
        except IndexError:  # not tested beforehand: another thread may take the last one
            event = self._events.create()
        event.record()
        return event

    def close(self, start: Any, purpose: T) -> bool:
        """Mark the end of the work that began with ``start``.

        Args:
            start: Result of ``mark``; it now belongs to the pair.
            purpose: Returned with the time.

        Returns:
            True if enough pairs are waiting to query which ones the GPU has passed.
        """
        self._pending.append((start, self.mark(), purpose))
        return len(self._pending) > _PAIRS_KEPT

    def passed(self, *, wait: bool) -> Iterator[tuple[Any, Any, T]]:
        """Yield the pairs that the GPU has passed, oldest first.

        Args:
            wait: Wait for the GPU until no pair is left.

        Yields:
            Start, stop and purpose. The caller now owns both events: read them, and pass them to ``reuse``. If the
            GPU cannot be queried for a pair, the pair is dropped and the error raised.
        """
        pending, events = self._pending, self._events
        while pending:
            try:
                if wait:
                    events.synchronize(pending[0][1])
                elif not events.done(pending[0][1]):
                    return
            except BaseException:
                pending.popleft()
                raise
            yield pending.popleft()

    def seconds(self, start: Any, stop: Any) -> float:
        """GPU time between two passed events; negative if ``stop`` came first. Exact to 0.5 µs (CUDA)."""
        return self._events.elapsed_ms(start, stop) * 1e-3

    def reuse(self, *events: Any) -> None:
        """Return events that will not be read again."""
        self._idle += events


# cudaEventElapsedTime returns float32 milliseconds: 10 s after the anchor, a step is 1 µs.
_ANCHOR_LASTS_SECONDS = 10.0


class GpuTime(NamedTuple):
    """Time of some work on a GPU."""

    device: int
    """Index of the GPU."""
    stream: int
    """Address of the CUDA stream; 0 is the default stream."""
    start_seconds: float
    """Start time on ``time.perf_counter``, to within some ten microseconds."""
    seconds: float
    """Time from the stream's first launch to the end of its last."""


class _Purpose(NamedTuple):
    """What a pair of events is for."""

    place: tuple[int, int]
    """GPU and stream."""
    deliver: Callable[[GpuTime], None]


@dataclass(slots=True, eq=False)
class _Timeline:
    """Events recorded by one library on one GPU, and an anchor with a known host time."""

    events: CudaEvents
    pairs: EventPairs[_Purpose]
    anchor: Any
    anchor_seconds: float


class GpuMark(NamedTuple):
    """A start marked on a stream, which the GPU may not have reached yet."""

    timeline: _Timeline
    place: tuple[int, int]
    """GPU and stream."""
    event: Any


class GpuClock:
    """Measures time between two points on the current CUDA stream; never blocks the host while work goes on.

    A measurement runs from the time at which the stream reaches its first launch to the end of its last. Waits for
    other streams, or for a host that is slower than the kernels, are included. Thread-safe. Each ``Profiler`` owns
    one.

    CuPy and PyTorch each have a current stream. If both are in use, PyTorch's is timed if it is not the default
    stream and CuPy's is; else CuPy's.

    Args:
        device: ``auto`` times if CuPy or PyTorch already use a GPU, and imports neither; ``cuda`` imports them;
            ``cpu`` times nothing.

    Raises:
        DeviceError: ``cuda``, but neither library has a GPU.
        ValueError: ``device`` is unknown.
    """

    def __init__(self, *, device: Literal["auto", "cuda", "cpu"] = "auto") -> None:
        if device not in ("auto", "cuda", "cpu"):
            raise ValueError(f"device is 'auto', 'cuda' or 'cpu', not {device!r}")
        self._lock = threading.Lock()
        self._collecting = threading.Lock()
        self._timelines: dict[tuple[int, int], _Timeline] = {}  # by library and GPU
        self._off = device == "cpu"
        self._cupy = cupy_events(load=True) if device == "cuda" else None
        self._torch = torch_events(load=True) if device == "cuda" else None
        self._without_cupy = False
        if device == "cuda" and self._cupy is None and self._torch is None:
            raise DeviceError(
                "no GPU can be timed: neither CuPy nor PyTorch finds one (pip install 'vitascope[cuda]'); "
                "device='cpu' times the host only"
            )

    def in_use(self) -> CudaEvents | None:
        """A library that uses a GPU; None if none does. Cheap: streams are not queried."""
        if self._off:
            return None
        if self._cupy is None and not self._without_cupy and "cupy" in sys.modules:
            self._cupy = cupy_events(load=False)
            self._without_cupy = self._cupy is None
        if self._torch is None and "torch" in sys.modules:
            self._torch = torch_events(load=False)
        return self._cupy or self._torch

    def current(self) -> tuple[CudaEvents, tuple[int, int]] | None:
        """The library whose current stream is timed, with GPU and stream; None if no GPU is in use."""
        events = self.in_use()
        if events is None:
            return None
        place = events.place()
        if place[1] == 0 and events is self._cupy and self._torch is not None:
            of_torch = self._torch.place()
            if of_torch[1] != 0:
                return self._torch, of_torch
        return events, place

    def start(self) -> GpuMark | None:
        """Mark this point on the current stream; None if nothing can be timed."""
        current = self.current()
        if current is None:
            return None
        events, place = current
        if events.capturing():
            return None
        timeline = self._timeline(events, place[0])
        return GpuMark(timeline, place, timeline.pairs.mark())

    def stop(self, start: GpuMark, deliver: Callable[[GpuTime], None]) -> bool:
        """Mark the end on the current stream.

        Args:
            start: Result of ``start`` on this thread.
            deliver: Called once with the time when the GPU is done, on any thread that uses the clock.

        Returns:
            False if a capture of the stream began meanwhile: no time will be delivered.
        """
        timeline = start.timeline
        if timeline.events.capturing():
            self.give_up(start)
            return False
        are_many = timeline.pairs.close(start.event, _Purpose(start.place, deliver))
        if are_many and self._collecting.acquire(blocking=False):
            try:
                _collect(timeline, wait=False)
            finally:
                self._collecting.release()
        return True

    def give_up(self, start: GpuMark) -> None:
        """Forget a start that will not be ended."""
        start.timeline.pairs.reuse(start.event)

    def collect(self) -> None:
        """Deliver all pending times; waits until the GPU is done."""
        with self._lock:
            timelines = list(self._timelines.values())
        with self._collecting:
            for timeline in timelines:
                _collect(timeline, wait=True)

    def _timeline(self, events: CudaEvents, device: int) -> _Timeline:
        key = id(events), device
        if (timeline := self._timelines.get(key)) is not None:
            return timeline
        with self._lock:
            if key not in self._timelines:
                anchor = events.create()
                events.record_idle(anchor)
                self._timelines[key] = _Timeline(events, EventPairs(events), anchor, perf_counter())
            return self._timelines[key]


def _collect(timeline: _Timeline, *, wait: bool) -> None:
    """For one thread at a time."""
    for start, stop, purpose in timeline.pairs.passed(wait=wait):
        purpose.deliver(GpuTime(*purpose.place, *_read(timeline, start, stop)))


def _read(timeline: _Timeline, start: Any, stop: Any) -> tuple[float, float]:
    """Start time on the host's clock and duration; releases the events."""
    pairs = timeline.pairs
    offset, seconds = pairs.seconds(timeline.anchor, start), pairs.seconds(start, stop)
    begin = timeline.anchor_seconds + offset
    if offset > _ANCHOR_LASTS_SECONDS:
        start, timeline.anchor, timeline.anchor_seconds = timeline.anchor, start, begin
    pairs.reuse(start, stop)
    return begin, seconds


class StreamTimes:
    """GPU time of named parts, between two events on the current CuPy stream: ``with times.profile("network"): ...``.

    Each part is also an NVTX range, for Nsight's timelines. ``Profiler`` gives the same times, from the same
    ``EventPairs``, and many others. This class, for jobs without a profiler, costs the host a fraction of that: it
    does not read the host's clocks, nor ask which library's stream is current and whether it is captured.

    A part is open on one thread at a time, and never inside itself. The host only waits for the GPU in
    ``gpu_seconds``.
    """

    def __init__(self) -> None:
        self._events: CudaEvents | None = None
        self._parts: dict[str, _Part] = {}

    def profile(self, name: str) -> _Part:
        """Return a context manager to put around launches.

        Args:
            name: Name of the part; its times are summed.
        """
        part = self._parts.get(name)
        if part is None:
            self._events = self._events or CupyEvents()
            part = self._parts[name] = _Part(name, self._events)
        return part

    def gpu_seconds(self) -> dict[str, float]:
        """GPU time by name, from the first launch of a part to the end of its last; waits until the GPU is done.

        Call it when no part is open.
        """
        return {name: part.total_seconds() for name, part in self._parts.items()}


class _Part:
    """The times of one name; can be entered repeatedly."""

    __slots__ = ("_events", "_name", "_pairs", "_seconds", "_start")

    def __init__(self, name: str, events: CudaEvents) -> None:
        self._events = events
        self._pairs: EventPairs[None] = EventPairs(events)
        self._name = name
        self._seconds = 0.0
        self._start: Any = None

    def __enter__(self) -> None:
        self._events.push_range(self._name)
        self._start = self._pairs.mark()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._events.pop_range()
        start, self._start = self._start, None
        if kind is not None:
            # A failure may have broken the GPU: querying a time would hide the cause.
            self._pairs.reuse(start)
        elif self._pairs.close(start, None):
            self._add_passed(wait=False)

    def total_seconds(self) -> float:
        """The sum; waits until the GPU is done."""
        self._add_passed(wait=True)
        return self._seconds

    def _add_passed(self, *, wait: bool) -> None:
        pairs = self._pairs
        for start, stop, _ in pairs.passed(wait=wait):
            self._seconds += pairs.seconds(start, stop)
            pairs.reuse(start, stop)
