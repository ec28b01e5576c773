"""Grey-scale dilation and erosion: the largest or the smallest sample of a window around each sample.

Samples outside the plane do not count, so the border neither grows nor shrinks anything by itself. The disc of radius
``r`` is OpenCV's ellipse of side ``2r + 1``: row ``dy`` reaches ``round(sqrt(r^2 - dy^2))`` samples to either side.
"""

from __future__ import annotations

from typing import Literal

import cv2
import numpy as np

from vitascope.frames import Plane
from vitascope.gpu.kernels.cuda_module import is_on_gpu

__all__ = [
    "MAX_RADIUS_PX",
    "Shape",
    "dilate_box",
    "dilate_disc",
    "erode_box",
    "erode_disc",
    "structuring_element",
]

MAX_RADIUS_PX = 256
"""Largest radius of a window; the GPU keeps a block's rows with their neighbours in shared memory."""

Shape = Literal["box", "disc"]


def dilate_box(plane: Plane, radius_px: int) -> Plane:
    """Largest sample of the square of ``2 radius_px + 1`` samples around each sample.

    This function and its three siblings run where the plane is: NumPy on the CPU; CuPy on the GPU, ordered on the
    current stream. Results are equal bit for bit.

    Args:
        plane: uint8 or uint16 [H, W]; rows may be padded.
        radius_px: Samples to each side, 0 to 256; 0 gives the plane itself.

    Returns:
        The same dtype and shape, C-contiguous.

    Raises:
        ValueError: Another dtype or shape, or a radius out of range.
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
    if plane.dtype not in (np.uint8, np.uint16) or plane.ndim != 2:
        raise ValueError(f"plane is {plane.dtype} {plane.shape}, expected uint8 or uint16 [H, W]")
    if not 0 <= radius_px <= MAX_RADIUS_PX:
        raise ValueError(f"radius is {radius_px}, expected 0 to {MAX_RADIUS_PX}")
    if radius_px == 0:
        return plane
    if is_on_gpu(plane):
        # Imported here: the launch is of no use without a GPU.
        from vitascope.gpu.kernels.morphology_cuda import launch_morphology

        made: Plane = launch_morphology(plane, radius_px, shape=shape, erode=erode)
        return made
    operation = cv2.erode if erode else cv2.dilate
    return operation(np.ascontiguousarray(plane), structuring_element(shape, radius_px))
