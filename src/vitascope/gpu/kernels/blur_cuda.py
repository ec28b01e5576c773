"""Launch of ``blur.cu``."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np

from vitascope.gpu.kernels.blur import LEAST_SHARE, BlurPlan
from vitascope.gpu.kernels.cuda_module import cuda_kernel, nvtx_range, row_pitch

__all__ = ["launch_blur"]

# As in blur.cu.
_THREADS = 128
_SPAN = 2048
_MAX_RADIUS = 36
_TILE_WIDTH, _TILE_HEIGHT, _SHRUNK_TILE_HEIGHT, _TILE_THREADS = 32, 64, 16, 256

_PICTURE = np.dtype(
    [
        ("plane", "u8"),
        ("weight", "u8"),
        ("pitch", "i8"),
        ("weight_pitch", "i8"),
        ("height", "i4"),
        ("width", "i4"),
    ]
)
_TAPS = ("f4", 2 * _MAX_RADIUS + 1)
_GAUSSIAN = np.dtype(
    [("radius_y", "i4"), ("radius_x", "i4"), ("least_share", "f4"), ("column", *_TAPS), ("row", *_TAPS)]
)
_NAMES = {1: "unsigned char", 2: "unsigned short"}


def launch_blur(plane: Any, weight: Any, plan: BlurPlan) -> Any:
    """Run the kernels on the current CuPy stream; arguments and result as in ``blur_without``.

    Raises:
        ValueError: The plan's Gaussian is wider than the kernel's.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    if max(plan.radius) > _MAX_RADIUS:
        raise ValueError(f"the GPU kernel blurs at most 4300 samples wide; the plan is {plan}")
    height, width = plane.shape[:2]
    channels = 1 if plane.ndim == 2 else plane.shape[2]
    is_shrunk = plan.size != (height, width)
    defines: dict[str, str | int] = {
        "SAMPLE": _NAMES[plane.dtype.itemsize],
        "WEIGHT": _NAMES[weight.dtype.itemsize],
        "CHANNELS": channels,
        "WEIGHT_CHANNELS": 1 if weight.ndim == 2 else channels,
        "SHRUNK": int(is_shrunk),
        "VECTORS": int(_has_whole_vectors(plane) and _has_whole_vectors(weight)),
    }
    picture = _picture(plane, weight)
    gaussian = _gaussian(plan)
    out = cupy.empty(plane.shape, plane.dtype)
    with nvtx_range("blur"):
        if not is_shrunk:
            _blur_tiles(defines, picture, np.uint64(0), out, gaussian, (height, width * channels))
            return out
        small_height, small_width = plan.size
        step_y, step_x = height / small_height, width / small_width
        # A run's windows and the alignment of its first load must fit the span.
        run = min(int((_SPAN / channels - 24) / step_x), small_width)
        sums = cupy.empty((small_height, small_width * channels, 2), cupy.float32)
        cuda_kernel("blur.cu", "shrink_weighted", **defines)(
            (math.ceil(small_width / run), small_height),
            (_THREADS,),
            (picture, sums, np.int32(small_width), np.int32(run), np.float32(step_y), np.float32(step_x)),
        )
        blurred = cupy.empty((small_height, small_width * channels), cupy.float32)
        picture["height"], picture["width"] = plan.size
        _blur_tiles(defines, picture, sums, blurred, gaussian, blurred.shape)
        lanes = 16 // plane.dtype.itemsize
        cuda_kernel("blur.cu", "grow", **defines)(
            (math.ceil(width * channels / lanes / _THREADS), math.ceil(height / 2)),
            (_THREADS,),
            (
                blurred,
                out,
                *(np.int32(length) for length in (small_height, small_width, height, width)),
                np.float32(1 / step_y),
                np.float32(1 / step_x),
            ),
        )
    return out


def _blur_tiles(
    defines: dict[str, str | int], picture: Any, small: Any, out: Any, gaussian: Any, size: tuple[int, int]
) -> None:
    tile_height = _SHRUNK_TILE_HEIGHT if defines["SHRUNK"] else _TILE_HEIGHT
    cuda_kernel("blur.cu", "blur_tiles", **defines)(
        (math.ceil(size[1] / _TILE_WIDTH), math.ceil(size[0] / tile_height)),
        (_TILE_THREADS,),
        (picture, small, out, gaussian),
    )


def _picture(plane: Any, weight: Any) -> Any:
    picture = np.zeros(1, _PICTURE)
    picture[0] = (
        plane.data.ptr,
        weight.data.ptr,
        *(row_pitch(array.shape, array.strides, itemsize=array.dtype.itemsize) for array in (plane, weight)),
        *plane.shape[:2],
    )
    return picture


def _gaussian(plan: BlurPlan) -> Any:
    gaussian = np.zeros(1, _GAUSSIAN)
    gaussian["radius_y"], gaussian["radius_x"] = plan.radius
    gaussian["least_share"] = LEAST_SHARE
    for name, sigma, radius in zip(("column", "row"), plan.sigma, plan.radius, strict=True):
        taps = cv2.getGaussianKernel(2 * radius + 1, sigma, cv2.CV_32F)
        gaussian[name][0, : 2 * radius + 1] = taps[:, 0]
    return gaussian


def _has_whole_vectors(plane: Any) -> bool:
    """True when every row begins on 16 bytes and may be read to a multiple of 16 pixels.

    Pixels, not bytes: a load takes as many weights as the plane has pixels in 16 bytes.
    """
    pixel_bytes = math.prod(plane.shape[2:]) * plane.dtype.itemsize
    return bool(
        plane.data.ptr % 16 == 0
        and plane.strides[0] % 16 == 0
        and plane.strides[0] >= -(-plane.shape[1] // 16) * 16 * pixel_bytes
    )
