"""Pairs of timing events: recorded around work on a GPU, read once it has passed them, and used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from vitascope.gpu.cuda_events import CudaEvents

__all__ = ["EventPairs"]

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
