"""The GPU half of the profiler: how long work takes on the GPU's own clock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, NamedTuple

from vitascope.errors import DeviceError
from vitascope.gpu.profiling.cuda_events import CudaEvents, EventPairs, cupy_events, torch_events

__all__ = ["GpuClock", "GpuMark", "GpuTime"]

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
    """What a pair of events is for."""

    place: tuple[int, int]
    """GPU and stream."""
    deliver: Callable[[GpuTime], None]


@dataclass(slots=True, eq=False)
class _Timeline:
    """What one library has recorded on one GPU, and an event of it whose time on the host is known."""

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
        ValueError: ``device`` is none of the three words.
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
                "device='cpu' times the host alone"
            )

    def in_use(self) -> CudaEvents | None:
        """A library that uses a GPU; None where none does. Cheap: no stream is asked for."""
        if self._off:
            return None
        if self._cupy is None and not self._without_cupy and "cupy" in sys.modules:
            self._cupy = cupy_events(load=False)
            self._without_cupy = self._cupy is None
        if self._torch is None and "torch" in sys.modules:
            self._torch = torch_events(load=False)
        return self._cupy or self._torch

    def current(self) -> tuple[CudaEvents, tuple[int, int]] | None:
        """The library whose current stream is timed now, with GPU and stream; None where no GPU is in use."""
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
        """Mark this moment on the current stream; None where nothing can be timed."""
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
