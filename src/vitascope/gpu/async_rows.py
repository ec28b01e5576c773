"""The batch of an ``AsyncPipeline``'s call, filled row by row by the threads that prepare its frames."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vitascope.gpu.engines.gpu_arrays import import_cupy

__all__ = ["BatchRow", "BatchRows", "as_one_batch", "rows_in_turn"]


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
        self._array: Any = None
        self._made: Any = None
        self._stream = 0

    def view(self, row: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A row to write to on the current stream.

        Args:
            row: Which.
            shape: Of a picture, [C, h, w].
            dtype: Of the picture.

        Returns:
            CuPy array [1, C, h, w]; None where pictures of another shape or dtype are here.
        """
        cupy = import_cupy()
        current = cupy.cuda.get_current_stream()
        with self._lock:
            if self._array is None:
                self._array = cupy.empty((self.count, *shape), dtype)
                self._made = cupy.cuda.Event(disable_timing=True)
                self._made.record()
                self._stream = current.ptr
        if self._array.shape[1:] != shape or self._array.dtype != dtype:
            return None
        if self._stream != current.ptr and not self._made.done:
            current.wait_event(self._made)
        return self._array[row : row + 1]

    def first(self, count: int) -> Any:
        """The first rows, [count, C, h, w]; None before any was written."""
        return None if self._array is None else self._array[:count]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A frame's place."""

    rows: BatchRows
    number: int


def rows_in_turn(count: int) -> Iterator[BatchRow]:
    """Endless ``BatchRow``s, each ``BatchRows`` of ``count`` filled before the next begins."""
    while True:
        rows = BatchRows(count)
        for number in range(count):
            yield BatchRow(rows, number)


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
