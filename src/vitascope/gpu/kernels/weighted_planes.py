"""Weighted sums of planes of several sizes over one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, fields, is_on_gpu, nvtx_range
from vitascope.gpu.kernels.resize_normalize import resized

FloatArray = npt.NDArray[np.float32]

MOST_PARTS: Final = 4
"""Maximum number of planes per sum."""
MOST_SUMS: Final = 2
"""Maximum number of sums per call."""


def weighted_sums(
    planes: Sequence[Sequence[FloatArray]], weights: Sequence[FloatArray], size: tuple[int, int]
) -> list[FloatArray]:
    """Add planes, each enlarged bilinearly to one size and multiplied by its own weights, which are also enlarged.

    Runs on the planes' device: NumPy on the CPU; CuPy in one kernel, on the current stream, which stores only the
    sums. Results agree to rounding.

    Args:
        planes: For each sum its parts, float32 [N, 1, h, w]; each part has the same size in all sums.
        weights: For each part, float32 [N, 1, rows, columns].
        size: (height, width) of the sums; no part may be larger.

    Returns:
        The sums, float32 [N, 1, *size], on the same device.

    Raises:
        ValueError: There are more than two sums or four parts, or none, or shapes do not match.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    _check(planes, weights, size)
    if is_on_gpu(weights[0]):
        launched: list[FloatArray] = _launch(planes, weights, size)
        return launched
    large = [_enlarged(one, size) for one in weights]
    return [
        reduce(add, (_enlarged(one, size) * weight for one, weight in zip(parts, large, strict=True)))
        for parts in planes
    ]


def _enlarged(planes: FloatArray, size: tuple[int, int]) -> FloatArray:
    if planes.shape[2:] == size:
        return planes
    large: FloatArray = resized(planes, size)
    return large


def _check(
    planes: Sequence[Sequence[FloatArray]], weights: Sequence[FloatArray], size: tuple[int, int]
) -> None:
    if not 1 <= len(planes) <= MOST_SUMS or not 1 <= len(weights) <= MOST_PARTS:
        raise ValueError(
            f"{len(planes)} sums of {len(weights)} parts, expected 1 to {MOST_SUMS}, of 1 to {MOST_PARTS}"
        )
    for parts in planes:
        shapes = [one.shape for one in (*parts, *weights)]
        if shapes[: len(parts)] != [one.shape for one in planes[0]] or len(parts) != len(weights):
            raise ValueError(f"parts of {shapes} do not fit each other, or their weights")
        if any(len(shape) != 4 or shape[:2] != (len(weights[0]), 1) for shape in shapes):
            raise ValueError(f"planes and weights are {shapes}, expected [N, 1, height, width] of one N")
        if any(side > most for shape in shapes for side, most in zip(shape[2:], size, strict=True)):
            raise ValueError(f"planes and weights of {shapes} are larger than {size}")


# Same as in weighted_planes.cu.
_BLOCK = 32, 8
_GRID = np.dtype(fields("i4", "height", "width"))
_JOB = np.dtype(
    [
        ("planes", "u8", (MOST_SUMS, MOST_PARTS)),
        ("weights", "u8", (MOST_PARTS,)),
        ("sums", "u8", (MOST_SUMS,)),
        ("sizes", _GRID, (MOST_PARTS,)),
        ("cells", _GRID, (MOST_PARTS,)),
        ("size", _GRID),
        *fields("i4", "parts", "count"),
    ]
)


def _launch(planes: Sequence[Sequence[Any]], weights: Sequence[Any], size: tuple[int, int]) -> list[Any]:
    """Run the kernel on the current CuPy stream; takes and returns the same as ``weighted_sums``."""
    import cupy

    own = [[cupy.ascontiguousarray(part, "float32") for part in parts] for parts in planes]
    shares = [cupy.ascontiguousarray(part, "float32") for part in weights]
    count, (height, width) = len(shares[0]), size
    sums = [cupy.empty((count, 1, *size), "float32") for _ in planes]
    job = np.zeros(1, _JOB)
    for at, parts in enumerate(own):
        job["planes"][0, at, : len(parts)] = [part.data.ptr for part in parts]
        job["sums"][0, at] = sums[at].data.ptr
    job["weights"][0, : len(shares)] = [part.data.ptr for part in shares]
    for name, arrays in (("sizes", own[0]), ("cells", shares)):
        job[name][0, : len(arrays)] = [part.shape[2:] for part in arrays]
    job["size"], job["parts"], job["count"] = size, len(shares), len(sums)
    if count:
        with nvtx_range("weighted sums"):
            kernel = cuda_kernel("weighted_planes.cu", "weighted_sums")
            grid = math.ceil(width / _BLOCK[0]), math.ceil(height / _BLOCK[1]), count
            kernel(grid, _BLOCK, (by_value(job),))
    return sums
