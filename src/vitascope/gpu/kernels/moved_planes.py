"""Moves planes, to align frames: each by its own transform, for a moving camera, or each sample by itself."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import (
    array_module,
    by_value,
    cuda_kernel,
    fields,
    is_on_gpu,
    nvtx_range,
)

FloatArray = npt.NDArray[np.float32]


def moved(
    planes: FloatArray,
    moves: npt.NDArray[np.float64],
    *,
    is_back: bool = False,
    beyond: float | None = None,
) -> FloatArray:
    """Move planes of pictures, with linear interpolation.

    Runs on the planes' device: OpenCV on the CPU; CuPy in one kernel, on the current stream. Results differ by
    rounding, because OpenCV reads at multiples of 1/32 sample.

    Args:
        planes: float32 [N, C, h, w].
        moves: float64 [N, 2, 3], in host memory: for each picture, the affine map of positions (x, y), in samples;
            must be invertible.
        is_back: Apply the inverse maps.
        beyond: Value outside the planes; if omitted, their borders repeat.

    Returns:
        float32 of the same shape, in new memory.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(planes):
        made: FloatArray = _launch(planes, moves, is_back=is_back, beyond=beyond)
        return made
    flags = cv2.INTER_LINEAR | (cv2.WARP_INVERSE_MAP if is_back else 0)
    border = cv2.BORDER_REPLICATE if beyond is None else cv2.BORDER_CONSTANT
    out = np.empty(planes.shape, np.float32)
    for picture, move, into in zip(planes, moves, out, strict=True):
        for plane, target in zip(picture, into, strict=True):
            target[...] = cv2.warpAffine(
                plane, move, plane.shape[::-1], flags=flags, borderMode=border, borderValue=beyond or 0.0
            )
    return out


def read_at(planes: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Read planes between samples, linearly, at a place of its own for each sample; their border goes on.

    Runs where the planes are: OpenCV on the CPU, CuPy's array operations on a GPU. Results differ by rounding, of
    places to 1/32 sample where OpenCV reads so.

    Args:
        planes: float32 [N, C, h, w].
        x: Columns to read at, float32 [N, h', w'], in samples.
        y: Likewise the rows.

    Returns:
        float32 [N, C, h', w'], in memory of its own.
    """
    if is_on_gpu(planes):
        gathered: FloatArray = _gathered(planes, x, y)
        return gathered
    out = np.empty((*planes.shape[:2], *x.shape[1:]), np.float32)
    for picture, right, down, into in zip(planes, x, y, out, strict=True):
        for plane, target in zip(picture, into, strict=True):
            target[...] = cv2.remap(
                np.ascontiguousarray(plane), right, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
            )
    return out


def _gathered(planes: Any, x: Any, y: Any) -> Any:
    """``read_at`` with array operations, NumPy's or CuPy's."""
    arrays = array_module(on_gpu=is_on_gpu(planes))
    count, channels, height, width = planes.shape
    x, y = x.clip(0, width - 1)[:, None], y.clip(0, height - 1)[:, None]
    left, top = x.astype("int32"), y.astype("int32")
    right, below = np.minimum(left + 1, width - 1), np.minimum(top + 1, height - 1)
    across, down = x - left, y - top
    which = arrays.arange(count)[:, None, None, None], arrays.arange(channels)[None, :, None, None]

    def row(at: Any) -> Any:
        first = planes[(*which, at, left)]
        return first + across.astype("float32") * (planes[(*which, at, right)] - first)

    upper = row(top)
    return upper + down.astype("float32") * (row(below) - upper)


# Same as in moved_planes.cu.
_BLOCK = 32, 8
_JOB = np.dtype([*fields("u8", "planes", "places", "out"), *fields("i4", "channels", "height", "width")])


def _launch(planes: Any, moves: npt.NDArray[np.float64], *, is_back: bool, beyond: float | None) -> Any:
    import cupy

    planes = cupy.ascontiguousarray(planes, "float32")
    out = cupy.empty_like(planes)
    count, channels, height, width = planes.shape
    if not planes.size:
        return out
    # The position that each sample of the result is read from.
    whole = np.tile(np.eye(3), (count, 1, 1))
    whole[:, :2] = moves
    read_from = whole if is_back else np.linalg.inv(whole)
    places = cupy.asarray(np.ascontiguousarray(read_from[:, :2], np.float32))
    job = np.zeros(1, _JOB)
    job[0] = (planes.data.ptr, places.data.ptr, out.data.ptr, channels, height, width)
    defines = {} if beyond is None else {"BEYOND": f"{float(beyond)}f"}
    with nvtx_range("moved planes"):
        kernel = cuda_kernel("moved_planes.cu", "moved", **defines)
        kernel((math.ceil(width / _BLOCK[0]), math.ceil(height / _BLOCK[1]), count), _BLOCK, (by_value(job),))
    return out
