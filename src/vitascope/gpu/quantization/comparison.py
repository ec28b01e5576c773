"""How far a quantised network is from the one it was made of, and how much faster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitascope.errors import UsageError
from vitascope.gpu.quantization.calibration import FloatArray, named_frames
from vitascope.gpu.quantization.runners import Comparable, Run, opened

__all__ = ["Comparison", "compare_networks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Accuracy and speed of a network beside its reference's, on the same frames."""

    frames: int
    mean_error: float
    """Mean absolute difference of the outputs, in their own units."""
    worst_frame_error: float
    """The same of the frame that is worst off."""
    max_error: float
    """Largest difference of one value."""
    relative_error: float
    """Mean absolute difference as a share of the reference's mean magnitude."""
    reference_ms: float
    """Median of one call with one frame."""
    quantized_ms: float
    finite: bool
    """False where an output holds values that are not numbers; its errors mean nothing then."""

    @property
    def speedup(self) -> float:
        """Above 1 where the quantised network is faster."""
        return self.reference_ms / self.quantized_ms


def compare_networks(
    reference: Comparable,
    quantized: Comparable,
    frames: Mapping[str, Any] | Sequence[Any] | FloatArray,
    *,
    outputs: Sequence[str] | None = None,
    iterations: int = 10,
    threads: int = 0,
) -> Comparison:
    """Run both networks on frames, one at a time, then time them in turns.

    Args:
        reference: A PyTorch module, an ONNX network, an engine, or a callable.
        quantized: The same network in fewer bits.
        frames: What they are fed, along the first axis: by input name, or one array.
        outputs: Which outputs count; all when omitted.
        iterations: Calls of each that are timed, after one that is not; turns, so that both meet the same machine.
        threads: Of ONNX Runtime; 0 uses every core.

    Raises:
        UsageError: The frames do not fit, or an output is missing.
        EngineError: A network failed.
    """
    with (
        opened(reference, threads=threads) as (run_reference, names),
        opened(quantized, threads=threads) as (run_quantized, others),
    ):
        known = names or others or (tuple(frames) if isinstance(frames, Mapping) else ("input",))
        given = named_frames(frames, known)
        entries = [
            {name: array[index : index + 1] for name, array in given.items()}
            for index in range(len(next(iter(given.values()))))
        ]
        means, largest, magnitudes, finite = [], 0.0, [], True
        for entry in entries:
            expected, got = run_reference(entry), run_quantized(entry)
            differences = [
                np.abs(np.asarray(got[name], np.float64) - np.asarray(expected[name], np.float64))
                for name in _counted(expected, got, outputs)
            ]
            count = sum(difference.size for difference in differences)
            means.append(sum(float(difference.sum()) for difference in differences) / count)
            largest = max(largest, *(float(difference.max(initial=0)) for difference in differences))
            finite = finite and bool(np.isfinite(means[-1]))
            magnitudes.append(
                sum(float(np.abs(expected[name]).sum()) for name in _counted(expected, got, outputs)) / count
            )
        times = _times_ms((run_reference, run_quantized), entries, iterations)
    mean = float(np.mean(means))
    return Comparison(
        frames=len(entries),
        mean_error=mean,
        worst_frame_error=max(means),
        max_error=largest,
        relative_error=mean / max(float(np.mean(magnitudes)), 1e-12),
        reference_ms=times[0],
        quantized_ms=times[1],
        finite=finite,
    )


def _counted(
    expected: Mapping[str, FloatArray], got: Mapping[str, FloatArray], outputs: Sequence[str] | None
) -> list[str]:
    names = list(expected) if outputs is None else list(outputs)
    for name in names:
        if name not in expected or name not in got:
            raise UsageError(f"no output is called {name!r} in both networks")
        if np.shape(expected[name]) != np.shape(got[name]):
            raise UsageError(
                f"{name!r} is {np.shape(got[name])}, and {np.shape(expected[name])} in the reference"
            )
    return names


def _times_ms(
    runs: tuple[Run, Run], entries: Sequence[Mapping[str, FloatArray]], iterations: int
) -> tuple[float, float]:
    if iterations < 1:
        raise UsageError(f"{iterations} iterations: at least 1 is needed")
    samples: tuple[list[float], list[float]] = ([], [])
    for turn in range(-1, iterations):
        entry = entries[turn % len(entries)]
        for run, times in zip(runs, samples, strict=True):
            begun = time.perf_counter()
            run(entry)
            if turn >= 0:
                times.append((time.perf_counter() - begun) * 1e3)
    return float(np.median(samples[0])), float(np.median(samples[1]))
