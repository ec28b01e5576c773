"""Frames on their way through an ``AsyncPipeline``, and the calls of its network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from vitascope.gpu.batching.lanes import Origin
from vitascope.gpu.interchange import ArrayKind
from vitascope.gpu.queues import nbytes_of

__all__ = ["Call", "Calls", "Job"]


@dataclass(slots=True, eq=False)
class Job:
    """One frame."""

    frame_id: Hashable
    frame: Any
    """As it was submitted; once decoded, the picture."""
    submitted_at: float
    """``perf_counter`` seconds."""
    origin: Origin | None = None
    """From when on the frame may be read, where it is on a GPU."""
    kind: ArrayKind = "numpy"
    """What the result is to be."""
    wants_gpu: bool = False
    prepared: Any = None
    """The network's input without its batch axis."""
    ready: Any = None
    """``cupy.cuda.Event`` behind it; None on a CPU."""
    data: Any = None
    """The network's answer, then what becomes of it."""
    batch_size: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Time in each stage's own work."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps alive, for the bounds of queues."""
        return nbytes_of(self.frame) + nbytes_of(self.prepared) + nbytes_of(self.data)


@dataclass(slots=True, eq=False)
class Call:
    """A call of the network that was begun."""

    jobs: Sequence[Job]
    wait: Callable[[], object]
    """Returns when the answers are there."""
    begun_at: float


class Calls:
    """A ``TimedGrouper``: gathers frames into calls, and hands them on when their answers are there.

    On a GPU one call runs while the frames of the next are gathered and its work is given to the stream, so the GPU
    does not wait for the host in between.

    Args:
        begin: Begins a call.
        size: Most frames of a call.
        timeout_seconds: How long the first frame of a call waits for others.
        ahead: Calls that may go on while another is gathered: 1 on a GPU, 0 where ``begin`` returns with the answers.
    """

    def __init__(
        self, begin: Callable[[Sequence[Job]], Call], *, size: int, timeout_seconds: float, ahead: int
    ) -> None:
        self._begin = begin
        self._size = size
        self._timeout_seconds = timeout_seconds
        self._ahead = ahead
        self._gathered: list[Job] = []
        self._deadline = 0.0
        self._going: deque[Call] = deque()

    def accumulate(self, job: Job, /) -> Iterable[Job]:
        """Take a frame; those whose answers are there when a call was begun."""
        if not self._gathered:
            self._deadline = perf_counter() + self._timeout_seconds
        self._gathered.append(job)
        return self._begin_call() if len(self._gathered) == self._size else ()

    def due_seconds(self) -> float | None:
        """How long to wait for another frame."""
        if self._going:
            return 0.0  # its answers are to go on, unless there is a frame to begin another call with
        return max(self._deadline - perf_counter(), 0.0) if self._gathered else None

    def lapse(self) -> Iterable[Job]:
        """No frame came: begin with what there is when that has waited long enough, else finish the oldest call."""
        if self._gathered and perf_counter() >= self._deadline:
            return self._begin_call()
        return self._finish_oldest() if self._going else ()

    def flush(self) -> Iterable[Job]:
        """The last frames."""
        if self._gathered:
            yield from self._begin_call()
        while self._going:
            yield from self._finish_oldest()

    def _begin_call(self) -> Iterable[Job]:
        jobs, self._gathered = self._gathered, []
        self._going.append(self._begin(jobs))
        while len(self._going) > self._ahead:
            yield from self._finish_oldest()

    def _finish_oldest(self) -> Iterable[Job]:
        call = self._going.popleft()
        call.wait()
        spent = perf_counter() - call.begun_at
        for job in call.jobs:
            job.seconds["infer"] = spent
            job.batch_size = len(call.jobs)
            # Only now: until here the GPU may have been reading it.
            job.prepared = job.ready = None
        return call.jobs
