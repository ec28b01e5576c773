"""The GPU half of the profiler: how long work takes on the GPU's own clock."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, NamedTuple

from vitascope.errors import DeviceError
from vitascope.gpu.cuda_events import CudaEvents, cupy_events, torch_events

__all__ = ["GpuClock", "GpuMark", "GpuTime"]

_EVENTS_KEPT = 64
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


class GpuMark(NamedTuple):
    """A moment that the GPU has yet to reach."""

    events: CudaEvents
    place: tuple[int, int]
    """GPU and stream."""
    event: Any


@dataclass(slots=True)
class _Anchor:
    """An event whose time on the host is known."""

    event: Any
    seconds: float


class _Pending(NamedTuple):
    start: GpuMark
    stop: Any
    deliver: Callable[[GpuTime], None]


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
        ValueError: ``device`` is none of the three words.
    """

    def __init__(self, *, device: Literal["auto", "cuda", "cpu"] = "auto") -> None:
        if device not in ("auto", "cuda", "cpu"):
            raise ValueError(f"device is 'auto', 'cuda' or 'cpu', not {device!r}")
        self._lock = threading.Lock()
        self._collecting = threading.Lock()
        self._pending: deque[_Pending] = deque()
        self._idle: dict[tuple[int, int], list[Any]] = {}  # by library and GPU
        self._anchors: dict[tuple[int, int], _Anchor] = {}
        self._off = device == "cpu"
        self._cupy = cupy_events(load=True) if device == "cuda" else None
        self._torch = torch_events(load=True) if device == "cuda" else None
        self._without_cupy = False
        if device == "cuda" and self._cupy is None and self._torch is None:
            raise DeviceError(
                "no GPU can be timed: neither CuPy nor PyTorch finds one (pip install 'vitascope[cuda]'); "
                "device='cpu' times the host alone"
            )

    def library(self) -> CudaEvents | None:
        """The library whose current stream is timed now; None where no GPU is in use."""
        if self._off:
            return None
        if self._cupy is None and not self._without_cupy and "cupy" in sys.modules:
            self._cupy = cupy_events(load=False)
            self._without_cupy = self._cupy is None
        if self._torch is None and "torch" in sys.modules:
            self._torch = torch_events(load=False)
        cupy, torch = self._cupy, self._torch
        if cupy is None or torch is None:
            return cupy or torch
        return cupy if cupy.place()[1] != 0 or torch.place()[1] == 0 else torch

    def start(self, events: CudaEvents | None = None) -> GpuMark | None:
        """Mark this moment on the current stream; None where nothing can be timed.

        Args:
            events: What ``library`` just returned, to save asking again.
        """
        events = events or self.library()
        if events is None or events.capturing():
            return None
        place = events.place()
        event = self._event(events, place[0])
        events.record(event)
        return GpuMark(events, place, event)

    def stop(self, start: GpuMark, deliver: Callable[[GpuTime], None]) -> None:
        """Mark the end on the current stream.

        Args:
            start: What ``start`` returned, in this thread.
            deliver: Called once with the time when the GPU is through, from any thread that uses the clock.
        """
        events = start.events
        event = self._event(events, start.place[0])
        events.record(event)
        with self._lock:
            self._pending.append(_Pending(start, event, deliver))
        if len(self._pending) > _EVENTS_KEPT and self._collecting.acquire(blocking=False):
            try:
                self._collect(wait=False)
            finally:
                self._collecting.release()

    def give_up(self, start: GpuMark) -> None:
        """Forget a start whose end will not come."""
        with self._lock:
            self._idle[id(start.events), start.place[0]].append(start.event)

    def collect(self) -> None:
        """Deliver everything that was timed; waits until the GPU is done with it."""
        with self._collecting:
            self._collect(wait=True)

    def _collect(self, *, wait: bool) -> None:
        while self._pending:
            start, stop, deliver = self._pending[0]
            if wait:
                start.events.synchronize(stop)
            elif not start.events.done(stop):
                break
            self._pending.popleft()  # only the thread that collects takes from the left
            deliver(self._time(start, stop))

    def _time(self, start: GpuMark, stop: Any) -> GpuTime:
        events, (device, stream) = start.events, start.place
        key = id(events), device
        anchor = self._anchors[key]
        begin = anchor.seconds + events.elapsed_ms(anchor.event, start.event) / 1e3
        seconds = events.elapsed_ms(start.event, stop) / 1e3
        released = start.event
        if begin - anchor.seconds > _ANCHOR_LASTS_SECONDS:
            released = anchor.event
            self._anchors[key] = _Anchor(start.event, begin)
        with self._lock:
            self._idle[key] += [released, stop]
        return GpuTime(device, stream, begin, seconds)

    def _event(self, events: CudaEvents, device: int) -> Any:
        key = id(events), device
        with self._lock:
            if idle := self._idle.get(key):
                return idle.pop()
            if key not in self._idle:
                self._idle[key] = []
                anchor = events.create()
                events.record_idle(anchor)
                self._anchors[key] = _Anchor(anchor, perf_counter())
        return events.create()
