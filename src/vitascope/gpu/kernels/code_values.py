"""Which code values mattes, greys and colours have in a frame's format."""

from __future__ import annotations

from functools import cache

import numpy as np

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Plane, YuvFormat
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.composite_paint import Rgb

__all__ = ["Codes", "alpha_dtype", "alpha_peak", "color_codes", "grey_bounds", "matte_color", "matte_levels"]


def alpha_dtype(frame: Frame) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
    """The dtype of a frame's alpha: uint8 for 8-bit video, uint16 (full scale 65535) for deeper video."""
    return np.dtype(np.uint8) if frame.format.bit_depth == 8 else np.dtype(np.uint16)


def alpha_peak(alpha: Plane) -> int:
    """The code of full opacity: 255 or 65535."""
    return 255 if alpha.dtype == np.uint8 else 65535


@cache
def grey_bounds(color: ColorSpec, fmt: YuvFormat) -> tuple[np.float32, np.float32]:
    """The least and greatest grey that any codes of a format can mean."""
    matrix, offset = rgb_from_yuv(color, fmt)
    weights = matrix.mean(axis=0) * ((2**fmt.bit_depth - 1) << fmt.sample_shift)
    middle = float(offset.mean())
    return (
        np.float32(middle + np.minimum(weights, 0).sum()),
        np.float32(middle + np.maximum(weights, 0).sum()),
    )


Codes = tuple[int, ...]


@cache
def matte_color(color: ColorSpec, *, full_range: bool) -> ColorSpec:
    """BT.709 throughout, so that no player tone-maps the matte of an HDR video; chroma sits where the frame's does."""
    return ColorSpec("bt709", full_range, color.chroma_location, primaries=1, transfer=1, matrix_code=1)


@cache
def matte_levels(color: ColorSpec, *, full_range: bool, bit_depth: int) -> tuple[int, int, int]:
    """Codes of black, of white and of grey's chroma in the matte of a video of some colour."""
    fmt = PIXEL_FORMATS["yuv420p" if bit_depth == 8 else "yuv420p10le"]
    matrix, offset = yuv_from_rgb(matte_color(color, full_range=full_range), fmt)
    black, neutral = (round(code) for code in offset[:2])
    return black, round(float(matrix[0].sum())) + black, neutral


@cache
def color_codes(rgb: Rgb, color: ColorSpec, fmt: YuvFormat) -> Codes:
    """Y, U and V of an 8-bit RGB colour, in the format's container words."""
    matrix, offset = yuv_from_rgb(color, fmt)
    step = 1 << fmt.sample_shift
    exact = (matrix @ (np.array(rgb) / 255.0) + offset) / step
    return tuple(int(code) * step for code in np.clip(np.rint(exact), 0, 2**fmt.bit_depth - 1))
