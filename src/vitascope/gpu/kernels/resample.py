"""Resamples a window of a plane, with chroma samples at their true positions."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import ColorSpec, Plane, YuvFormat
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.memory.host_arrays import scratch_array

Window = tuple[float, float, float, float]
"""(left, top, right, bottom) in a plane's own sample-edge coordinates."""
FloatPlane = npt.NDArray[Any]
"""float32; OpenCV's stubs do not declare the dtype."""

# Shifts below this many output samples are ignored: they move an 8-bit edge by less than a tenth of a code.
_NEGLIGIBLE_SHIFT = 1 / 2048


def chroma_window(region: Region, fmt: YuvFormat, color: ColorSpec) -> Window:
    """The region of the chroma plane that a luma region covers.

    A chroma sample cosited with an even luma column has its centre a quarter chroma sample left of the middle of its
    block (ITU-T H.264 annex E, chroma_sample_loc_type), so the window moves right by that amount.
    """
    shift_x = 0.25 if fmt.chroma_shift_x and color.chroma_location in ("left", "topleft") else 0.0
    shift_y = 0.25 if fmt.chroma_shift_y and color.chroma_location == "topleft" else 0.0
    step_x, step_y = 1 << fmt.chroma_shift_x, 1 << fmt.chroma_shift_y
    return (
        region.x / step_x + shift_x,
        region.y / step_y + shift_y,
        (region.x + region.width) / step_x + shift_x,
        (region.y + region.height) / step_y + shift_y,
    )


def resample_window(
    plane: Plane, window: Window, size: tuple[int, int], *, within: Region | None = None
) -> FloatPlane:
    """Read a window of a plane at another size: area average when shrinking, bilinear when growing.

    Args:
        plane: uint8, uint16 or float32 [H, W] or [H, W, 2].
        window: The window to read.
        size: (height, width) of the result.
        within: The samples that may be read; the whole plane if omitted. Outside, their border repeats, so that one
            eye never sees the other.

    Returns:
        float32 [height, width] or [height, width, 2], in the plane's units.
    """
    left, top, right, bottom = window
    within = within or Region(0, 0, plane.shape[1], plane.shape[0])
    x0, x1 = clamped_span(left, right, within.x, within.x + within.width)
    y0, y1 = clamped_span(top, bottom, within.y, within.y + within.height)
    height, width = size
    patch = plane[y0:y1, x0:x1]
    if patch.shape[:2] == size:
        patch = patch.astype(np.float32)  # the plane itself must not be returned
    elif patch.dtype != np.float32:
        samples = scratch_array("resampled window", patch.shape)
        np.copyto(samples, patch)
        patch = _resize(samples, size)
    else:
        patch = _resize(patch, size)
    # The integer patch covers a little more than the window; read the window from the resized patch.
    scale_x = (right - left) / (x1 - x0)
    scale_y = (bottom - top) / (y1 - y0)
    shift_x = ((left - x0) + 0.5 * (right - left) / width) * width / (x1 - x0) - 0.5
    shift_y = ((top - y0) + 0.5 * (bottom - top) / height) * height / (y1 - y0) - 0.5
    drift_x = max(abs(shift_x), abs(shift_x + (scale_x - 1) * (width - 1)))
    drift_y = max(abs(shift_y), abs(shift_y + (scale_y - 1) * (height - 1)))
    if max(drift_x, drift_y) < _NEGLIGIBLE_SHIFT:
        return patch
    if scale_x == scale_y == 1 and max(abs(shift_x), abs(shift_y)) < 1:
        return _moved(patch, shift_x, shift_y)
    columns = (np.arange(width, dtype=np.float32) * scale_x + shift_x).astype(np.float32)
    rows = (np.arange(height, dtype=np.float32) * scale_y + shift_y).astype(np.float32)
    return read_bilinear(patch, rows, columns)


def _moved(plane: FloatPlane, shift_x: float, shift_y: float) -> FloatPlane:
    """Read samples bilinearly at an offset below one sample, in a tenth of the time of ``read_bilinear``."""
    for shift, shape in ((shift_x, (1, 2)), (shift_y, (2, 1))):
        if shift:
            weights = np.array([1 - shift, shift] if shift > 0 else [-shift, 1 + shift], np.float32)
            at_own = (0, 0) if shift > 0 else (shape[1] - 1, shape[0] - 1)
            plane = cv2.filter2D(
                plane, -1, weights.reshape(shape), anchor=at_own, borderType=cv2.BORDER_REPLICATE
            )
    return plane


def upsample_to_luma(
    chroma: FloatPlane, fmt: YuvFormat, color: ColorSpec, size: tuple[int, int]
) -> FloatPlane:
    """Read a chroma-sized float32 plane bilinearly at every luma sample: float32 [height, width].

    Args:
        chroma: One value per chroma site.
        fmt: Sets the chroma subsampling.
        color: Sets the position of the sites.
        size: (height, width) of the luma plane.
    """
    height, width = size
    if fmt.chroma_shift_y:
        chroma = _double_rows(chroma, cosited=color.chroma_location == "topleft")
    if fmt.chroma_shift_x:
        chroma = _double_columns(chroma, cosited=color.chroma_location in ("left", "topleft"))
    return chroma[:height, :width]


def downsample_to_chroma(luma_sized: Plane, fmt: YuvFormat, color: ColorSpec) -> Plane:
    """Average a luma-sized plane at the chroma sites, to get the weight of each site's chroma.

    Along a subsampled axis, a cosited site averages its neighbours as [1 2 1]/4, a centred site its two samples as [1
    1]/2. Rounded once to the plane's own dtype (uint8, uint16), or kept as float32.
    """
    if not fmt.chroma_shift_x and not fmt.chroma_shift_y:
        return luma_sized
    cosited_x = color.chroma_location in ("left", "topleft")
    cosited_y = color.chroma_location == "topleft"
    row_kernel, anchor_x = _site_kernel(subsampled=bool(fmt.chroma_shift_x), cosited=cosited_x)
    column_kernel, anchor_y = _site_kernel(subsampled=bool(fmt.chroma_shift_y), cosited=cosited_y)
    smoothed = cv2.sepFilter2D(
        luma_sized,
        -1,
        row_kernel,
        column_kernel,
        anchor=(anchor_x, anchor_y),
        borderType=cv2.BORDER_REPLICATE,
    )
    # Copied so that later passes read dense rows.
    return np.ascontiguousarray(smoothed[:: 1 << fmt.chroma_shift_y, :: 1 << fmt.chroma_shift_x])


def _site_kernel(*, subsampled: bool, cosited: bool) -> tuple[FloatPlane, int]:
    if not subsampled:
        return np.ones(1, np.float32), 0
    if cosited:
        return np.array([0.25, 0.5, 0.25], np.float32), 1
    return np.array([0.5, 0.5], np.float32), 0


def _double_rows(plane: FloatPlane, *, cosited: bool) -> FloatPlane:
    height, width = plane.shape
    if not cosited:
        return cv2.resize(plane, (width, 2 * height), interpolation=cv2.INTER_LINEAR)
    doubled = np.empty((2 * height, width), np.float32)
    doubled[0::2] = plane
    doubled[1:-1:2] = (plane[:-1] + plane[1:]) * 0.5
    doubled[-1] = plane[-1]
    return doubled


def _double_columns(plane: FloatPlane, *, cosited: bool) -> FloatPlane:
    height, width = plane.shape
    if not cosited:
        return cv2.resize(plane, (2 * width, height), interpolation=cv2.INTER_LINEAR)
    doubled = np.empty((height, 2 * width), np.float32)
    doubled[:, 0::2] = plane
    doubled[:, 1:-1:2] = (plane[:, :-1] + plane[:, 1:]) * 0.5
    doubled[:, -1] = plane[:, -1]
    return doubled


def clamped_span(start: float, stop: float, first: int, end: int) -> tuple[int, int]:
    """First sample and end of the part of ``first..end`` that a window touches; at least one sample."""
    begin = min(max(math.floor(start), first), end - 1)
    return begin, max(min(math.ceil(stop), end), begin + 1)


def _resize(patch: FloatPlane, size: tuple[int, int]) -> FloatPlane:
    height, width = size
    # OpenCV's area filter only averages if both axes shrink; shrink first, then enlarge.
    smaller = (min(patch.shape[1], width), min(patch.shape[0], height))
    if smaller != (patch.shape[1], patch.shape[0]):
        patch = cv2.resize(patch, smaller, interpolation=cv2.INTER_AREA)
    if smaller != (width, height):
        patch = cv2.resize(patch, (width, height), interpolation=cv2.INTER_LINEAR)
    return patch


def read_bilinear(plane: FloatPlane, rows: FloatPlane, columns: FloatPlane) -> FloatPlane:
    """Read bilinearly at pairs of fractional row and column indices; borders repeat."""
    return lerp(lerp(plane, rows, axis=0), columns, axis=1)


def lerp(plane: FloatPlane, positions: FloatPlane, *, axis: int) -> FloatPlane:
    """Read linearly at fractional indices along one axis; borders repeat."""
    last = plane.shape[axis] - 1
    clipped = np.clip(positions, 0, last)
    below = np.floor(clipped).astype(np.intp)
    weight = (clipped - below).astype(np.float32)
    shape = [1] * plane.ndim
    shape[axis] = -1
    weight = weight.reshape(shape)
    lower: FloatPlane = np.take(plane, below, axis=axis)
    if not weight.any():
        return lower
    upper: FloatPlane = np.take(plane, np.minimum(below + 1, last), axis=axis)
    upper -= lower
    upper *= weight
    upper += lower
    return upper
