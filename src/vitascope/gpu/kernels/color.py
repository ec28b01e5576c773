"""YUV code values to RGB and back, in closed form (ITU-R BT.601, BT.709, BT.2020; ITU-T H.273 section 8.3)."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from vitascope.frames import ColorSpec, YuvFormat

__all__ = ["LUMA_WEIGHTS", "rgb_from_yuv", "yuv_from_rgb"]

Affine = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

LUMA_WEIGHTS: dict[str, tuple[float, float]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
}
"""(Kr, Kb) of each matrix; Kg is what is left to 1."""


@cache
def yuv_from_rgb(color: ColorSpec, fmt: YuvFormat) -> Affine:
    """Matrix ``M`` float64 [3, 3] and offset ``t`` float64 [3] with ``yuv_codes = M @ rgb + t``.

    RGB is non-linear (gamma-encoded) R'G'B' in 0..1; codes are unrounded, in the container word of the format (P010's
    six low zero bits included). Both arrays are read-only: they are shared.
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
