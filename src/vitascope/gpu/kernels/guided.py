"""Guided refinement: a small matte made sharp against the full picture (He et al., "Guided Image Filtering", 2013).

The matte is locally an affine function of the picture, ``alpha = gain * grey + offset``. ``gain`` and ``offset`` are
found (or learned, in RVM's deep guided filter) at the network's size, where they are smooth, and are upsampled
bilinearly; only the last multiply-add reads the full picture (the fast guided filter, He and Sun 2015).
``grey`` is the mean of R, G and B in 0..1.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane, Rotation
from vitascope.gpu.kernels.color import rgb_from_yuv
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resample import upsample_to_luma

__all__ = [
    "alpha_dtype",
    "alpha_peak",
    "grey_plane",
    "guided_coefficients",
    "refine_alpha",
    "upright_to_coded",
]

FloatPlane = npt.NDArray[Any]
"""float32; OpenCV's stubs do not say which dtype they return."""


def guided_coefficients(
    rgb: npt.NDArray[np.float32], alpha: npt.NDArray[np.float32], *, radius: int = 1, epsilon: float = 1e-4
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Fit ``alpha = gain * grey + offset`` in each window of (2 radius + 1)^2 samples.

    Args:
        rgb: float32 [N, 3, h, w], 0..1: the picture at the matte's size.
        alpha: float32 [N, h, w], 0..1.
        radius: Half the window; borders repeat.
        epsilon: Variance below which a window counts as flat and keeps its mean alpha.

    Returns:
        gain and offset, float32 [N, h, w].
    """
    side = (2 * radius + 1, 2 * radius + 1)

    def mean(plane: FloatPlane) -> FloatPlane:
        return cv2.blur(plane, side, borderType=cv2.BORDER_REPLICATE)

    gain = np.empty_like(alpha)
    offset = np.empty_like(alpha)
    for index, matte in enumerate(alpha):
        grey: FloatPlane = rgb[index].mean(axis=0)
        mean_grey, mean_matte = mean(grey), mean(matte)
        covariance = mean(grey * matte) - mean_grey * mean_matte
        variance = mean(grey * grey) - mean_grey * mean_grey
        slope = covariance / (variance + np.float32(epsilon))
        gain[index] = mean(slope)
        offset[index] = mean(mean_matte - slope * mean_grey)
    return gain, offset


def alpha_dtype(frame: Frame) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
    """The dtype of a frame's alpha: uint8 for 8-bit video, uint16 (full scale 65535) for deeper video."""
    return np.dtype(np.uint8) if frame.format.bit_depth == 8 else np.dtype(np.uint16)


def alpha_peak(alpha: Plane) -> int:
    """The code of full opacity: 255 or 65535."""
    return 255 if alpha.dtype == np.uint8 else 65535


def grey_plane(frame: Frame) -> FloatPlane:
    """Mean of R, G and B (0..1, not clipped) at every luma sample: float32 [H, W]."""
    matrix, offset = rgb_from_yuv(frame.color, frame.format)
    weights = matrix.mean(axis=0)
    if frame.format.semi_planar:
        blue_difference, red_difference = frame.planes[1][..., 0], frame.planes[1][..., 1]
    else:
        blue_difference, red_difference = frame.planes[1], frame.planes[2]
    chroma = cv2.addWeighted(
        np.ascontiguousarray(blue_difference),
        float(weights[1]),
        np.ascontiguousarray(red_difference),
        float(weights[2]),
        float(offset.mean()),
        dtype=cv2.CV_32F,
    )
    upsampled = upsample_to_luma(chroma, frame.format, frame.color, (frame.height, frame.width))
    luma = frame.planes[0].astype(np.float32)
    return cv2.scaleAdd(luma, float(weights[0]), np.ascontiguousarray(upsampled))


def upright_to_coded(planes: FloatPlane, rotation_degrees: Rotation) -> FloatPlane:
    """Turn [..., h, w] from upright back to the orientation the frame is coded in."""
    return np.ascontiguousarray(np.rot90(planes, k=rotation_degrees // 90, axes=(-2, -1)))


def refine_alpha(
    frame: Frame,
    *,
    regions: list[Region],
    gain: npt.NDArray[np.float32],
    offset: npt.NDArray[np.float32],
    rotation_degrees: Rotation = 0,
) -> Plane:
    """Alpha of the full picture from coefficients at the network's size.

    Args:
        frame: The picture.
        regions: Where each eye lies; outside them alpha is 0.
        gain: float32 [N, h, w], upright, one for each region.
        offset: float32 [N, h, w].
        rotation_degrees: Clockwise turn that made the picture upright for the network.

    Returns:
        uint8 [H, W] in 0..255 for 8-bit frames, uint16 [H, W] in 0..65535 for deeper ones.
    """
    grey = grey_plane(frame)
    dtype = alpha_dtype(frame)
    alpha = np.zeros((frame.height, frame.width), dtype)
    depth = cv2.CV_8U if dtype == np.uint8 else cv2.CV_16U
    peak = np.float32(alpha_peak(alpha))
    for index, region in enumerate(regions):
        size = (region.width, region.height)
        slope = cv2.resize(upright_to_coded(gain[index] * peak, rotation_degrees), size)
        bias = cv2.resize(upright_to_coded(offset[index] * peak, rotation_degrees), size)
        cv2.multiply(slope, np.ascontiguousarray(grey[region.rows, region.columns]), slope)
        # An integer destination rounds and saturates: this is the clamp to 0..1.
        alpha[region.rows, region.columns] = cv2.add(slope, bias, dtype=depth)
    return alpha
