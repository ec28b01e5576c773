"""Calibration: choose the range of a network's integers from typical inputs.

A histogram collects an activation's magnitudes. The largest is rarely the best end of the scale, because the
steps between integers grow with it. ``entropy`` chooses the end that loses the least information when
quantised (Kullback-Leibler divergence: Migacz, "8-bit Inference with TensorRT", NVIDIA GTC 2017);
``percentile`` clips a fixed share; ``minmax`` clips nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from vitascope.errors import UsageError
from vitascope.gpu.engines.onnx_library import ort

CalibrationMethod = Literal["entropy", "percentile", "minmax"]

FloatArray = npt.NDArray[np.floating[Any]]

_BINS = 2048
_SMALLEST = 1e-30
"""Magnitudes below this count as zeros: a bin would be narrower than float32 allows."""
_FEWEST = 4 * _BINS
"""Fewest values for a meaningful histogram; with fewer, entropy clips nothing."""
_LEVELS = 128
"""Magnitudes of a signed 8-bit integer."""


def named_frames(
    frames: Mapping[str, Any] | Sequence[Any] | FloatArray, names: Sequence[str]
) -> dict[str, FloatArray]:
    """Validate calibration data: arrays by input name, or one array (or list of equal arrays) for a single input.

    Args:
        frames: Arrays with the same number of entries along the first axis.
        names: The network's inputs.

    Raises:
        UsageError: Data is missing, does not match the inputs, or holds NaN or infinity.
    """
    if isinstance(frames, Mapping):
        given = {name: np.asarray(array) for name, array in frames.items()}
    elif len(names) == 1:
        try:
            given = {names[0]: frames if isinstance(frames, np.ndarray) else np.stack(list(frames))}
        except (TypeError, ValueError) as error:  # no data, not a list, an empty list, or several shapes
            raise UsageError(
                "calibration data is an array with the frames along its first axis, or a list of frames of one shape "
                f"without that axis ({error})"
            ) from error
    else:
        raise UsageError(f"the network takes {', '.join(names)}; give calibration data for each by name")
    if set(given) != set(names):
        raise UsageError(
            f"calibration data is for {', '.join(map(str, given)) or 'nothing'}; the network takes {', '.join(names)}"
        )
    counts = {array.shape[0] if array.ndim else 0 for array in given.values()}
    if len(counts) != 1 or 0 in counts:
        raise UsageError("calibration data needs as many entries for each input, and at least one")
    for name, array in given.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(f"frames for {name!r} hold values that are not finite")
    return {name: given[name] for name in names}


class MagnitudeHistogram:
    """Histogram of one tensor's magnitudes over all calibration frames."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)
        self._largest = 0.0

    def add(self, values: FloatArray) -> None:
        """Count an array's magnitudes; for larger values the range doubles, and bins merge in pairs.

        Raises:
            UsageError: A value is NaN or infinite.
        """
        magnitudes = np.abs(np.asarray(values, np.float32)).ravel()
        top = float(magnitudes.max(initial=0.0))
        if not np.isfinite(top):
            raise UsageError("calibration found values that are not finite")
        if top < _SMALLEST:
            return
        if self._largest == 0.0:
            self._largest = top
        while top > self._largest:
            self._largest *= 2
            merged = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.concatenate([merged, np.zeros(_BINS // 2, np.int64)])
        self._counts += np.histogram(magnitudes, bins=_BINS, range=(0.0, self._largest))[0]

    def threshold(self, method: CalibrationMethod, *, percentile: float = 99.99) -> float:
        """Get the magnitude that maps to the largest integer; 1 if all values were zero."""
        if self._largest == 0.0:
            return 1.0
        used = int(np.nonzero(self._counts)[0][-1]) + 1
        width = self._largest / _BINS
        if method == "minmax":
            return used * width
        if method == "percentile":
            share = np.cumsum(self._counts) / self._counts.sum()
            return (int(np.searchsorted(share, percentile / 100)) + 1) * width
        return entropy_bins(self._counts) * width


def entropy_bins(counts: npt.NDArray[np.int64]) -> int:
    """Choose how many bins of a magnitude histogram a scale should cover to lose the least information.

    Args:
        counts: int64 [bins], starting at magnitude 0, in bins of equal width; not all empty.
    """
    used = int(np.nonzero(counts)[0][-1]) + 1
    if counts.sum() < _FEWEST:
        return used
    merged = -(-used // _BINS)  # a longer histogram needs no finer bins
    if merged > 1:
        padded = np.pad(counts[:used], (0, -used % merged))
        return min(_least_divergence(padded.reshape(-1, merged).sum(axis=1)) * merged, used)
    return _least_divergence(counts[:used])


def _least_divergence(counts: npt.NDArray[np.int64]) -> int:
    """Get the number of bins to keep; candidates are in steps of eight bins, with as many levels each."""
    used = len(counts)
    # A rectified activation is mostly exact zeros, which every scale represents.
    histogram = counts.astype(np.float64)
    histogram[0] = histogram[1] if used > 1 else histogram[0]
    best, fewest = float("inf"), used
    for kept in range(min(_LEVELS, used), used + 1, 8):
        reference = histogram[:kept].copy()
        reference[-1] += histogram[kept:].sum()  # clipped values fall on the last integer
        divergence = _divergence(reference, histogram[:kept])
        if divergence < best:
            best, fewest = divergence, kept
    return fewest


def _divergence(reference: npt.NDArray[np.float64], kept: npt.NDArray[np.float64]) -> float:
    """Divergence of the reference from its quantised form: a level's count spreads over its non-empty bins."""
    level = np.minimum(np.arange(len(kept)) * _LEVELS // len(kept), _LEVELS - 1)
    filled = kept > 0
    totals = np.bincount(level, kept, _LEVELS)
    sizes = np.bincount(level, filled, _LEVELS)
    spread = np.where(filled, (totals / np.maximum(sizes, 1))[level], 0.0)
    p, q = reference / max(reference.sum(), 1e-12), spread / max(spread.sum(), 1e-12)
    # Bins filled only by clipping have no counterpart; a small one keeps the sum finite and the candidate
    # expensive.
    mask = p > 0
    return float(np.sum(p[mask] * np.log(p[mask] / np.maximum(q[mask], 1e-9))))


@cache
def adds_byte_products_exactly() -> bool:
    """Whether 8-bit products are summed exactly: not on x86 CPUs without VNNI, where pairs saturate at 16 bits.

    Tested in ONNX Runtime itself with the largest products; see its "Quantize ONNX Models", "When and why do
    I need to try U8U8?". 7-bit weights are exact everywhere.
    """
    network = helper.make_graph(
        [helper.make_node("MatMulInteger", ["activations", "weights"], ["sums"])],
        "largest byte products",
        [
            helper.make_tensor_value_info("activations", TensorProto.UINT8, [1, 2]),
            helper.make_tensor_value_info("weights", TensorProto.INT8, [2, 16]),
        ],
        [helper.make_tensor_value_info("sums", TensorProto.INT32, [1, 16])],
    )
    model = helper.make_model(network, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    largest = {"activations": np.full((1, 2), 255, np.uint8), "weights": np.full((2, 16), 127, np.int8)}
    (sums,) = session.run(["sums"], largest)
    return bool((sums == 2 * 255 * 127).all())
