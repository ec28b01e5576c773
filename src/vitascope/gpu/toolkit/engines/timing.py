"""How long calls take: each alone, for its percentiles, and many in a row, for the throughput."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypedDict

import numpy as np

from vitascope.errors import EngineError
from vitascope.gpu.engines.engine import Precision, ShapeRange, TensorSpec

__all__ = ["BenchmarkReport", "LatencyReport", "measure_calls", "usual_shape"]


class LatencyReport(TypedDict):
    """Milliseconds of one call, from its start until its results are there, and calls in a row."""

    avg_latency_ms: float
    min_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    throughput_fps: float
    """Pictures a second while calls follow one another without waiting for results in between."""
    batch_size: int
    num_iterations: int
    warmup: int


class BenchmarkReport(LatencyReport):
    """What ``benchmark`` of an engine gives: ``LatencyReport``, and what was measured."""

    engine: str
    precision: Precision
    device: str
    input_shapes: dict[str, tuple[int, ...]]


def usual_shape(tensor: TensorSpec, known: ShapeRange | None, batch_size: int | None) -> tuple[int, ...]:
    """The size that an input is measured with.

    Args:
        tensor: The input.
        known: The sizes that its engine was built for, where they are known.
        batch_size: First dimension; the usual one when omitted, 1 where that is not known.

    Raises:
        EngineError: A side is free and nothing says how long it is.
    """
    sides: list[int] = []
    for axis, side in enumerate(tensor.shape):
        if axis == 0 and batch_size is not None:
            sides.append(batch_size)
        elif known is not None:
            sides.append(known.usual[axis])
        elif isinstance(side, int) or axis == 0:
            sides.append(side if isinstance(side, int) else 1)
        else:
            raise EngineError(
                f"benchmark: input {tensor.name!r} is {list(tensor.shape)}; build it with input_shapes, "
                "which say its usual size"
            )
    return tuple(sides)


def measure_calls(
    call: Callable[[], object],
    *,
    wait: Callable[[], object],
    batch_size: int,
    num_iterations: int,
    warmup: int,
) -> LatencyReport:
    """Time a call.

    Args:
        call: What is timed.
        wait: Returns when everything that was launched has finished; does nothing on a CPU.
        batch_size: Pictures of one call.
        num_iterations: Calls of each of the two measurements.
        warmup: Calls before, which are not counted: compilers, caches and clocks settle in them.
    """
    for _ in range(warmup):
        call()
    wait()
    samples_ms = []
    for _ in range(num_iterations):
        begun = time.perf_counter()
        call()
        wait()
        samples_ms.append((time.perf_counter() - begun) * 1e3)
    begun = time.perf_counter()
    for _ in range(num_iterations):
        call()
    wait()
    in_a_row_seconds = time.perf_counter() - begun
    p50, p95, p99 = (float(np.percentile(samples_ms, share)) for share in (50, 95, 99))
    return LatencyReport(
        avg_latency_ms=float(np.mean(samples_ms)),
        min_ms=min(samples_ms),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=max(samples_ms),
        throughput_fps=batch_size * num_iterations / in_a_row_seconds,
        batch_size=batch_size,
        num_iterations=num_iterations,
        warmup=warmup,
    )
