"""Time work on a GPU's own clock, with events of CuPy or PyTorch, whichever launches the kernels.

``GpuClock`` times the spans of a ``Profiler``, ``StreamTimes`` adds up named parts of a job; both stand on pairs of
events around the work, for which the host never waits.
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
    """The port of a library's events.

    Its events belong to the GPU that was current when they were first recorded; ``event.record()`` records one on the
    current stream.
    """

    def place(self) -> tuple[int, int]:
        """Number of the current GPU, and address of the current stream: 0 is the default one."""
        ...

    def capturing(self) -> bool:
        """True while the current stream is being captured into a graph, where a time has no meaning."""
        ...

    def create(self) -> Any:
        """A new event with a timer."""
        ...

    def record_idle(self, event: Any) -> None:
        """Record it on a new stream, which nothing keeps waiting."""
        ...

    def done(self, event: Any) -> bool:
        """True when the GPU has passed it; never waits."""
        ...

    def synchronize(self, event: Any) -> None:
        """Wait on the host until the GPU has passed it."""
        ...

    def elapsed_ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two passed events, negative where ``stop`` came first; resolution 0.5 µs (CUDA)."""
        ...

    def push_range(self, name: str) -> None:
        """Open an NVTX range in this thread."""
        ...

    def pop_range(self) -> None:
        """Close the innermost NVTX range of this thread."""
        ...


class CupyEvents:
    """Events of CuPy."""

    def __init__(self) -> None:
        import cupy

        self._cuda = cupy.cuda
        # CuPy's own functions, with no call around them: a job opens ranges for every batch.
        self.push_range: Callable[[str], None] = cupy.cuda.nvtx.RangePush
        """Open an NVTX range."""
        self.pop_range: Callable[[], None] = cupy.cuda.nvtx.RangePop
        """Close the innermost NVTX range."""

    def place(self) -> tuple[int, int]:
        """Number of the current GPU, and address of the current stream."""
        return int(self._cuda.runtime.getDevice()), int(self._cuda.get_current_stream().ptr)

    def capturing(self) -> bool:
        """True while the current stream is being captured."""
        stream = self._cuda.get_current_stream()
        # The default stream cannot be captured, and cannot be asked while another one is.
        return stream.ptr != 0 and bool(stream.is_capturing())

    def create(self) -> Any:
        """A new event with a timer."""
        return self._cuda.Event()

    def record_idle(self, event: Any) -> None:
        """Record it on a new stream."""
        event.record(self._cuda.Stream(non_blocking=True))

    def done(self, event: Any) -> bool:
        """True when the GPU has passed it."""
        return bool(event.done)

    def synchronize(self, event: Any) -> None:
        """Wait until the GPU has passed it."""
        event.synchronize()

    def elapsed_ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two passed events."""
        return float(self._cuda.get_elapsed_time(start, stop))


class TorchEvents:
    """Events of PyTorch."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda

    def place(self) -> tuple[int, int]:
        """Number of the current GPU, and address of the current stream."""
        return int(self._cuda.current_device()), int(self._cuda.current_stream().cuda_stream)

    def capturing(self) -> bool:
        """True while the current stream is being captured."""
        return bool(self._cuda.is_current_stream_capturing())

    def create(self) -> Any:
        """A new event with a timer."""
        return self._cuda.Event(enable_timing=True)

    def record_idle(self, event: Any) -> None:
        """Record it on a stream of PyTorch's pool, which seldom has work."""
        event.record(self._cuda.Stream())

    def done(self, event: Any) -> bool:
        """True when the GPU has passed it."""
        return bool(event.query())

    def synchronize(self, event: Any) -> None:
        """Wait until the GPU has passed it."""
        event.synchronize()

    def elapsed_ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two passed events."""
        return float(start.elapsed_time(stop))

    def push_range(self, name: str) -> None:
        """Open an NVTX range."""
        self._cuda.nvtx.range_push(name)

    def pop_range(self) -> None:
        """Close the innermost NVTX range."""
        self._cuda.nvtx.range_pop()


def cupy_events(*, load: bool) -> CudaEvents | None:
    """Events of CuPy, where it has a GPU.

    Args:
        load: Import CuPy; False uses it only if it was imported already.
    """
    if not load and "cupy" not in sys.modules:
        return None
    try:
        with warnings.catch_warnings():
            # CuPy warns about toolkits that it does not find; whether it works is asked below.
            warnings.simplefilter("ignore")
            import cupy
    except ImportError:
        return None
    try:
        return CupyEvents() if cupy.cuda.runtime.getDeviceCount() else None
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver
        return None


def torch_events(*, load: bool) -> CudaEvents | None:
    """Events of PyTorch, where it has a GPU.

    Args:
        load: Import PyTorch and start CUDA; False takes it only where that has happened.
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
    """Times the current stream of one library on one GPU; the host waits for the GPU only when asked to.

    What measures work on a GPU while a program runs stands on this: ``GpuClock``, for the spans of a ``Profiler``, and
    ``StreamTimes``, for sums alone. CuPy holds the interpreter while it makes, records and asks an event, so events are
    used again, and few are asked.

    Any thread may record; one at a time may ask for what the GPU has passed.

    Args:
        events: The events of the library whose streams are timed.
    """

    __slots__ = ("_events", "_idle", "_pending")

    def __init__(self, events: CudaEvents) -> None:
        self._events = events
        self._idle: list[Any] = []
        self._pending: deque[tuple[Any, Any, T]] = deque()

    def mark(self) -> Any:
        """An event, recorded on the current stream of the current GPU."""
        try:
            event = self._idle.pop()
        except IndexError:  # asked for this way, because another thread may take the last one
            event = self._events.create()
        event.record()
        return event

    def close(self, start: Any, purpose: T) -> bool:
        """Mark the end of what began with ``start``.

        Args:
            start: What ``mark`` returned; from now on it is the pair's.
            purpose: What the time is for; comes back with it.

        Returns:
            True when enough pairs wait to ask for those that the GPU has passed.
        """
        self._pending.append((start, self.mark(), purpose))
        return len(self._pending) > _PAIRS_KEPT

    def passed(self, *, wait: bool) -> Iterator[tuple[Any, Any, T]]:
        """The pairs that the GPU has passed, from the oldest on.

        Args:
            wait: For the GPU, until there is no pair left.

        Yields:
            Start, stop and purpose. Both events are the caller's now: to be read, and given to ``reuse``. A pair that
            the GPU cannot be asked for is dropped, and its error raised.
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
        """GPU time between two passed events; negative where ``stop`` came first. Exact to 0.5 µs (CUDA)."""
        return self._events.elapsed_ms(start, stop) * 1e-3

    def reuse(self, *events: Any) -> None:
        """Return events that will not be read again."""
        self._idle += events


# cudaEventElapsedTime answers in float32 milliseconds: 10 s from the anchor a step is 1 µs.
_ANCHOR_LASTS_SECONDS = 10.0


class GpuTime(NamedTuple):
    """When a GPU did something."""

    device: int
    """Number of the GPU."""
    stream: int
    """Address of the CUDA stream; 0 is the default one."""
    start_seconds: float
    """On the clock of ``time.perf_counter``, within some ten microseconds."""
    seconds: float
    """From the first launch that the stream reached to the end of the last."""


class _Purpose(NamedTuple):
    """The purpose of a pair of events."""

    place: tuple[int, int]
    """GPU and stream."""
    deliver: Callable[[GpuTime], None]


@dataclass(slots=True, eq=False)
class _Timeline:
    """Events that one library recorded on one GPU, and one whose time on the host is known."""

    events: CudaEvents
    pairs: EventPairs[_Purpose]
    anchor: Any
    anchor_seconds: float


class GpuMark(NamedTuple):
    """A moment that the GPU has yet to reach."""

    timeline: _Timeline
    place: tuple[int, int]
    """GPU and stream."""
    event: Any


class GpuClock:
    """Measures between two moments on the current CUDA stream; never makes the host wait while work goes on.

    A measurement runs from the moment the stream reaches its first launch to the end of its last. Where the stream
    waits for another one, or runs dry because the host is slower than the kernels, that wait is in it. Thread-safe.
    ``Profiler`` owns one.

    Both CuPy and PyTorch have a current stream. Where both are in use, it is PyTorch's while that is not the default
    stream and CuPy's is, else CuPy's.

    Args:
        device: ``auto`` times where CuPy or PyTorch use a GPU already, and imports neither; ``cuda`` imports them;
            ``cpu`` never times anything.

    Raises:
        DeviceError: ``cuda``, and neither library has a GPU.
        ValueError: ``device`` is not one of the three words.
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
        """A library that uses a GPU; None if none does. Cheap: no stream is requested."""
        if self._off:
            return None
        if self._cupy is None and not self._without_cupy and "cupy" in sys.modules:
            self._cupy = cupy_events(load=False)
            self._without_cupy = self._cupy is None
        if self._torch is None and "torch" in sys.modules:
            self._torch = torch_events(load=False)
        return self._cupy or self._torch

    def current(self) -> tuple[CudaEvents, tuple[int, int]] | None:
        """The library whose current stream is timed now, with GPU and stream; None if no GPU is in use."""
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
        """Mark this moment on the current stream; None if nothing can be timed."""
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
            start: What ``start`` returned, in this thread.
            deliver: Called once with the time when the GPU is through, from any thread that uses the clock.

        Returns:
            False where a capture of the stream began meanwhile: nothing will be delivered.
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
        """Forget a start whose end will not come."""
        start.timeline.pairs.reuse(start.event)

    def collect(self) -> None:
        """Deliver everything that was timed; waits until the GPU is done with it."""
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
    """When it began, on the host's clock, and how long it took; frees the events."""
    pairs = timeline.pairs
    offset, seconds = pairs.seconds(timeline.anchor, start), pairs.seconds(start, stop)
    begin = timeline.anchor_seconds + offset
    if offset > _ANCHOR_LASTS_SECONDS:
        start, timeline.anchor, timeline.anchor_seconds = timeline.anchor, start, begin
    pairs.reuse(start, stop)
    return begin, seconds


class StreamTimes:
    """GPU time of named parts: ``with times.profile("network"): ...``, between two events on the current CuPy stream.

    Each is also an NVTX range, for Nsight's timelines. ``Profiler`` gives the same times, off the same ``EventPairs``,
    and many more; this costs the host a fraction of that: it neither looks at its own clocks nor asks which library's
    stream is current and whether it is being captured. A job without a profiler has it.

    A part is open in one thread at a time, and not inside itself. The host never waits for the GPU before
    ``gpu_seconds``.
    """

    def __init__(self) -> None:
        self._events: CudaEvents | None = None
        self._parts: dict[str, _Part] = {}

    def profile(self, name: str) -> _Part:
        """A context manager to put around launches.

        Args:
            name: Name of the part; its times are added up.
        """
        part = self._parts.get(name)
        if part is None:
            self._events = self._events or CupyEvents()
            part = self._parts[name] = _Part(name, self._events)
        return part

    def gpu_seconds(self) -> dict[str, float]:
        """GPU time by name, from the first launch of a part to the end of its last; waits until the GPU is through.

        Called when no part is open.
        """
        return {name: part.total_seconds() for name, part in self._parts.items()}


class _Part:
    """The times of one name; entered again and again."""

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
            # What failed may have broken the GPU: asking it for a time would hide why.
            self._pairs.reuse(start)
        elif self._pairs.close(start, None):
            self._add_passed(wait=False)

    def total_seconds(self) -> float:
        """The sum; waits until the GPU is through."""
        self._add_passed(wait=True)
        return self._seconds

    def _add_passed(self, *, wait: bool) -> None:
        pairs = self._pairs
        for start, stop, _ in pairs.passed(wait=wait):
            self._seconds += pairs.seconds(start, stop)
            pairs.reuse(start, stop)
