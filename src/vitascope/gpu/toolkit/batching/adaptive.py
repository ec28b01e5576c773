"""Sizing batches while the work goes on: as memory and latency allow, and smaller when memory runs out."""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from numbers import Integral
from time import perf_counter
from typing import Any, Literal, Protocol, TypeVar

from vitascope.gpu.memory.shortage import is_out_of_memory, release_idle_memory
from vitascope.gpu.toolkit.batching.batch_arrays import split

T = TypeVar("T")

_DEFAULT_INITIAL = 4
_LATENCIES_KEPT = 5
# A size that ran out of memory is tried again after so many calls: what filled the GPU may have gone by then, and one
# failed call among so many costs little.
_CALLS_BEFORE_RETRY = 256


class MemoryMonitor(Protocol):
    """Reports the memory in use; ``vitascope.gpu.VRAMMonitor`` is one."""

    def get_stats(self) -> Any:
        """The figures now: ``allocated_vram_gb`` in use of ``total_vram_gb``, in one unit."""
        ...


class AdaptiveBatchSizer:
    """Finds, while the work goes on, how many frames to give to one call.

    The size doubles from call to call until something speaks against it, and never passes what is predicted to fit:
    memory grows with the size along the line through the sizes seen so far, latency in proportion at worst. Where
    memory runs out all the same, the size is halved, the call repeated, and the failed size approached by halves from
    below. ``process`` and ``in_ranges`` do all this around a function; ``adjust_batch_size`` is for loops of your own.
    Thread-safe.

    Args:
        initial_batch_size: Where to begin; 4, or ``max_batch_size`` if that is less, when omitted.
        target_utilization: Share of the device's memory that may be in use, 0..1.
        max_batch_size: Never more.
        min_batch_size: Never fewer.
        target_latency_ms: Longest wanted call; None: any.
        monitor: Asked for memory in use; ``VRAMMonitor`` of the device when omitted, made on first use.
        device: Whose memory that is: ``cuda``, ``cpu``, or ``auto``: the GPU where there is one.
        device_id: Number of the GPU; without meaning on a CPU.
        growing: False: the size falls when memory runs out, and nothing else changes it or is asked.
        on_shortage: Called with each error about memory, and the size from then on.

    Raises:
        ValueError: Sizes that are not in order, a utilization outside 0..1, or a latency that is no time.
    """

    def __init__(
        self,
        initial_batch_size: int | None = None,
        target_utilization: float = 0.85,
        max_batch_size: int = 32,
        *,
        min_batch_size: int = 1,
        target_latency_ms: float | None = None,
        monitor: MemoryMonitor | None = None,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        growing: bool = True,
        on_shortage: Callable[[Exception, int], object] | None = None,
    ) -> None:
        if initial_batch_size is None:
            initial_batch_size = max(min(_DEFAULT_INITIAL, max_batch_size), min_batch_size)
        sizes = (min_batch_size, initial_batch_size, max_batch_size)
        if not all(isinstance(size, Integral) for size in sizes) or not 1 <= sizes[0] <= sizes[1] <= sizes[2]:
            raise ValueError(
                f"batch sizes {min_batch_size}, {initial_batch_size}, {max_batch_size} are not whole numbers in rising "
                "order from 1"
            )
        if not 0 < target_utilization <= 1:
            raise ValueError(f"target_utilization is a share of memory, 0..1, not {target_utilization}")
        if target_latency_ms is not None and not target_latency_ms > 0:
            raise ValueError(f"target_latency_ms is a time, not {target_latency_ms}")
        self.target_utilization = target_utilization
        self.target_latency_ms = target_latency_ms
        self.min_batch_size, self.max_batch_size = min_batch_size, max_batch_size
        self.shortage_count = 0
        """Number of times that memory ran out."""
        self._size = initial_batch_size
        self._monitor = monitor
        self._device, self._device_id = device, device_id
        self._growing = growing
        self._on_shortage = on_shortage
        self._lock = threading.Lock()
        self._utilization: dict[int, float] = {}  # by size, the latest
        self._latencies_ms: deque[float] = deque(maxlen=_LATENCIES_KEPT)  # of the present size
        self._too_large: int | None = None
        self._calls_since_shortage = 0

    @property
    def batch_size(self) -> int:
        """Frames for the next call."""
        return self._size

    def adjust_batch_size(self, latency_ms: float | None = None) -> int:
        """Look at memory and latency, and choose the size of the next call. To be called after each call.

        Args:
            latency_ms: How long the call took, until its result was there.

        Returns:
            The new ``batch_size``.

        Raises:
            DeviceError: The device's memory cannot be asked for.
        """
        figures = self._memory_monitor().get_stats()
        in_use = figures.allocated_vram_gb / figures.total_vram_gb
        with self._lock:
            size = self._size
            self._calls_since_shortage += 1
            self._utilization[size] = in_use
            if latency_ms is not None:
                self._latencies_ms.append(latency_ms)
            fits = min(self._fits_memory(in_use), self._fits_latency(), self.max_batch_size)
            wanted = max(min(fits, self._next_larger()), self.min_batch_size)
            self._move_to(wanted)
        if wanted < size:
            release_idle_memory()
        return wanted

    def shrink(self, error: Exception, size: int) -> int:
        """Note that a call of ``size`` frames ran out of memory.

        Returns:
            The new ``batch_size``, below ``size``.
        """
        with self._lock:
            self.shortage_count += 1
            self._calls_since_shortage = 0
            self._too_large = size if self._too_large is None else min(size, self._too_large)
            self._utilization = {seen: share for seen, share in self._utilization.items() if seen < size}
            self._move_to(max(min(size // 2, self._size), self.min_batch_size))
        release_idle_memory()
        if self._on_shortage is not None:
            self._on_shortage(error, self._size)
        return self._size

    def in_ranges(
        self,
        count: int,
        call: Callable[[int, int], Iterable[T]],
        *,
        end_of: Callable[[int, int], int] | None = None,
    ) -> list[T]:
        """Call a function for consecutive ranges of 0 to ``count``, again and smaller where memory runs out.

        Args:
            call: Takes the range's first index and the one after its last; gives results. Must leave nothing behind
                when it fails for want of memory.
            end_of: Takes a first index and the most that a range may have, and gives where it ends, before that where
                something forbids to go on.

        Returns:
            All results, in order.

        Raises:
            DeviceMemoryError: Or the library's own error: ``min_batch_size`` does not fit.
        """
        return self._in_calls(count, lambda first, end, _: call(first, end), end_of=end_of, full=False)

    def process(
        self, frames: Iterable[Any], fn: Callable[[list[Any]], Any], *, pad: bool = False
    ) -> list[Any]:
        """Run a function over all frames, in batches of the size that is right at the time.

        Args:
            frames: Any number; taken from an iterator as they are needed.
            fn: Takes a list of frames, gives as many results: a list, an array with rows, a tuple or dict of arrays. On
                a GPU it should return when they are there, or its latency is not what is measured.
            pad: Give it full batches only, the last filled up with copies of its last frame.

        Returns:
            One result for each frame, in order.

        Raises:
            DeviceMemoryError: Or the library's own error: a single frame does not fit.
            EngineError: ``fn`` gave another number of results.
        """
        results: list[Any] = []
        iterator = iter(frames)
        while batch := list(islice(iterator, self._size)):

            def call(first: int, end: int, rows: int, batch: list[Any] = batch) -> list[Any]:
                part = batch[first:end]
                return split(fn(part + part[-1:] * (rows - len(part))), rows=rows, count=len(part))

            results += self._in_calls(len(batch), call, end_of=None, full=pad)
        return results

    def _in_calls(
        self,
        count: int,
        call: Callable[[int, int, int], Iterable[T]],
        *,
        end_of: Callable[[int, int], int] | None,
        full: bool,
    ) -> list[T]:
        """``in_ranges``; ``call`` is also told of how many rows to make it: of ``batch_size`` where it must be full."""
        results: list[T] = []
        first = 0
        while first < count:
            size = self._size
            most = min(size, count - first)
            end = first + most if end_of is None else end_of(first, most)
            rows = size if full else end - first
            shortage: Exception | None = None
            began = perf_counter()
            try:
                results += call(first, end, rows)
            except Exception as error:
                if not is_out_of_memory(error) or rows <= self.min_batch_size:
                    raise
                # Without its traceback, whose frames hold the arrays of the failed call (PyTorch's FAQ: "My out of
                # memory exception handler can't allocate memory"); and handled below, where `error` is gone.
                shortage = error.with_traceback(None)
            if shortage is not None:
                self.shrink(shortage, rows)
                continue
            if self._growing and rows == size:  # a short rest says nothing about the size
                self.adjust_batch_size((perf_counter() - began) * 1e3)
            first = end
        return results

    def _memory_monitor(self) -> MemoryMonitor:
        if self._monitor is None:
            from vitascope.gpu.memory.vram_monitor import VRAMMonitor

            self._monitor = VRAMMonitor(self._device_id, device=self._device)
        return self._monitor

    def _fits_memory(self, in_use: float) -> int:
        """The largest size that memory allows, by the line through the present and the farthest other size."""
        room = self.target_utilization - in_use
        others = [size for size in self._utilization if size != self._size]
        if others:
            other = max(others, key=lambda size: abs(size - self._size))
            each = (in_use - self._utilization[other]) / (self._size - other)
        else:  # at worst all that is in use is the batch's
            each = in_use / self._size
        if each <= 0:
            return self._size - 1 if room < 0 else self.max_batch_size
        # Floor: below the present size when there is no room. What fills the target to the last bit fits.
        fits = self._size + math.floor(room / each + 1e-6)
        # With one size seen, one frame more is the way to learn what a frame takes.
        return max(fits, self._size + 1) if room > 0 and not others else fits

    def _fits_latency(self) -> int:
        if self.target_latency_ms is None or not self._latencies_ms:
            return self.max_batch_size
        return int(self._size * self.target_latency_ms / statistics.median(self._latencies_ms))

    def _next_larger(self) -> int:
        if not self._growing:
            return self._size
        if self._too_large is not None and self._calls_since_shortage >= _CALLS_BEFORE_RETRY:
            self._too_large, self._calls_since_shortage = None, 0
        if self._too_large is None:
            return self._size * 2
        return (
            max((self._size + self._too_large) // 2, self._size)
            if self._too_large > self._size
            else self._size
        )

    def _move_to(self, size: int) -> None:
        if size != self._size:
            self._size = size
            self._latencies_ms.clear()
