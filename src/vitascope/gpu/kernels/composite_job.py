"""What ``composite.cu`` needs to know of a picture, its eyes and their coefficients, as one struct passed by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from vitascope.frames import ColorSpec, Frame, Rotation, YuvFormat
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.eyes import chroma_region, is_whole_blocks
from vitascope.gpu.kernels.guided import grey_bounds
from vitascope.gpu.kernels.region import Region

__all__ = [
    "JOB",
    "MAX_EYES",
    "Coefficients",
    "color_parameters",
    "describe_cells",
    "describe_eyes",
    "set_behind",
]

MAX_EYES = 2

_PICTURE = np.dtype([("luma", "u8"), ("chroma", "u8"), ("luma_pitch", "i8"), ("chroma_pitch", "i8")])
_RESULT = np.dtype([*((name, _PICTURE[name]) for name in _PICTURE.names or ()), ("apart", "i8")])
_FIELD = np.dtype(
    [("alpha", "u8"), ("residual", "u8"), ("row", "i4"), ("column", "i4"), ("plane", "i4")], align=True
)
_EYE = np.dtype(
    [
        *((side, "i4") for side in ("left", "top", "right", "bottom")),
        *((f"chroma_{side}", "i4") for side in ("left", "top", "right", "bottom")),
        ("columns", "i4"),
        ("rows", "i4"),
        ("x_step", "f4"),
        ("y_step", "f4"),
        ("y_span", "f4"),
        ("gain", _FIELD),
        ("offset", _FIELD),
    ],
    align=True,
)
_GREY = np.dtype(
    [(name, "f4") for name in ("luma", "blue", "red", "offset", "darkest", "brightest")], align=True
)
_AFFINE = np.dtype([("matrix", "f4", 9), ("offset", "f4", 3)], align=True)
_BEHIND = np.dtype([("less", "f4"), ("code", "f4")], align=True)
_PAIR_BEHIND = np.dtype([("less", "u4"), ("code", "u4")], align=True)

JOB = np.dtype(
    [
        ("frame", _PICTURE),
        ("behind", _PICTURE),
        ("alpha", "u8"),
        ("result", _RESULT),
        ("eye", _EYE, MAX_EYES),
        ("grey", _GREY),
        ("rgb_from_yuv", _AFFINE),
        ("yuv_from_rgb", _AFFINE),
        ("color", _BEHIND, 3),
        ("pair_color", _PAIR_BEHIND, 3),
        ("code", "f4", 3),
        ("opacity", "f4"),
        ("alpha_pitch", "i4"),
        ("width", "i4"),
        ("height", "i4"),
        ("rows", "i4"),
        ("float_bits", "u4"),
        ("half_bits", "u4"),
    ],
    align=True,
)
"""``Job`` of composite.cu, field by field."""

_INTEGER = 2.0**23  # INTEGER of composite.cu


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """Guided-filter coefficients of every eye, upright, as ``render`` takes them."""

    gain: Any
    """CuPy float16 or float32 [E, C, h, w], any strides; the last plane is alpha's."""
    offset: Any
    rotation_degrees: Rotation = 0


@lru_cache(maxsize=64)
def color_parameters(color: ColorSpec, fmt: YuvFormat) -> Any:
    """A job of which only the colour conversions are filled in; copy it before writing to it."""
    job = np.zeros(1, JOB)
    matrix, offset = rgb_from_yuv(color, fmt)
    back_matrix, back_offset = yuv_from_rgb(color, fmt)
    darkest, brightest = grey_bounds(color, fmt)
    job["grey"][0] = (*matrix.mean(axis=0), offset.mean(), darkest, brightest)
    job["float_bits"], job["half_bits"] = 0x47000000 if fmt.bit_depth == 8 else 0x4B000000, 0x64646464
    job["rgb_from_yuv"][0] = (matrix.ravel(), offset)
    job["yuv_from_rgb"][0] = (back_matrix.ravel(), back_offset)
    return job


def set_behind(job: Any, codes: Sequence[int], fmt: YuvFormat) -> None:
    """Fill in the colour behind: Y, U and V as code values in the format's container words."""
    peak, lift = (255.0, 32768.0) if fmt.bit_depth == 8 else (65535.0, 0.0)
    step = float(1 << fmt.sample_shift)
    for channel, code in enumerate(codes):
        job["color"][0, channel] = (-(lift + code) / (peak * step), code / step + _INTEGER)
        job["code"][0, channel] = code / step
        if fmt.bit_depth == 8:
            halves = np.array([-2048.0 - 2.0 * code, 1024.0 + code], np.float16).view(np.uint16)
            job["pair_color"][0, channel] = tuple(int(half) * 0x10001 for half in halves)


def describe_eyes(job: Any, frame: Frame, regions: Sequence[Region]) -> None:
    """Fill in where the eyes lie, and which chroma each may read: its own unless the seam cuts a chroma block."""
    apart = all(is_whole_blocks(region, frame) for region in regions)
    for slot, region in enumerate(regions):
        chroma = chroma_region(region if apart else Region(0, 0, frame.width, frame.height), frame.format)
        eye = job["eye"][0, slot]
        eye["left"], eye["top"] = region.x, region.y
        eye["right"], eye["bottom"] = region.x + region.width, region.y + region.height
        eye["chroma_left"], eye["chroma_top"] = chroma.x, chroma.y
        eye["chroma_right"], eye["chroma_bottom"] = chroma.x + chroma.width - 1, chroma.y + chroma.height - 1


def describe_cells(
    job: Any, regions: Sequence[Region], gain: Any, offset: Any, rotation_degrees: Rotation
) -> tuple[float, float]:
    """Fill in the coefficients, CuPy [E, C, h, w] of which the last plane is alpha's.

    Returns:
        Cells a sample at most, down and across: what a tile of the kernel must hold of them.
    """
    steps = (0.0, 0.0)
    for slot, region in enumerate(regions):
        eye = job["eye"][0, slot]
        for name, planes in (("gain", gain), ("offset", offset)):
            eye[name], rows, columns = _field(planes[slot], rotation_degrees)
        x_step, y_step = columns / region.width, rows / region.height
        eye["columns"], eye["rows"] = columns, rows
        eye["x_step"], eye["y_step"], eye["y_span"] = x_step, y_step, 1.0 / y_step
        steps = (max(steps[0], y_step), max(steps[1], x_step))
    return steps


def _field(planes: Any, rotation_degrees: Rotation) -> tuple[tuple[int, int, int, int, int], int, int]:
    """Planes [C, h, w], upright, as the kernel walks them in the orientation that the frame is coded in."""
    count, height, width = planes.shape
    plane, down, across = (stride // planes.itemsize for stride in planes.strides)
    last_down, last_across = (height - 1) * down, (width - 1) * across
    # np.rot90 turns counter-clockwise: element (i, j) of the turned plane is (j, w - 1 - i) of the upright one.
    start, row, column = {
        0: (0, down, across),
        90: (last_across, -across, down),
        180: (last_down + last_across, -down, -across),
        270: (last_down, across, -down),
    }[rotation_degrees]
    first = planes.data.ptr + start * planes.itemsize
    rows, columns = (width, height) if rotation_degrees in (90, 270) else (height, width)
    return (first + (count - 1) * plane * planes.itemsize, first, row, column, plane), rows, columns
