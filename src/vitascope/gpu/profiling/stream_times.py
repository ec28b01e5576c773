"""How long named parts of a job keep a GPU's streams busy: sums for a run's report, and nothing else."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from vitascope.gpu.profiling.cuda_events import CudaEvents, CupyEvents, EventPairs

__all__ = ["StreamTimes"]


class StreamTimes:
    """GPU time of named parts: ``with times.profile("network"): ...``, between two events on the current CuPy stream.

    Each is an NVTX range, too, for Nsight's timelines. ``Profiler`` gives the same times, off the same ``EventPairs``,
    and many more; this costs the host a fraction of that: it neither looks at its own clocks nor asks which library's
    stream is current and whether it is being captured. A job has it where nobody gave it a profiler.

    A part is open in one thread at a time, and not inside itself. The host never waits for the GPU before
    ``gpu_seconds``.
    """

    def __init__(self) -> None:
        self._events: CudaEvents | None = None
        self._parts: dict[str, _Part] = {}

    def profile(self, name: str) -> _Part:
        """What to put around launches.

        Args:
            name: Of the part; its times are added up.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
