"""Refines a small matte against the full picture (He et al., "Guided Image Filtering", 2013).

Locally, the matte is an affine function of the picture, ``alpha = gain * grey + offset``. ``gain`` and ``offset`` are
computed (or learned, in RVM's deep guided filter) at the network's size, where they are smooth, and upsampled
bilinearly. Only the last multiply-add reads the full picture (the fast guided filter, He and Sun 2015). ``grey`` is
the mean of R, G and B in 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane, Rotation
from vitascope.gpu.kernels.color import alpha_dtype, alpha_peak, grey_bounds, rgb_from_yuv
from vitascope.gpu.kernels.composite_launch import Coefficients, refine_on_gpu
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.region import Region, cut, is_whole_blocks, whole_frame
from vitascope.gpu.kernels.resample import lerp, upsample_to_luma

# Rows handled together: a band's float planes fit a core's cache, and are so small that the allocator does not return
# them to the system after every frame, which could cost more in page faults than the arithmetic does.
_BAND_ROWS = 128

FloatPlane = npt.NDArray[Any]
"""float32; OpenCV's stubs do not declare the dtype."""


def guided_coefficients(
    rgb: npt.NDArray[np.float32], alpha: npt.NDArray[np.float32], *, radius: int = 1, epsilon: float = 1e-4
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Fit ``alpha = gain * grey + offset`` in each window of (2 radius + 1)^2 samples.

    Args:
        rgb: float32 [N, 3, h, w], 0..1: the picture at the matte's size.
        alpha: float32 [N, h, w], 0..1.
        radius: Radius of the window; borders repeat.
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


def grey_plane(frame: Frame, window: Region | None = None) -> FloatPlane:
    """Mean of R, G and B (0..1, not clipped) at luma samples: float32 [h, w].

    Args:
        frame: The picture.
        window: The samples to compute; all if omitted.
    """
    window = whole_frame(frame) if window is None else window
    matrix, offset = rgb_from_yuv(frame.color, frame.format)
    weights = matrix.mean(axis=0)
    fmt = frame.format
    # One more chroma sample on every side, so that the cut does not show.
    left, top = max((window.x >> fmt.chroma_shift_x) - 1, 0), max((window.y >> fmt.chroma_shift_y) - 1, 0)
    right = ((window.x + window.width - 1) >> fmt.chroma_shift_x) + 2
    bottom = ((window.y + window.height - 1) >> fmt.chroma_shift_y) + 2
    if fmt.semi_planar:
        pair = frame.planes[1][top:bottom, left:right]
        blue_difference, red_difference = pair[..., 0], pair[..., 1]
    else:
        blue_difference, red_difference = (plane[top:bottom, left:right] for plane in frame.planes[1:])
    chroma = cv2.addWeighted(
        np.ascontiguousarray(blue_difference),
        float(weights[1]),
        np.ascontiguousarray(red_difference),
        float(weights[2]),
        float(offset.mean()),
        dtype=cv2.CV_32F,
    )
    skip_x, skip_y = window.x - (left << fmt.chroma_shift_x), window.y - (top << fmt.chroma_shift_y)
    upsampled = upsample_to_luma(chroma, fmt, frame.color, (skip_y + window.height, skip_x + window.width))
    luma = frame.planes[0][window.rows, window.columns].astype(np.float32)
    return cv2.scaleAdd(luma, float(weights[0]), np.ascontiguousarray(upsampled[skip_y:, skip_x:]))


def upright_to_coded(planes: FloatPlane, rotation_degrees: Rotation) -> FloatPlane:
    """Rotate [..., h, w] from upright to the frame's coded orientation."""
    return np.ascontiguousarray(np.rot90(planes, k=rotation_degrees // 90, axes=(-2, -1)))


def refine_alpha(
    frame: Frame,
    *,
    regions: list[Region],
    gain: npt.NDArray[np.float32],
    offset: npt.NDArray[np.float32],
    rotation_degrees: Rotation = 0,
) -> Plane:
    """Compute alpha for the full picture from coefficients at the network's size.

    Runs on the frame's device: NumPy planes on the CPU; CuPy planes (NV12 or P010) in one CUDA kernel, on the current
    CuPy stream.

    Args:
        frame: The picture.
        regions: Area of each eye; outside them alpha is 0.
        gain: float32 [N, h, w], also float16 on the GPU: upright, one for each region, on the frame's device.
        offset: Likewise.
        rotation_degrees: Clockwise rotation that made the picture upright for the network.

    Returns:
        uint8 [H, W], 0..255, for 8-bit frames; uint16 [H, W], 0..65535, for deeper ones.

    Raises:
        ValueError: A frame on the GPU is not semi-planar, or the coefficients do not match it.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(frame.planes[0]):
        return refine_on_gpu(frame, regions, Coefficients(gain[:, None], offset[:, None], rotation_degrees))
    alpha = np.zeros((frame.height, frame.width), alpha_dtype(frame))
    peak = np.float32(alpha_peak(alpha))
    darkest, brightest = grey_bounds(frame.color, frame.format)
    for index, region in enumerate(regions):
        slope = upright_to_coded(gain[index] * peak, rotation_degrees)
        bias = upright_to_coded(offset[index] * peak, rotation_degrees)
        # If neither bound reaches half a code, alpha rounds to 0 whatever the picture shows.
        visible = np.maximum(slope * darkest, slope * brightest) + bias >= 0.5
        if is_whole_blocks(region, frame):
            eye = alpha[region.rows, region.columns]
            own = Region(0, 0, region.width, region.height)
            _refine_eye(cut(frame, region), eye, own, slope, bias, visible)
        else:
            _refine_eye(frame, alpha, region, slope, bias, visible)
    return alpha


def _refine_eye(
    frame: Frame,
    alpha: Plane,
    region: Region,
    slope: FloatPlane,
    bias: FloatPlane,
    visible: npt.NDArray[np.bool_],
) -> None:
    """Write ``slope * grey + bias`` into the visible parts of a region."""
    rows = np.flatnonzero(visible.any(axis=1))
    if rows.size == 0:
        return
    height = len(slope)
    # Interpolation spreads a sample's value to its neighbours, so add one on each side.
    top = region.y + max(int((rows[0] - 1) * region.height / height), 0)
    bottom = region.y + min(math.ceil((rows[-1] + 2) * region.height / height), region.height)
    for first in range(top, bottom, _BAND_ROWS):
        last = min(first + _BAND_ROWS, bottom)
        centres = np.arange(first - region.y, last - region.y) + 0.5
        positions = (centres * (height / region.height) - 0.5).astype(np.float32)
        read = slice(max(int(positions[0]), 0), int(positions[-1]) + 2)
        positions -= np.float32(read.start)  # relative to the rows that are read: reading all would copy them
        for small, full in _visible_columns(np.any(visible[read], axis=0), region):
            size = (full.stop - full.start, last - first)
            # Interpolate rows while they are still narrow, then widen them.
            steep, shift = (
                cv2.resize(lerp(planes[read, small], positions, axis=0), size, interpolation=cv2.INTER_LINEAR)
                for planes in (slope, bias)
            )
            cv2.multiply(steep, grey_plane(frame, Region(full.start, first, *size)), steep)
            # An integer destination rounds and saturates, which clamps to 0..1.
            depth = cv2.CV_8U if alpha.dtype == np.uint8 else cv2.CV_16U
            alpha[first:last, full] = cv2.add(steep, shift, dtype=depth)


def _visible_columns(visible: Any, region: Region) -> Iterator[tuple[slice, slice]]:
    """The columns around visible samples of a band, from left to right: slices of small samples, and of the frame's.

    ``visible`` is bool [w].

    Columns are cut where a small and a full sample begin together, so that widening a cut equals cutting the widened
    plane.
    """
    columns = np.flatnonzero(visible)
    if columns.size == 0:
        return
    common = math.gcd(len(visible), region.width)
    small_step, full_step = len(visible) // common, region.width // common
    # Again one more on each side.
    first_units = np.maximum((columns - 1) // small_step, 0)
    last_units = np.minimum(-(-(columns + 2) // small_step), common)
    apart = np.flatnonzero(first_units[1:] - last_units[:-1] > 0)
    for begin, end in zip((0, *(apart + 1)), (*apart, -1), strict=True):
        first, last = int(first_units[begin]), int(last_units[end])
        yield (
            slice(first * small_step, last * small_step),
            slice(region.x + first * full_step, region.x + last * full_step),
        )
