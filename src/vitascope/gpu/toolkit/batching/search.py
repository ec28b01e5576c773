"""Measuring which batch size is best on this machine."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np

from vitascope.device import select_device
from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu.engines.gpu_arrays import import_cupy
from vitascope.gpu.interchange import to_cupy
from vitascope.gpu.memory.shortage import is_out_of_memory, release_idle_memory
from vitascope.gpu.toolkit.batching.adaptive import MemoryMonitor
from vitascope.gpu.toolkit.batching.batch_arrays import kind_of, stack
from vitascope.gpu.toolkit.worker_streams import finish, open_streams

Verdict = Literal["fits", "out of memory", "above the memory limit", "above the latency limit"]

# One sample lasts at least this long, so that the clock's and the scheduler's grain is a small part of it.
_SAMPLE_SECONDS = 2e-3
_MOST_CALLS_A_SAMPLE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeasurement:
    """Time and memory of calls of one size."""

    batch_size: int
    verdict: Verdict
    latency_ms: float | None = None
    """Median time of a call until its result is there; None if memory ran out."""
    latency_p95_ms: float | None = None
    throughput_fps: float = 0.0
    """Requests a second, of the median."""
    memory_utilization: float | None = None
    """Share of the device's memory in use while the result is held; None if not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearchResult:
    """The size that was chosen, and all that was measured."""

    best: BatchMeasurement
    measurements: tuple[BatchMeasurement, ...]
    """By rising size."""
    reason: str
    """The grounds of the choice, in one line."""

    @property
    def batch_size(self) -> int:
        """The chosen size."""
        return self.best.batch_size


class BatchSizeOptimizer:
    """Finds the smallest batch size that is as fast as any, within limits of latency and memory.

    Sizes 1, 2, 4 … are tried until one breaks a limit or memory runs out; then the largest that fits is found by
    halves, for memory and latency grow with the size. All that fit are measured again in turns and in mixed order, so
    that a machine that warms up or has other work slows them alike, and judged by their medians. Among those within
    ``tolerance`` of the fastest the smallest is taken: it costs the least memory and latency, and a difference that
    small may be noise.

    Args:
        inference_fn: Takes a batch; see ``DynamicBatcher``.
        example: One request's data, without a batch axis; batches are copies of it.
        latency_limit_ms: Longest median time of a call; None: any.
        max_memory_percent: Share of the device's memory that may be in use during a call, 0..1.
        monitor: Asked for memory in use; when omitted, ``VRAMMonitor`` on a GPU, and nobody on a CPU, whose memory
            others use too.
        rounds: How often each size is measured.
        warm_ups: Calls of a size before it is measured: graphs are recorded and caches filled in them.
        tolerance: See above; a share of the throughput.
        device: Where ``inference_fn`` computes.
        device_id: Number of the GPU; without meaning on a CPU.

    Raises:
        DeviceError: ``device="cuda"`` cannot be had.
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
        if max_batch_size < 1 or rounds < 1 or warm_ups < 1:
            raise ValueError(
                f"sizes, rounds and warm-ups count from 1: {max_batch_size}, {rounds}, {warm_ups}"
            )
        if latency_limit_ms is not None and not latency_limit_ms > 0:
            raise ValueError(f"latency_limit_ms is a time, not {latency_limit_ms}")
        if not 0 < max_memory_percent <= 1 or not 0 <= tolerance < 1:
            raise ValueError(f"shares lie in 0..1, not {max_memory_percent} and {tolerance}")
        kind_of(example)
        self._function, self._example = inference_fn, example
        self._most = max_batch_size
        self._latency_limit_ms, self._memory_limit = latency_limit_ms, max_memory_percent
        self._rounds, self._warm_ups, self._tolerance = rounds, warm_ups, tolerance
        self._device = select_device(device, index=device_id)
        self._monitor = monitor
        self._timer = timer

    def find_optimal_batch_size(self) -> int:
        """The best size; ``search`` tells more."""
        return self.search().batch_size

    def search(self) -> BatchSearchResult:
        """Try, measure, choose.

        Returns:
            The choice and its grounds.

        Raises:
            DeviceMemoryError: Not even one request fits into memory, or below its limit.
            EngineError: Not even one request is within the latency limit.
            Exception: What ``inference_fn`` raised for another reason.
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
                shuffled.shuffle(
                    order
                )  # what disturbs the machine at intervals must not meet the same size each time
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
        """A first look at one size, the caches being empty, so that what is in use is what it needs."""
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
            shortage = True  # handled below, where the error, whose frames hold arrays, is gone
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
        # A size at the latency limit may have passed it once and not when it was measured again.
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
    """The best batch size of a network, by ``BatchSizeOptimizer``.

    Args:
        model: A ``torch.nn.Module`` (moved to the device and set to evaluate), an engine of one input, or a callable
            that takes a batch, NumPy on a CPU and CuPy on a GPU.
        input_shape: Shape of one input, without the batch axis, such as (3, 512, 512).
        max_memory_percent: Share of the device's memory that may be in use during a call, 0..1.
        latency_limit_ms: Longest median time of a call; None: any.
        device: ``auto`` is an engine's own device, else the GPU where one can be used.
        device_id: Number of the GPU; ignored on a CPU.

    Raises:
        DeviceError: The device cannot be had.
        DeviceMemoryError: Not even one input fits into memory, or below its limit.
        EngineError: Not even one input is within the latency limit, or the network failed.
        TypeError: ``model`` is something else.
        ValueError: A limit is out of range.
    """
    # Imported here: it finds out what a network is for the pipeline, whose batches are this folder's.
    from vitascope.gpu.toolkit.async_pipeline.model import open_model

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
    """The error for a network of which not even one request can be computed within the limits."""
    if one.verdict == "above the latency limit":
        return EngineError(f"one request takes {one.latency_ms:.2f} ms, which is above the latency limit")
    share = "" if one.memory_utilization is None else f": {one.memory_utilization:.0%} is in use"
    return DeviceMemoryError(f"not even one request fits, {one.verdict}{share}")
