"""Launch of ``remap.cu``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, nvtx_range
from vitascope.gpu.kernels.remap import Codes, MapRead

__all__ = ["launch_remap"]

# As in remap.cu.
_ROWS = 4
_BLOCK = (32, 8)

_AXIS = np.dtype([("step", "f4"), ("shift", "f4"), ("scale", "f4"), ("offset", "f4")])
_JOB = np.dtype(
    [
        ("plane", "u8"),
        ("map_x", "u8"),
        ("map_y", "u8"),
        ("out", "u8"),
        ("pitch", "i8"),
        ("map_x_pitch", "i8"),
        ("map_y_pitch", "i8"),
        ("height", "i4"),
        ("width", "i4"),
        ("map_height", "i4"),
        ("map_width", "i4"),
        ("out_height", "i4"),
        ("out_width", "i4"),
        ("y", _AXIS),
        ("x", _AXIS),
        ("constant", "f4", 4),
    ],
    align=True,
)
_SAMPLES = {"uint8": "unsigned char", "uint16": "unsigned short", "float16": "__half", "float32": "float"}
_INTERPOLATIONS = {"nearest": 0, "linear": 1, "cubic": 2}


def launch_remap(
    plane: Any,
    map_x: Any,
    map_y: Any,
    read: MapRead,
    codes: Codes,
    *,
    interpolation: str,
    border: str,
) -> Any:
    """Run the kernel on the current CuPy stream.

    Args:
        plane: CuPy [H, W] or [H, W, C].
        map_x: CuPy float32 [h, w].
        map_y: CuPy float32 [h, w].
        read: How the result's samples find their place.
        codes: What its samples may be.
        interpolation: ``nearest``, ``linear`` or ``cubic``.
        border: ``replicate`` or ``constant``.

    Raises:
        ValueError: A plane or map has 2^31 samples or more.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    channels = 1 if plane.ndim == 2 else plane.shape[2]
    out = cupy.empty((*read.size, *plane.shape[2:]), plane.dtype)
    job = np.zeros(1, _JOB)
    # Samples of a row must be dense; rows may be padded.
    plane, map_x, map_y = (_with_dense_rows(array) for array in (plane, map_x, map_y))
    if any(
        array.strides[0] // array.dtype.itemsize * array.shape[0] >= 2**31 for array in (plane, map_x, map_y)
    ):
        raise ValueError("the GPU kernel reads planes and maps of fewer than 2^31 samples")
    for name, array in (("plane", plane), ("map_x", map_x), ("map_y", map_y), ("out", out)):
        job[name] = array.data.ptr
    for name, array in (("pitch", plane), ("map_x_pitch", map_x), ("map_y_pitch", map_y)):
        job[name] = array.strides[0] // array.dtype.itemsize
    job["height"], job["width"] = plane.shape[:2]
    job["map_height"], job["map_width"] = map_x.shape
    job["out_height"], job["out_width"] = read.size
    for index, name in enumerate("yx"):
        job[name][0] = read.step[index], read.shift[index], read.scale[index], read.offset[index]
    job["constant"][0, : len(codes.constant)] = codes.constant
    kernel = cuda_kernel(
        "remap.cu",
        "remap",
        SAMPLE=_SAMPLES[plane.dtype.name],
        PEAK=codes.peak,
        STEP=codes.step,
        CHANNELS=channels,
        INTERPOLATION=_INTERPOLATIONS[interpolation],
        REPLICATE=int(border == "replicate"),
        COARSE=int(read.step != (1.0, 1.0) or read.shift != (0.0, 0.0)),
    )
    height, width = read.size
    with nvtx_range("remap"):
        kernel(
            (math.ceil(width / _BLOCK[0]), math.ceil(height / (_BLOCK[1] * _ROWS))), _BLOCK, (by_value(job),)
        )
    return out


def _with_dense_rows(array: Any) -> Any:
    """The array, copied only when samples of a row are apart."""
    import cupy

    expected = array.dtype.itemsize
    for axis in range(array.ndim - 1, 0, -1):
        if array.strides[axis] != expected and array.shape[axis] > 1:
            return cupy.ascontiguousarray(array)
        expected *= array.shape[axis]
    return array
