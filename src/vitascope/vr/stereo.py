"""Stereo geometry: each eye's part of a frame, and one eye's samples in the other's picture."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vitascope.frames import StereoLayout
from vitascope.gpu.kernels.region import Region
from vitascope.vr.projection import Lens


def eye_regions(width: int, height: int, layout: StereoLayout) -> list[Region]:
    """The luma rectangle of each eye, first eye first; together they cover the frame.

    An odd width or height gives its extra column or row to the first eye.
    """
    if layout is StereoLayout.SIDE_BY_SIDE and width >= 2:
        first = width - width // 2
        return [Region(0, 0, first, height), Region(first, 0, width - first, height)]
    if layout is StereoLayout.TOP_BOTTOM and height >= 2:
        first = height - height // 2
        return [Region(0, 0, width, first), Region(0, first, width, height - first)]
    return [Region(0, 0, width, height)]


def disparity_curves(
    lens: Lens | None, size: tuple[int, int], most: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Positions of one eye's samples in the other eye's picture, as a cubic in the disparity.

    Disparity is the distance between the eyes over that of an object, in radians, if the lens is known; otherwise the
    object's shift as a share of the picture's width.

    Args:
        lens: Projection of both eyes' pictures; None assumes that objects shift along rows only.
        size: (height, width) of the pictures.
        most: Largest disparity that will be used.

    Returns:
        float32 [2, 6, h, w], for ``gpu.kernels.stereo_match``, the left eye's first; and float32 [2, h, w]: 1 where
        the other eye shows the sample's object at every disparity up to ``most``; elsewhere 0, as is the curve.
    """
    height, width = size
    curves = np.zeros((2, 6, height, width), np.float32)
    shown = np.ones((2, height, width), np.float32)
    if lens is None:
        curves[0, 0], curves[1, 0] = -width, width
        return curves, shown
    y, x = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
    rays = lens.unproject(x, y)
    tried = most * np.array([1, 2, 3]) / 3
    powers = np.linalg.inv(tried[:, None] ** np.array([1, 2, 3]))
    for eye, direction in enumerate((-1, 1)):
        moved = []
        for disparity in tried:
            seen = rays.copy()
            seen[0] += direction * disparity
            with np.errstate(invalid="ignore"):
                places = lens.project(seen)
            moved.append([(places[0] - x) * width, (places[1] - y) * height])
        factors = np.tensordot(powers, np.array(moved), axes=1)  # [power, axis, h, w]
        visible = np.isfinite(factors).all(axis=(0, 1))
        shown[eye] = visible
        curves[eye] = np.where(visible, factors, 0).swapaxes(0, 1).reshape(6, height, width)
    return curves, shown
