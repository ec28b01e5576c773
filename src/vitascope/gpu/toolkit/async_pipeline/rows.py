"""The batch of an ``AsyncPipeline``'s call, filled row by row by the threads that prepare its frames."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from vitascope.gpu.engines.gpu_arrays import import_cupy
from vitascope.gpu.interchange import ArrayKind
from vitascope.gpu.pipeline.queues import nbytes_of
from vitascope.gpu.toolkit.async_pipeline.host_calls import HostCall
from vitascope.gpu.toolkit.batching.lanes import Origin

__all__ = ["BatchRow", "BatchRows", "Call", "Job", "RowsInTurn", "as_one_batch", "names_of"]


_MOST_BYTES = 256 << 20
"""The most bytes of one array: its first frame takes all of it, and the others may never come."""


class BatchRows:
    """The network's inputs of some consecutive frames, in one array on the GPU.

    Whoever comes first allocates it, on its own stream; the others' streams wait for that, because the memory may have
    served that stream for something else before.

    Args:
        count: Rows.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._made: tuple[Any, Any, int] | None = None
        """The array, the event behind its allocation, and the handle of the stream that made both."""
        self._is_refused = False

    def view(self, row: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A row to write to on the current stream.

        Args:
            row: Which.
            shape: Of a picture, [C, h, w].
            dtype: Of the picture.

        Returns:
            CuPy array [1, C, h, w]; None where a picture must lie elsewhere: others here have another shape or dtype,
            or all of them together would be too large, or larger than what the GPU has left.
        """
        current = import_cupy().cuda.get_current_stream()
        with self._lock:
            if self._made is None and not self._is_refused:
                self._made = self._allocated(shape, dtype)
                self._is_refused = self._made is None
            if self._made is None:
                return None
            array, made, stream = self._made
        if array.shape[1:] != shape or array.dtype != dtype:
            return None
        if stream != current.ptr and not made.done:
            current.wait_event(made)
        return array[row : row + 1]

    def first(self, count: int) -> Any:
        """The first rows, [count, C, h, w]; None before any was written."""
        return None if self._made is None else self._made[0][:count]

    def _allocated(self, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any, int] | None:
        cupy = import_cupy()
        if self.count * math.prod(shape) * np.dtype(dtype).itemsize > _MOST_BYTES:
            return None
        try:
            array = cupy.empty((self.count, *shape), dtype)
        except cupy.cuda.memory.OutOfMemoryError:  # a picture alone may still fit, or says so
            return None
        made = cupy.cuda.Event(disable_timing=True)
        made.record()
        return array, made, cupy.cuda.get_current_stream().ptr


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A frame's place."""

    rows: BatchRows
    number: int


class RowsInTurn:
    """Gives frames their places, in the order of their submission.

    A batch that was sent with fewer frames than usual moves the beginnings of all later ones: ``align`` says so, and
    the frames that are given places from then on are side by side again.

    Args:
        count: Frames of a batch.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._given = 0
        self._phase = 0
        """A batch begins where the number of frames before it, less this, is a multiple of ``count``."""
        self._rows = BatchRows(count)
        self._rows_phase = 0

    def next(self) -> BatchRow:
        """The place of the next frame; one thread's to call."""
        phase = self._phase  # read once: another thread sets it
        number = (self._given - phase) % self._count
        if number == 0 or phase != self._rows_phase:
            self._rows, self._rows_phase = BatchRows(self._count), phase
        self._given += 1
        return BatchRow(self._rows, number)

    def align(self, gathered: int) -> None:
        """Say that a batch begins behind so many frames; any thread."""
        self._phase = gathered % self._count


def as_one_batch(places: Sequence[BatchRow | None], *, count: int) -> Any:
    """The batch that frames lie in already, if they do.

    Args:
        places: Of the frames; None for one that lies elsewhere.
        count: Rows of the batch that is wanted.

    Returns:
        CuPy array [count, C, h, w]; None where the frames must be brought together first.
    """
    first = places[0]
    if first is None or len(places) != count or count > first.rows.count:
        return None
    whole = all(
        place is not None and place.rows is first.rows and place.number == number
        for number, place in enumerate(places)
    )
    return first.rows.first(count) if whole else None


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
    row: BatchRow | None = None
    """Where the network's input is to be written; once it is prepared, where it is: None when it lies elsewhere."""
    prepared: Any = None
    """The network's input without its batch axis."""
    ready: Any = None
    """``cupy.cuda.Event`` behind it; None on a CPU."""
    call: Call | None = None
    """The call that it shares, from the network's answer until that is taken apart."""
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
    """One call of the network that was launched, and its frames."""

    jobs: Sequence[Job]
    label: str
    """The frames, as messages call them."""
    rows: int = 0
    """Rows of the batch; those beyond its frames only fill it up."""
    on_host: HostCall | None = None
    """The call on a CPU."""
    started: Any = None
    """``cupy.cuda.Event`` with a timer before the network; None on a CPU."""
    ended: Any = None
    """The one behind it."""
    output: Any = None
    """What the network gave for all of them, on a GPU perhaps before it is computed; until it is taken apart."""
    lock: Lock = field(default_factory=Lock)
    """Held by whoever takes the answer apart, where several threads may want to."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps alive."""
        return sum(job.nbytes for job in self.jobs)


def names_of(jobs: Sequence[Job]) -> str:
    """Frames, as messages call them."""
    names = ", ".join(str(job.frame_id) for job in jobs)
    return f"frame {names}" if len(jobs) == 1 else f"frames {names}"
