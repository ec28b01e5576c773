"""YUV code values to RGB and back, in closed form, and the codes of mattes, greys and colours in each format.

Source: ITU-R BT.601, BT.709, BT.2020; ITU-T H.273 section 8.3.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Plane, YuvFormat

Rgb = tuple[int, int, int]
"""Gamma-encoded red, green and blue, 0..255."""

Affine = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

LUMA_WEIGHTS: dict[str, tuple[float, float]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
}
"""(Kr, Kb) of each matrix; Kg = 1 - Kr - Kb."""


@cache
def yuv_from_rgb(color: ColorSpec, fmt: YuvFormat) -> Affine:
    """Matrix ``M`` float64 [3, 3] and offset ``t`` float64 [3] with ``yuv_codes = M @ rgb + t``.

    RGB is non-linear (gamma-encoded) R'G'B' in 0..1. Codes are unrounded, in the format's container words (including
    P010's six low zero bits). Both arrays are read-only, because they are shared.
    """
    kr, kb = LUMA_WEIGHTS[color.matrix]
    luma = np.array([kr, 1 - kr - kb, kb])
    blue_difference = (np.array([0.0, 0.0, 1.0]) - luma) / (2 * (1 - kb))
    red_difference = (np.array([1.0, 0.0, 0.0]) - luma) / (2 * (1 - kr))
    matrix = np.stack([luma, blue_difference, red_difference])
    if color.full_range:
        peak = float(2**fmt.bit_depth - 1)
        scale = np.array([peak, peak, peak])
        offset = np.array([0.0, 2.0 ** (fmt.bit_depth - 1), 2.0 ** (fmt.bit_depth - 1)])
    else:
        step = 2.0 ** (fmt.bit_depth - 8)
        scale = np.array([219.0, 224.0, 224.0]) * step
        offset = np.array([16.0, 128.0, 128.0]) * step
    word = float(1 << fmt.sample_shift)
    return _frozen(matrix * scale[:, None] * word), _frozen(offset * word)


@cache
def rgb_from_yuv(color: ColorSpec, fmt: YuvFormat) -> Affine:
    """Matrix ``M`` float64 [3, 3] and offset ``t`` float64 [3] with ``rgb = M @ codes + t``; not clipped to 0..1."""
    forward, offset = yuv_from_rgb(color, fmt)
    inverse: npt.NDArray[np.float64] = np.linalg.inv(forward).astype(np.float64)
    return _frozen(inverse), _frozen(-inverse @ offset)


def _frozen(array: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    array.flags.writeable = False
    return array


def alpha_dtype(frame: Frame) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
    """Dtype of a frame's alpha: uint8 for 8-bit video, uint16 (full scale 65535) for deeper video."""
    return np.dtype(np.uint8) if frame.format.bit_depth == 8 else np.dtype(np.uint16)


def alpha_peak(alpha: Plane) -> int:
    """Code of full opacity: 255 or 65535."""
    return 255 if alpha.dtype == np.uint8 else 65535


@cache
def grey_bounds(color: ColorSpec, fmt: YuvFormat) -> tuple[np.float32, np.float32]:
    """Lowest and highest grey that a format's codes can represent."""
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
    """BT.709 throughout, so that no player tone-maps an HDR video's matte; chroma is sited like the frame's."""
    return ColorSpec("bt709", full_range, color.chroma_location, primaries=1, transfer=1, matrix_code=1)


@cache
def matte_levels(color: ColorSpec, *, full_range: bool, bit_depth: int) -> tuple[int, int, int]:
    """Codes of black, white and neutral chroma in a video's matte."""
    fmt = PIXEL_FORMATS["yuv420p" if bit_depth == 8 else "yuv420p10le"]
    matrix, offset = yuv_from_rgb(matte_color(color, full_range=full_range), fmt)
    black, neutral = (round(code) for code in offset[:2])
    return black, round(float(matrix[0].sum())) + black, neutral


@cache
def color_codes(rgb: Rgb, color: ColorSpec, fmt: YuvFormat) -> Codes:
    """Convert an 8-bit RGB colour to Y, U and V, in the format's container words."""
    matrix, offset = yuv_from_rgb(color, fmt)
    step = 1 << fmt.sample_shift
    exact = (matrix @ (np.array(rgb) / 255.0) + offset) / step
    return tuple(int(code) * step for code in np.clip(np.rint(exact), 0, 2**fmt.bit_depth - 1))
