"""Locates irises by their darkness alone: reads glances without training data.

Places a disc, nearly as large as the iris, where an open eye is darkest. Lids hide the irises' vertical
motion, and lashes are taken for an iris that is lighter than they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from vitascope.animation.canonical_mesh import EYES
from vitascope.animation.face import FloatArray, RgbPicture

__all__ = ["darkest_sideways"]

_TIMES = 8
"""Factor by which eyes are enlarged: small ones are a dozen pixels wide."""
_OF_IRIS, _NEARLY = 0.8, 0.03
"""The disc's radius beside that of the iris; places whose darkness lacks that share of the range are as dark."""


def darkest_sideways(rgb: RgbPicture, landmarks: FloatArray, radii: Sequence[float]) -> float:
    """Measure how far the darkest discs are to the picture's right of the eyes' middles, the mean of both.

    Args:
        rgb: uint8 [H, W, 3].
        landmarks: float32 [468 or more, 2 or more], pixels.
        radii: Radii of the right and the left iris, pixels.

    Returns:
        In widths of the eye.
    """
    found = []
    for eye, radius in zip(EYES, radii, strict=True):
        outline = landmarks[list(eye.outline), :2]
        first, last = (
            np.floor(outline.min(axis=0) - 3).astype(int),
            np.ceil(outline.max(axis=0) + 3).astype(int),
        )
        cut = rgb[first[1] : last[1], first[0] : last[0]].mean(axis=-1).astype(np.float32)
        light = cv2.resize(cut, None, fx=_TIMES, fy=_TIMES, interpolation=cv2.INTER_CUBIC)
        side = 2 * max(round(_OF_IRIS * _TIMES * radius), 3) + 1
        disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side)).astype(np.float32)
        dark = cv2.filter2D(light, -1, disc / disc.sum(), borderType=cv2.BORDER_REPLICATE)
        within = np.zeros(light.shape, np.uint8)
        cv2.fillPoly(within, [np.rint((outline - first) * _TIMES).astype(np.int32)], 1)
        least = float(dark[within > 0].min())
        near = (within > 0) & (dark <= least + _NEARLY * (float(np.percentile(light, 90)) - least))
        place = np.argwhere(near).mean(axis=0)[::-1] / _TIMES + first
        right, left = sorted(
            (landmarks[eye.outer_corner, :2], landmarks[eye.inner_corner, :2]), key=lambda at: at[0]
        )
        along = left - right
        found.append(float((place - (right + left) / 2) @ along / (along @ along)))
    return float(np.mean(found))
