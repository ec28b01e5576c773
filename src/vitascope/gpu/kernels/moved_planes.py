"""Rotates, scales and shifts planes, each by its own transform, to align frames of a moving camera."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, fields, is_on_gpu, nvtx_range

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
