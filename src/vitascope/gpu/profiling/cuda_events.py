"""Timing events of CuPy or PyTorch, whichever launches the kernels, and pairs of them around work on a GPU."""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["CudaEvents", "CupyEvents", "EventPairs", "TorchEvents", "cupy_events", "torch_events"]


class CudaEvents(Protocol):
    """What a clock needs of a library.

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
        load: Import CuPy; False leaves it alone when nobody else has imported it.
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
        events: Of the library whose streams are timed.
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
            True when so many pairs wait that it is time to ask for those that the GPU has passed.
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
        """Give back events that nobody will read any more."""
        self._idle += events
