"""Choose the batch size: by a search on this machine, or adaptively during the work."""

from __future__ import annotations

import math
import random
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from time import perf_counter
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from vitascope.device import select_device
from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu.interchange import to_cupy
from vitascope.gpu.kernels.cuda_module import import_cupy
from vitascope.gpu.memory.shortage import is_out_of_memory, release_idle_memory
from vitascope.gpu.number_checks import check_count, check_number
from vitascope.gpu.toolkit.batching.batch_arrays import kind_of, split, stack
from vitascope.gpu.toolkit.worker_streams import finish, open_streams

T = TypeVar("T")

_DEFAULT_INITIAL = 4
_LATENCIES_KEPT = 5
# A size that ran out of memory is tried again after this many calls: the GPU may have more free memory by
# then, and one failure among so many calls costs little.
_CALLS_BEFORE_RETRY = 256


class MemoryMonitor(Protocol):
    """Reports the memory in use; ``vitascope.gpu.VRAMMonitor`` is one."""

    def get_stats(self) -> Any:
        """Current figures: ``allocated_vram_gb`` in use of ``total_vram_gb``, in one unit."""
        ...


class AdaptiveBatchSizer:
    """Adapts the batch size during the work.

    The size doubles from call to call while memory and latency allow, and never exceeds what is predicted to
    fit: memory grows linearly with the size, by a fit to the sizes so far; latency at worst in proportion. If
    memory runs out all the same, the size is halved, the call repeated, and the failed size approached from
    below by bisection. ``process`` and ``in_ranges`` do all this around a function; ``adjust_batch_size`` is
    for your own loops. Thread-safe.

    Args:
        initial_batch_size: First size; if omitted, 4 or ``max_batch_size``, whichever is less.
        target_utilization: Largest share of the device's memory in use, 0..1.
        max_batch_size: Largest size.
        min_batch_size: Smallest size.
        target_latency_ms: Longest acceptable call; None for no limit.
        monitor: Reports memory in use; if omitted, the device's ``VRAMMonitor``, made on first use.
        device: Device of that memory: ``cuda``, ``cpu``, or ``auto``: the GPU if there is one.
        device_id: Number of the GPU; ignored on a CPU.
        growing: False only lowers the size, when memory runs out, without monitoring.
        on_shortage: Called with each out-of-memory error and the new size.

    Raises:
        ValueError: The sizes are not in order, the utilization is outside 0..1, or the latency is invalid.
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
        check_number("target_utilization", target_utilization, above=0, most=1)
        check_number("target_latency_ms", target_latency_ms, above=0, optional=True)
        self.target_utilization = target_utilization
        self.target_latency_ms = target_latency_ms
        self.min_batch_size, self.max_batch_size = min_batch_size, max_batch_size
        self.shortage_count = 0
        """Number of out-of-memory errors."""
        self._size = initial_batch_size
        self._monitor = monitor
        self._device, self._device_id = device, device_id
        self._growing = growing
        self._on_shortage = on_shortage
        self._lock = threading.Lock()
        self._utilization: dict[int, float] = {}  # by size, the latest
        self._latencies_ms: deque[float] = deque(maxlen=_LATENCIES_KEPT)  # of the current size
        self._too_large: int | None = None
        self._calls_since_shortage = 0

    @property
    def batch_size(self) -> int:
        """Frames in the next call."""
        return self._size

    def at_most(self, frames: int) -> None:
        """Limit the size of further calls to ``frames``, but not below ``min_batch_size``."""
        with self._lock:
            self.max_batch_size = max(min(self.max_batch_size, frames), self.min_batch_size)
            self._move_to(min(self._size, self.max_batch_size))

    def adjust_batch_size(self, latency_ms: float | None = None) -> int:
        """Choose the next call's size by memory and latency; call it after each call.

        Args:
            latency_ms: Duration of the last call, until its result was ready.

        Returns:
            The new ``batch_size``.

        Raises:
            DeviceError: The device's memory cannot be queried.
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
        """Record that a call of ``size`` frames ran out of memory.

        Args:
            error: The out-of-memory error.
            size: Frames in that call.

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
        """Call a function for consecutive ranges of 0 to ``count``, retrying smaller ranges when memory runs out.

        Args:
            count: End of the last range.
            call: Takes a range's start and end (exclusive) and returns results. Must have no effect if it
                runs out of memory.
            end_of: Takes a range's start and longest length, and returns its end, to end ranges early.

        Returns:
            All results, in order.

        Raises:
            DeviceMemoryError: Or the library's own error: ``min_batch_size`` does not fit into memory.
        """
        return self._in_calls(count, lambda first, end, _: call(first, end), end_of=end_of, full=False)

    def process(
        self, frames: Iterable[Any], fn: Callable[[list[Any]], Any], *, pad: bool = False
    ) -> list[Any]:
        """Run a function over all frames, in batches of the current size.

        Args:
            frames: Any number; an iterator is read on demand.
            fn: Takes a list of frames and returns as many results: a list, an array with rows, or a tuple or
                dict of arrays. On a GPU it should return when they are ready, or latencies are
                underestimated.
            pad: Pass full batches only; copies of the last frame fill up the last batch.

        Returns:
            One result per frame, in order.

        Raises:
            DeviceMemoryError: Or the library's own error: a single frame does not fit into memory.
            EngineError: ``fn`` returned another number of results.
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
        """Run ``call`` over ranges as ``in_ranges`` does; its third argument is the number of rows to compute."""
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
                # Drop the traceback, whose frames hold the arrays of the failed call (PyTorch's FAQ: "My out of
                # memory exception handler can't allocate memory"), and handle the error outside, where `error` is
                # gone.
                shortage = error.with_traceback(None)
            if shortage is not None:
                self.shrink(shortage, rows)
                continue
            if self._growing and rows == size:  # a short last batch says nothing about the size
                self.adjust_batch_size((perf_counter() - began) * 1e3)
            first = end
        return results

    def _memory_monitor(self) -> MemoryMonitor:
        if self._monitor is None:
            from vitascope.gpu.memory.vram_monitor import VRAMMonitor

            self._monitor = VRAMMonitor(self._device_id, device=self._device)
        return self._monitor

    def _fits_memory(self, in_use: float) -> int:
        """Predict the largest size that fits into memory, by the line through the current and another size."""
        room = self.target_utilization - in_use
        others = [size for size in self._utilization if size != self._size]
        if others:
            other = max(others, key=lambda size: abs(size - self._size))
            each = (in_use - self._utilization[other]) / (self._size - other)
        else:  # at worst the batch takes all memory in use
            each = in_use / self._size
        if each <= 0:
            return self._size - 1 if room < 0 else self.max_batch_size
        # Floor: below the current size if there is no room. A size that exactly reaches the target fits.
        fits = self._size + math.floor(room / each + 1e-6)
        # With measurements of one size only, one more frame shows how much memory a frame takes.
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


Verdict = Literal["fits", "out of memory", "above the memory limit", "above the latency limit"]

# A sample lasts at least this long, to make the granularity of clock and scheduler negligible.
_SAMPLE_SECONDS = 2e-3
_MOST_CALLS_A_SAMPLE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeasurement:
    """Time and memory of calls with one batch size."""

    batch_size: int
    verdict: Verdict
    latency_ms: float | None = None
    """Median time of a call until its result is ready; None if memory ran out."""
    latency_p95_ms: float | None = None
    throughput_fps: float = 0.0
    """Requests per second, from the median."""
    memory_utilization: float | None = None
    """Share of the device's memory in use while the result is held; None if not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearchResult:
    """The chosen size, with all measurements."""

    best: BatchMeasurement
    measurements: tuple[BatchMeasurement, ...]
    """By increasing size."""
    reason: str
    """Reason for the choice, on one line."""

    @property
    def batch_size(self) -> int:
        """The chosen size."""
        return self.best.batch_size


class BatchSizeOptimizer:
    """Finds the smallest batch size with the best throughput, within limits of latency and memory.

    Tries sizes 1, 2, 4 … until one exceeds a limit or memory runs out, then finds the largest that fits by
    bisection, since memory and latency grow with the size. All sizes that fit are measured again in shuffled
    rounds, so that clocks and other load affect them equally, and compared by their medians. Of those within
    ``tolerance`` of the fastest it takes the smallest: it costs the least memory and latency, and so small a
    difference may be noise.

    Args:
        inference_fn: Takes a batch; see ``DynamicBatcher``.
        example: One request's data, without a batch axis; batches are copies of it.
        max_batch_size: Largest size to try.
        latency_limit_ms: Longest median time of a call; None for no limit.
        max_memory_percent: Largest share of the device's memory in use during a call, 0..1.
        monitor: Reports memory in use; if omitted, ``VRAMMonitor`` on a GPU, and none on a CPU, whose memory
            is shared with other programs.
        rounds: Measurements per size.
        warm_ups: Untimed calls per size before, to record graphs and fill caches.
        tolerance: Share of the throughput within which sizes count as equal.
        device: Device of ``inference_fn``.
        device_id: Number of the GPU; ignored on a CPU.
        timer: Clock in seconds, for tests.

    Raises:
        DeviceError: ``device="cuda"`` is not available.
        TypeError: The example cannot be stacked.
        ValueError: A limit is out of range.
    """

    def __init__(
        self,
        inference_fn: Callable[[Any], Any],
        example: Any,
        *,
        max_batch_size: int = 128,
        latency_limit_ms: float | None = None,
        max_memory_percent: float = 0.9,
        monitor: MemoryMonitor | None = None,
        rounds: int = 7,
        warm_ups: int = 2,
        tolerance: float = 0.03,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        check_count("max_batch_size", max_batch_size)
        check_count("rounds", rounds)
        check_count("warm_ups", warm_ups)
        check_number("latency_limit_ms", latency_limit_ms, above=0, optional=True)
        check_number("max_memory_percent", max_memory_percent, above=0, most=1)
        check_number("tolerance", tolerance, least=0, below=1)
        kind_of(example)
        self._function, self._example = inference_fn, example
        self._most = max_batch_size
        self._latency_limit_ms, self._memory_limit = latency_limit_ms, max_memory_percent
        self._rounds, self._warm_ups, self._tolerance = rounds, warm_ups, tolerance
        self._device = select_device(device, index=device_id)
        self._monitor = monitor
        self._timer = timer

    def find_optimal_batch_size(self) -> int:
        """Find the best size; see ``search`` for the measurements."""
        return self.search().batch_size

    def search(self) -> BatchSearchResult:
        """Try and measure sizes, and choose one.

        Returns:
            The chosen size with its measurements.

        Raises:
            DeviceMemoryError: A single request does not fit into memory, or exceeds its limit.
            EngineError: A single request exceeds the latency limit.
            Exception: Whatever else ``inference_fn`` raised.
        """
        (stream,) = open_streams(self._device, 1)
        with stream.entered():
            found = self._probe_sizes()
            fitting = {size: probe for size, probe in found.items() if probe.verdict == "fits"}
            if not fitting:
                raise _nothing_fits(found[1])
            samples_ms: dict[int, list[float]] = {size: [] for size in fitting}
            batches = {size: self._batch(size) for size in fitting}
            order, shuffled = list(batches), random.Random(0)
            for _ in range(self._rounds):
                # Periodic disturbances must not hit the same size each time.
                shuffled.shuffle(order)
                for size in order:
                    samples_ms[size].append(self._sample_ms(batches[size]))
        for size, samples in samples_ms.items():
            found[size] = self._measured(size, samples, found[size].memory_utilization)
        return self._choose(found)

    def _probe_sizes(self) -> dict[int, BatchMeasurement]:
        found: dict[int, BatchMeasurement] = {}
        size = 1
        while size not in found:
            found[size] = self._probe(size)
            if found[size].verdict != "fits":
                break
            size = min(size * 2, self._most)
        low = max((size for size, probe in found.items() if probe.verdict == "fits"), default=0)
        high = min((size for size, probe in found.items() if probe.verdict != "fits"), default=low + 1)
        while low and high - low > 1:
            middle = (low + high) // 2
            found[middle] = self._probe(middle)
            low, high = (middle, high) if found[middle].verdict == "fits" else (low, middle)
        return found

    def _probe(self, size: int) -> BatchMeasurement:
        """Try a size for the first time, with empty caches, so that memory in use is what it needs."""
        release_idle_memory()
        shortage = False
        try:
            batch = self._batch(size)
            for _ in range(self._warm_ups):
                self._call(batch)
            samples = [self._sample_ms(batch) for _ in range(3)]
            utilization = self._utilization(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                error.add_note(f"inference_fn failed with a batch of {size}")
                raise
            shortage = True  # handled below, without the error, whose frames hold arrays
        if shortage:
            release_idle_memory()
            return BatchMeasurement(batch_size=size, verdict="out of memory")
        return self._measured(size, samples, utilization)

    def _measured(self, size: int, samples_ms: list[float], utilization: float | None) -> BatchMeasurement:
        latency_ms = statistics.median(samples_ms)
        verdict: Verdict = "fits"
        if utilization is not None and utilization > self._memory_limit:
            verdict = "above the memory limit"
        elif self._latency_limit_ms is not None and latency_ms > self._latency_limit_ms:
            verdict = "above the latency limit"
        ranked = sorted(samples_ms)
        return BatchMeasurement(
            batch_size=size,
            verdict=verdict,
            latency_ms=latency_ms,
            latency_p95_ms=ranked[math.ceil(0.95 * len(ranked)) - 1],
            throughput_fps=size / latency_ms * 1e3 if latency_ms else math.inf,
            memory_utilization=utilization,
        )

    def _choose(self, found: dict[int, BatchMeasurement]) -> BatchSearchResult:
        measurements = tuple(found[size] for size in sorted(found))
        # A size near the latency limit may pass once and fail when measured again.
        fitting = [one for one in measurements if one.verdict == "fits"]
        if not fitting:
            raise _nothing_fits(measurements[0])
        fastest = max(fitting, key=lambda one: one.throughput_fps)
        bar = fastest.throughput_fps * (1 - self._tolerance)
        best = next(one for one in fitting if one.throughput_fps >= bar)
        reason = f"{best.throughput_fps:.1f}/s in batches of {best.batch_size}"
        if best is not fastest:
            reason += f", within {self._tolerance:.0%} of the {fastest.throughput_fps:.1f}/s of {fastest.batch_size}"
        barred = next((one for one in measurements if one.verdict != "fits"), None)
        if barred is not None:
            reason += f"; {barred.batch_size} is {barred.verdict}"
        return BatchSearchResult(best=best, measurements=measurements, reason=reason)

    def _batch(self, size: int) -> Any:
        return stack([self._example], rows=size)

    def _call(self, batch: Any) -> Any:
        output = self._function(batch)
        finish(output, ())
        return output

    def _sample_ms(self, batch: Any) -> float:
        calls, began = 0, self._timer()
        while True:
            self._call(batch)
            calls += 1
            seconds = self._timer() - began
            if seconds >= _SAMPLE_SECONDS or calls == _MOST_CALLS_A_SAMPLE:
                return seconds / calls * 1e3

    def _utilization(self, batch: Any) -> float | None:
        if self._monitor is None:
            if self._device.kind == "cpu":
                return None
            from vitascope.gpu.memory.vram_monitor import VRAMMonitor

            self._monitor = VRAMMonitor(self._device.index)
        output = self._call(batch)
        figures = self._monitor.get_stats()
        del output
        return figures.allocated_vram_gb / figures.total_vram_gb


def find_optimal_batch_size(
    model: Any,
    input_shape: Sequence[int],
    max_memory_percent: float = 0.9,
    *,
    max_batch_size: int = 128,
    latency_limit_ms: float | None = None,
    device: Literal["auto", "cuda", "cpu"] = "auto",
    device_id: int = 0,
) -> int:
    """Find the best batch size of a network with ``BatchSizeOptimizer``.

    Args:
        model: A ``torch.nn.Module`` (moved to the device and set to evaluation), an engine with one input, or
            a callable that takes a batch, NumPy on a CPU and CuPy on a GPU.
        input_shape: Shape of one input, without the batch axis, such as (3, 512, 512).
        max_memory_percent: Largest share of the device's memory in use during a call, 0..1.
        max_batch_size: Largest size to try.
        latency_limit_ms: Longest median time of a call; None for no limit.
        device: ``auto`` is an engine's own device, else the GPU if one is available.
        device_id: Number of the GPU; ignored on a CPU.

    Raises:
        DeviceError: The device is not available.
        DeviceMemoryError: A single input does not fit into memory, or exceeds its limit.
        EngineError: A single input exceeds the latency limit, or the network failed.
        TypeError: ``model`` has another type.
        ValueError: A limit is out of range.
    """
    # Imported here: the pipeline imports this folder.
    from vitascope.gpu.toolkit.async_model import open_model

    network = open_model(model, device=device, device_id=device_id, batch_size=1, cuda_graphs=False)
    example: Any = np.random.default_rng(0).random(input_shape, np.float32).astype(network.dtype)
    if network.device.kind == "cuda":
        with import_cupy().cuda.Device(network.device.index):
            example = to_cupy(example)
    try:
        return BatchSizeOptimizer(
            lambda batch: network.compute(batch, label=f"a batch of {len(batch)}"),
            example,
            max_batch_size=max_batch_size,
            latency_limit_ms=latency_limit_ms,
            max_memory_percent=max_memory_percent,
            device=network.device.kind,
            device_id=network.device.index,
        ).find_optimal_batch_size()
    finally:
        network.close()


def _nothing_fits(one: BatchMeasurement) -> EngineError:
    """Make the error for a network that cannot compute a single request within the limits."""
    if one.verdict == "above the latency limit":
        return EngineError(f"one request takes {one.latency_ms:.2f} ms, which is above the latency limit")
    share = "" if one.memory_utilization is None else f": {one.memory_utilization:.0%} is in use"
    return DeviceMemoryError(f"not even one request fits, {one.verdict}{share}")
