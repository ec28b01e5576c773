"""Teeth for portraits that show none: drawn once, as seen from the front, to be laid into the open mouth."""

from __future__ import annotations

from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.face import FloatArray

__all__ = ["HALF_WIDTH_CM", "HEIGHT_CM", "PIXELS_A_CM", "draw_teeth"]

PIXELS_A_CM = 64
HALF_WIDTH_CM = 3.0
HEIGHT_CM = 2.0
"""Height of the picture; the biting edge is 1.3 cm from the gum's side of it."""
_EDGE_CM = 1.3

_WIDTHS_CM = {
    # Crown widths from the middle outward, foreshortened by the arch's curve (after Wheeler's Dental Anatomy, tables of
    # averages: 8.5, 6.5, 7.5, 7, 7, 10 mm above; 5, 5.5, 7, 7, 7, 11 mm below).
    "upper": (0.85, 0.64, 0.68, 0.52, 0.42, 0.4),
    "lower": (0.50, 0.54, 0.60, 0.52, 0.44, 0.4),
}
_HEIGHTS_CM = {"upper": (1.0, 0.86, 0.95, 0.82, 0.74, 0.68), "lower": (0.84, 0.86, 0.92, 0.82, 0.74, 0.68)}


def draw_teeth(row: Literal["upper", "lower"]) -> tuple[FloatArray, FloatArray]:
    """One row of teeth, upright: the upper row's edges point down, the lower row's up.

    Returns:
        Light, float32 [h, w, 3] (0..1 of the teeth's own colour; gums are reddish and darker), and cover, float32
        [h, w] (0..1). ``PIXELS_A_CM`` pixels a centimetre, the middle at half the width.
    """
    fine = 2
    scale = PIXELS_A_CM * fine
    width, height = round(2 * HALF_WIDTH_CM * scale), round(HEIGHT_CM * scale)
    crowns = np.zeros((height, width), np.uint8)
    edge = _EDGE_CM * scale
    shade = np.ones((height, width), np.float32)
    columns = np.arange(width, dtype=np.float32)
    for side in (-1, 1):
        x = 0.0
        for tooth_width, tooth_height in zip(_WIDTHS_CM[row], _HEIGHTS_CM[row], strict=True):
            inner, outer = x + 0.008, x + tooth_width - 0.008
            left, right = sorted((width / 2 + side * inner * scale, width / 2 + side * outer * scale))
            # The arch rises a little to the sides, and lateral incisors are shorter.
            lift = (0.05 * (x / 1.5) ** 2 + (0.06 if 0.6 < x < 1.2 and row == "upper" else 0.0)) * scale
            _rounded(
                crowns, left, edge - lift - tooth_height * scale, right, edge - lift, radius=0.17 * scale
            )
            middle, half = (left + right) / 2, (right - left) / 2
            inside = np.abs(columns - middle) <= half + 1
            bulge = 1 - 0.16 * np.clip(np.abs(columns - middle) / half, 0, 1) ** 3
            shade[:, inside] *= bulge[inside]
            x += tooth_width
    cover_crowns = cv2.GaussianBlur(crowns, (0, 0), 0.012 * scale + 0.5).astype(np.float32) / 255
    rows = np.arange(height, dtype=np.float32)[:, None] / scale  # cm from the gum's side
    # Necks are yellower and darker, biting edges a little translucent.
    from_edge = _EDGE_CM - rows
    shade *= 0.80 + 0.2 * np.clip(1.15 - from_edge, 0, 1) - 0.10 * np.clip(1 - from_edge / 0.12, 0, 1)
    across = np.abs(columns[None, :] / scale - HALF_WIDTH_CM)
    shade *= np.clip(1.06 - 0.055 * across - 0.075 * across**2, 0.2, 1)
    gum = np.clip((from_edge - (0.8 - 0.05 * across)) / 0.15, 0, 1)
    enamel = np.stack((shade, shade * 0.985, shade * 0.95), -1)
    flesh = np.array([0.62, 0.36, 0.35], np.float32) * np.clip(1 - 0.09 * across**2, 0.2, 1)[..., None]
    light = enamel * cover_crowns[..., None] + flesh * (1 - cover_crowns[..., None])
    cover = np.maximum(cover_crowns, gum * np.clip((2.65 - across) / 0.3, 0, 1))
    if row == "lower":
        light, cover = light[::-1], cover[::-1]
    half_size = (width // fine, height // fine)
    small = [
        cv2.resize(np.ascontiguousarray(part, np.float32), half_size, interpolation=cv2.INTER_AREA)
        for part in (light, cover)
    ]
    return np.asarray(small[0], np.float32), np.asarray(small[1], np.float32)


def _rounded(
    mask: npt.NDArray[np.uint8], left: float, top: float, right: float, bottom: float, *, radius: float
) -> None:
    """Fill a rectangle whose lower corners are round, in place."""
    radius = min(radius, (right - left) / 2)
    arc = np.linspace(0, np.pi / 2, 8)
    points = [(left, top), (right, top)]
    points += [(right - radius + radius * np.cos(a), bottom - radius + radius * np.sin(a)) for a in arc]
    points += [(left + radius - radius * np.sin(a), bottom - radius + radius * np.cos(a)) for a in arc]
    cv2.fillPoly(mask, [np.rint(np.array(points) * 16).astype(np.int32)], 255, lineType=cv2.LINE_AA, shift=4)
