"""How long each part of a job takes on the GPU's own clock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["GpuClock"]

_EVENTS_KEPT = 64


class GpuClock:
    """Adds up spans by name, from CUDA events around launches; never makes the host wait while work goes on.

    A span runs from the moment the stream reaches its first launch to the end of its last. Where the stream waits for
    another one, or runs dry because the host is slower than the kernels, that wait is in it. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[tuple[str, Any, Any]] = deque()
        self._idle: list[Any] = []
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what is launched inside on the current CuPy stream."""
        start = self._event()
        start.record()
        yield
        stop = self._event()
        stop.record()
        with self._lock:
            self._pending.append((name, start, stop))
        if len(self._pending) > _EVENTS_KEPT:
            self._collect(wait=False)

    def seconds(self) -> dict[str, float]:
        """Seconds of GPU time by name, once all work that was timed is done."""
        self._collect(wait=True)
        return dict(self._seconds)

    def counts(self) -> dict[str, int]:
        """Spans by name."""
        return dict(self._counts)

    def _event(self) -> Any:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        import cupy

        return cupy.cuda.Event()

    def _collect(self, *, wait: bool) -> None:
        import cupy

        with self._lock:
            while self._pending:
                name, start, stop = self._pending[0]
                if wait:
                    stop.synchronize()
                elif not stop.done:
                    break
                self._pending.popleft()
                elapsed_ms = cupy.cuda.get_elapsed_time(start, stop)
                self._seconds[name] = self._seconds.get(name, 0.0) + elapsed_ms / 1e3
                self._counts[name] = self._counts.get(name, 0) + 1
                self._idle += [start, stop]
