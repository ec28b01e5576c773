"""Grey-scale dilation and erosion: the maximum or minimum of a window around each sample.

Samples outside the plane do not count, so the border itself has no effect. The disc of radius ``r`` is OpenCV's
ellipse with side ``2r + 1``: row ``dy`` extends ``round(sqrt(r^2 - dy^2))`` samples to either side.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import cv2
import numpy as np

from vitascope.frames import Plane
from vitascope.gpu.kernels.cuda_module import cuda_kernel, fields, is_on_gpu, nvtx_range

MAX_RADIUS_PX = 256
"""Largest radius of a window; on the GPU, a block keeps its rows and their neighbours in shared memory."""

Shape = Literal["box", "disc"]


def dilate_box(plane: Plane, radius_px: int) -> Plane:
    """Largest sample in the square of side ``2 radius_px + 1`` around each sample.

    Like its three siblings, runs on the plane's device: NumPy on the CPU; CuPy on the GPU, on the current stream.
    Results are bit-for-bit equal.

    Args:
        plane: uint8 or uint16 [H, W], or several, [N, H, W]; rows may be padded.
        radius_px: Samples to each side, 0 to 256; 0 returns the plane itself.

    Returns:
        The same dtype and shape, C-contiguous.

    Raises:
        ValueError: The dtype or shape is not supported, or the radius is out of range.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    return _morph(plane, radius_px, shape="box", erode=False)


def erode_box(plane: Plane, radius_px: int) -> Plane:
    """Smallest sample of the square around each sample; otherwise as ``dilate_box``."""
    return _morph(plane, radius_px, shape="box", erode=True)


def dilate_disc(plane: Plane, radius_px: int) -> Plane:
    """Largest sample of the disc around each sample; otherwise as ``dilate_box``."""
    return _morph(plane, radius_px, shape="disc", erode=False)


def erode_disc(plane: Plane, radius_px: int) -> Plane:
    """Smallest sample of the disc around each sample; otherwise as ``dilate_box``."""
    return _morph(plane, radius_px, shape="disc", erode=True)


def structuring_element(shape: Shape, radius_px: int) -> Plane:
    """uint8 [2 radius + 1, 2 radius + 1], 1 inside the window."""
    kind = cv2.MORPH_RECT if shape == "box" else cv2.MORPH_ELLIPSE
    return cv2.getStructuringElement(kind, (2 * radius_px + 1, 2 * radius_px + 1))


def _morph(plane: Plane, radius_px: int, *, shape: Shape, erode: bool) -> Plane:
    if plane.dtype not in (np.uint8, np.uint16) or plane.ndim not in (2, 3):
        raise ValueError(
            f"plane is {plane.dtype} {plane.shape}, expected uint8 or uint16 [H, W] or [N, H, W]"
        )
    if not 0 <= radius_px <= MAX_RADIUS_PX:
        raise ValueError(f"radius is {radius_px}, expected 0 to {MAX_RADIUS_PX}")
    if radius_px == 0:
        return plane
    if is_on_gpu(plane):
        made: Plane = launch_morphology(plane, radius_px, shape=shape, erode=erode)
        return made
    operation = cv2.erode if erode else cv2.dilate
    window = structuring_element(shape, radius_px)
    if plane.ndim == 2:
        return operation(np.ascontiguousarray(plane), window)
    planes = np.empty_like(plane, order="C")
    for one, target in zip(plane, planes, strict=True):
        target[...] = operation(np.ascontiguousarray(one), window)
    return planes


# Same as in morphology.cu.
_THREADS = 256
_SEGMENT = 1024
_GROUP = 4
_SMALL_DISC_PX, _SMALL_DEPTH, _LARGE_DEPTH = 4, 8, 16

PLANE_VIEW = np.dtype([("data", "u8"), *fields("i8", "pitch", "step")])
"""The kernels' description of planes: address, then distances of rows and of planes in samples."""

SAMPLE_NAMES = {1: "unsigned char", 2: "unsigned short"}
"""C++ types by bytes per sample."""

_DISC = np.dtype(
    [
        *fields("i4", "radius", "margin", "levels", "width"),
        ("first", "i4", MAX_RADIUS_PX + 1),
        ("second", "i4", MAX_RADIUS_PX + 1),
    ]
)


def launch_morphology(planes: Any, radius_px: int, *, shape: Shape, erode: bool, out: Any = None) -> Any:
    """Dilate or erode on the current CuPy stream.

    Args:
        planes: CuPy uint8 or uint16 [H, W] or [N, H, W]; rows and planes may be padded.
        radius_px: 1 to 256.
        shape: Shape of the window.
        erode: True for the smallest sample, False for the largest.
        out: Output array of the same dtype and shape, not the input itself; a new array if omitted.

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
        # Between the passes, rows begin and end at whole groups.
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
    """``PLANE_VIEW`` of a CuPy array [H, W] or [N, H, W] with adjacent samples in a row."""
    if planes.strides[-1] != planes.dtype.itemsize and planes.shape[-1] > 1:
        raise ValueError("the samples of a row must be contiguous")
    view = np.zeros(1, PLANE_VIEW)
    step = planes.strides[0] // planes.dtype.itemsize if planes.ndim == 3 else 0
    view[0] = (planes.data.ptr, planes.strides[-2] // planes.dtype.itemsize, step)
    return view


def has_aligned_rows(planes: Any) -> bool:
    """True if every row begins at a multiple of 4 samples."""
    step = _GROUP * planes.dtype.itemsize
    return bool(planes.data.ptr % step == 0 and all(stride % step == 0 for stride in planes.strides[:-1]))


@lru_cache(maxsize=64)
def _disc(radius_px: int) -> Any:
    """The disc's rows, each as two overlapping runs whose length is a power of two."""
    reach = (structuring_element("disc", radius_px)[radius_px:].sum(axis=1, dtype=int) - 1) // 2
    level = np.log2(2 * reach + 1).astype(int)
    disc = np.zeros(1, _DISC)
    margin = -(-radius_px // _GROUP) * _GROUP
    width = _THREADS + 2 * margin
    disc["radius"], disc["margin"], disc["levels"], disc["width"] = radius_px, margin, level.max(), width
    disc["first"][0, : len(reach)] = level * width + margin - reach
    disc["second"][0, : len(reach)] = level * width + margin + reach + 1 - (1 << level)
    return disc
