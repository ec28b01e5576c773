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
from vitascope.gpu.kernels.resample import lerp, upsample_to_luma

__all__ = [
    "alpha_dtype",
    "alpha_peak",
    "grey_plane",
    "guided_coefficients",
    "refine_alpha",
    "upright_to_coded",
]

# Rows handled together: a band's float planes stay in a core's cache, and are too small for the allocator to give back
# to the system after every frame, which would cost more in page faults (10 ms at 1080p) than the arithmetic.
_BAND_ROWS = 128

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


def grey_plane(frame: Frame, rows: slice | None = None) -> FloatPlane:
    """Mean of R, G and B (0..1, not clipped) at the luma samples of some rows: float32 [rows, W].

    Args:
        frame: The picture.
        rows: Which luma rows; all when omitted. The start must be a multiple of the chroma block's height.
    """
    rows = slice(0, frame.height) if rows is None else rows
    matrix, offset = rgb_from_yuv(frame.color, frame.format)
    weights = matrix.mean(axis=0)
    # One more chroma row on either side, so that the cut does not show.
    step = 1 << frame.format.chroma_shift_y
    first = max(rows.start // step - 1, 0)
    chroma_rows = slice(first, -(-rows.stop // step) + 1)
    if frame.format.semi_planar:
        pair = frame.planes[1][chroma_rows]
        blue_difference, red_difference = pair[..., 0], pair[..., 1]
    else:
        blue_difference, red_difference = frame.planes[1][chroma_rows], frame.planes[2][chroma_rows]
    chroma = cv2.addWeighted(
        np.ascontiguousarray(blue_difference),
        float(weights[1]),
        np.ascontiguousarray(red_difference),
        float(weights[2]),
        float(offset.mean()),
        dtype=cv2.CV_32F,
    )
    height = rows.stop - first * step
    upsampled = upsample_to_luma(chroma, frame.format, frame.color, (height, frame.width))[
        rows.start - first * step :
    ]
    luma = frame.planes[0][rows].astype(np.float32)
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
    alpha = np.zeros((frame.height, frame.width), alpha_dtype(frame))
    peak = np.float32(alpha_peak(alpha))
    coefficients = [
        (
            upright_to_coded(gain[index] * peak, rotation_degrees),
            upright_to_coded(offset[index] * peak, rotation_degrees),
        )
        for index in range(len(regions))
    ]
    for top in range(0, frame.height, _BAND_ROWS):
        band = slice(top, min(top + _BAND_ROWS, frame.height))
        grey = grey_plane(frame, band)
        for region, (slope, bias) in zip(regions, coefficients, strict=True):
            _refine_band(alpha, band, grey, region, slope, bias)
    return alpha


def _refine_band(
    alpha: Plane, band: slice, grey: FloatPlane, region: Region, slope: FloatPlane, bias: FloatPlane
) -> None:
    """Write ``slope * grey + bias`` into the rows that a band and a region share."""
    first, last = max(band.start, region.y), min(band.stop, region.y + region.height)
    if first >= last:
        return
    centres = np.arange(first - region.y, last - region.y) + 0.5
    rows = (centres * (slope.shape[0] / region.height) - 0.5).astype(np.float32)
    size = (region.width, last - first)
    # Rows are interpolated while they are still narrow, then widened.
    steep = cv2.resize(lerp(slope, rows, axis=0), size, interpolation=cv2.INTER_LINEAR)
    shift = cv2.resize(lerp(bias, rows, axis=0), size, interpolation=cv2.INTER_LINEAR)
    picture = grey[first - band.start : last - band.start, region.columns]
    cv2.multiply(steep, np.ascontiguousarray(picture), steep)
    # An integer destination rounds and saturates: this is the clamp to 0..1.
    depth = cv2.CV_8U if alpha.dtype == np.uint8 else cv2.CV_16U
    alpha[first:last, region.columns] = cv2.add(steep, shift, dtype=depth)
