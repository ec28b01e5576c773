"""How long named parts of a job keep a GPU's streams busy: sums for a run's report, and nothing else."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any

__all__ = ["StreamTimes"]

_TIMES_KEPT = 32


class StreamTimes:
    """GPU time of named parts: ``with times.profile("network"): ...``, between two events on the current CuPy stream.

    Each is an NVTX range, too, for Nsight's timelines. ``Profiler`` gives the same times and many more; this costs the
    host a fraction of that: it neither looks at its own clocks nor asks which library's stream is current. CuPy holds
    the interpreter while it makes, records and asks an event, so events are used again, and few are asked.

    A part is open in one thread at a time, and not inside itself. The host never waits for the GPU before
    ``gpu_seconds``.
    """

    def __init__(self) -> None:
        self._parts: dict[str, _Part] = {}

    def profile(self, name: str) -> _Part:
        """What to put around launches.

        Args:
            name: Of the part; its times are added up.
        """
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = _Part(name)
        return part

    def gpu_seconds(self) -> dict[str, float]:
        """GPU time by name, from the first launch of a part to the end of its last; waits until the GPU is through.

        Called when no part is open.
        """
        return {name: part.total_seconds() for name, part in self._parts.items()}


class _Part:
    """The times of one name; entered again and again."""

    __slots__ = ("_cuda", "_idle", "_name", "_pending", "_seconds", "_start")

    def __init__(self, name: str) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._name = name
        self._idle: list[Any] = []
        self._pending: deque[tuple[Any, Any]] = deque()
        self._seconds = 0.0
        self._start: Any = None

    def __enter__(self) -> None:
        self._cuda.nvtx.RangePush(self._name)
        self._start = self._mark()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cuda.nvtx.RangePop()
        start, self._start = self._start, None
        if kind is not None:
            # What failed may have broken the GPU: asking it for a time would hide why.
            self._idle.append(start)
            return
        self._pending.append((start, self._mark()))
        if len(self._pending) > _TIMES_KEPT:
            while self._pending and self._pending[0][1].done:
                self._take_oldest()

    def total_seconds(self) -> float:
        """The sum; waits until the GPU is through."""
        while self._pending:
            self._pending[0][1].synchronize()
            self._take_oldest()
        return self._seconds

    def _mark(self) -> Any:
        event = self._idle.pop() if self._idle else self._cuda.Event()
        event.record()
        return event

    def _take_oldest(self) -> None:
        start, stop = self._pending.popleft()
        self._seconds += float(self._cuda.get_elapsed_time(start, stop)) * 1e-3
        self._idle += (start, stop)
