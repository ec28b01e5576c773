"""Launch of ``morphology.cu``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from vitascope.gpu.kernels.cuda_module import cuda_kernel, nvtx_range
from vitascope.gpu.kernels.morphology import MAX_RADIUS_PX, Shape, structuring_element

__all__ = ["PLANE_VIEW", "SAMPLE_NAMES", "has_aligned_rows", "launch_morphology", "plane_view"]

# As in morphology.cu.
_THREADS = 256
_SEGMENT = 1024
_GROUP = 4
_SMALL_DISC_PX, _SMALL_DEPTH, _LARGE_DEPTH = 4, 8, 16

PLANE_VIEW = np.dtype([("data", "u8"), ("pitch", "i8"), ("step", "i8")])
"""The kernels' view of planes: address, then samples from row to row and from plane to plane."""

SAMPLE_NAMES = {1: "unsigned char", 2: "unsigned short"}
"""C++ types by bytes of a sample."""

_DISC = np.dtype(
    [
        ("radius", "i4"),
        ("margin", "i4"),
        ("levels", "i4"),
        ("width", "i4"),
        ("first", "i4", MAX_RADIUS_PX + 1),
        ("second", "i4", MAX_RADIUS_PX + 1),
    ]
)


def launch_morphology(planes: Any, radius_px: int, *, shape: Shape, erode: bool, out: Any = None) -> Any:
    """Dilate or erode on the current CuPy stream.

    Args:
        planes: CuPy uint8 or uint16 [H, W] or [N, H, W]; rows and planes may be padded.
        radius_px: 1 to 256.
        shape: The window.
        erode: True for the smallest sample, False for the largest.
        out: Where to write, of the same dtype and shape, not the input itself; a new array when omitted.

    Returns:
        ``out``.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    result = cupy.empty(planes.shape, planes.dtype) if out is None else out
    height, width = planes.shape[-2:]
    count = planes.shape[0] if planes.ndim == 3 else 1
    defines: dict[str, str | int] = {
        "SAMPLE": SAMPLE_NAMES[planes.dtype.itemsize],
        "ERODE": int(erode),
        "VECTORS": int(has_aligned_rows(planes) and has_aligned_rows(result)),
    }
    lanes = 4 // planes.dtype.itemsize
    size = (np.int32(height), np.int32(width))
    with nvtx_range("morphology"):
        if shape == "disc":
            window = _disc(radius_px)
            depth = _SMALL_DEPTH if radius_px <= _SMALL_DISC_PX else _LARGE_DEPTH
            cuda_kernel("morphology.cu", "disc", DEPTH=depth, **defines)(
                (math.ceil(width / _THREADS), math.ceil(height / (lanes * depth)), count),
                (_THREADS,),
                (plane_view(planes), plane_view(result), *size, window),
                shared_mem=int((window["levels"][0] + 1) * window["width"][0]) * 4,
            )
            return result
        # Between the passes, rows begin and end on whole groups.
        padded = (count, height, -(-width // _GROUP) * _GROUP)
        across, suffixes = cupy.empty(padded, planes.dtype), cupy.empty(padded, planes.dtype)
        cuda_kernel("morphology.cu", "box_rows", **defines)(
            (math.ceil(width / _SEGMENT), math.ceil(height / lanes), count),
            (_THREADS,),
            (plane_view(planes), plane_view(across), *size, np.int32(radius_px)),
        )
        cuda_kernel("morphology.cu", "box_columns", **defines)(
            (math.ceil(width / lanes / _THREADS), math.ceil(height / (2 * radius_px + 1)), count),
            (_THREADS,),
            (plane_view(across), plane_view(suffixes), plane_view(result), *size, np.int32(radius_px)),
        )
    return result


def plane_view(planes: Any) -> Any:
    """``PLANE_VIEW`` of a CuPy array [H, W] or [N, H, W] whose samples of a row are neighbours."""
    if planes.strides[-1] != planes.dtype.itemsize and planes.shape[-1] > 1:
        raise ValueError("the samples of a row must lie next to each other")
    view = np.zeros(1, PLANE_VIEW)
    step = planes.strides[0] // planes.dtype.itemsize if planes.ndim == 3 else 0
    view[0] = (planes.data.ptr, planes.strides[-2] // planes.dtype.itemsize, step)
    return view


def has_aligned_rows(planes: Any) -> bool:
    """True when every row begins on 4 samples."""
    step = _GROUP * planes.dtype.itemsize
    return bool(planes.data.ptr % step == 0 and all(stride % step == 0 for stride in planes.strides[:-1]))


@lru_cache(maxsize=64)
def _disc(radius_px: int) -> Any:
    """The disc's rows, each as two overlapping runs of a power of two samples."""
    reach = (structuring_element("disc", radius_px)[radius_px:].sum(axis=1, dtype=int) - 1) // 2
    level = np.log2(2 * reach + 1).astype(int)
    disc = np.zeros(1, _DISC)
    margin = -(-radius_px // _GROUP) * _GROUP
    width = _THREADS + 2 * margin
    disc["radius"], disc["margin"], disc["levels"], disc["width"] = radius_px, margin, level.max(), width
    disc["first"][0, : len(reach)] = level * width + margin - reach
    disc["second"][0, : len(reach)] = level * width + margin + reach + 1 - (1 << level)
    return disc
