"""The batch of an ``AsyncPipeline``'s call, filled row by row by the threads that prepare its frames."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitascope.gpu.engines.gpu_arrays import import_cupy

__all__ = ["BatchRow", "BatchRows", "RowsInTurn", "as_one_batch"]

_MOST_BYTES = 256 << 20
"""Of one array: the first of its frames takes all of it, and the others may never come."""


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
