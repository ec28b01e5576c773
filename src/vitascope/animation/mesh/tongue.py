"""Draws the tongue of a synthesised mouth: a rounded body that fades into the throat, lit like the portrait."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.animation.mesh.layers import median_at
from vitascope.animation.mesh.rig import PortraitRig

PIXELS_A_UNIT = 64
"""Pixels per unit of the texture."""
HALF_WIDTH, LENGTH, TIP = 1.5, 4.0, 3.0
"""Half the width and the length of the picture, and the distance of the tongue's tip from the throat's end, in
units."""
_EDGE, _BACK_EDGE, _TIP_EDGE = 0.35, 0.75, 0.18
"""Softness of the sides in front and at the back, where they fade into the dark, and of the tip."""
_SIDE_FALLS, _TIP_FALLS, _SIDE_LIGHT = 0.34, 0.22, 0.22
"""Light that the sides and the tip lose as they turn away; and that the side facing the portrait's light gains."""
_FURROW, _FURROW_WIDTH = 0.06, 0.16
_SHOULDER, _SHOULDER_AT, _SHOULDER_WIDTH = 0.05, 0.42, 0.24
_PAPILLAE = 0.02
_AT_TIP, _AT_BACK = 1.02, 0.55
"""Light along the middle, at the tip and where the throat begins: a shouting man has 0.95 and 0.65 of his skin's."""
_BACK = (0.6, 2.6)
"""Distances from the tip, in units, at which light begins to fall, and has fallen to the throat's."""
_THROAT = (2.1, 3.0)
"""Distances from the tip at which the tongue begins to fade into the dark, and has faded."""
_MOST_UNEVEN = 0.35


def draw_tongue(light_from_right: float) -> tuple[FloatArray, FloatArray]:
    """Draw a tongue, its tip at the bottom.

    Args:
        light_from_right: -1..1: excess of light from the picture's right over its left.

    Returns:
        Light, float32 [h, w], as a share of the tongue's own colour (about 1 where brightest), and cover, float32 [h,
        w], 0..1. The scale is ``PIXELS_A_UNIT`` pixels a unit, and the middle is at half the width.
    """
    width, height = round(2 * HALF_WIDTH * PIXELS_A_UNIT), round(LENGTH * PIXELS_A_UNIT)
    across = ((np.arange(width, dtype=np.float32) + 0.5) / PIXELS_A_UNIT - HALF_WIDTH)[None, :]
    from_tip = np.asarray(
        TIP - ((np.arange(height, dtype=np.float32) + 0.5) / PIXELS_A_UNIT)[:, None], np.float32
    )
    # The tip is half an ellipse; behind it, both sides continue, slightly converging.
    ahead = np.clip(1 - from_tip, 0, None)
    half = 1 - 0.06 * np.clip(from_tip - 1, 0, 2)
    out = np.sqrt((across / half) ** 2 + ahead**2)
    softness = _EDGE + (_BACK_EDGE - _EDGE) * _ramp(from_tip, 0.8, 2.2)
    softness += (_TIP_EDGE - softness) * np.clip(ahead, 0, 1)
    cover = np.clip((1 - out) / softness + 0.5, 0, 1)
    cover = cover * cover * (3 - 2 * cover)
    cover *= 1 - _ramp(from_tip, *_THROAT)
    along = _AT_TIP + (_AT_BACK - _AT_TIP) * _ramp(from_tip, *_BACK)
    side = across / half
    form = 1 - _SIDE_FALLS * np.abs(side) ** 2.5 - _TIP_FALLS * np.clip(ahead, 0, 1) ** 3
    form += _SIDE_LIGHT * light_from_right * np.clip(side, -1, 1)
    in_front = 1 - _ramp(from_tip, 0.6, 2.4)
    form -= _FURROW * np.exp(-((across / _FURROW_WIDTH) ** 2)) * _ramp(from_tip, 0.25, 0.9)
    form += _SHOULDER * np.exp(-(((np.abs(side) - _SHOULDER_AT) / _SHOULDER_WIDTH) ** 2)) * in_front
    light = along * form * (1 + _PAPILLAE * _papillae(height, width) * in_front)
    return np.asarray(np.clip(light, 0.1, 1.25), np.float32), np.asarray(cover, np.float32)


def tongue_texture(colour: FloatArray, light_from_right: float, *, smaller: float) -> FloatArray:
    """Make a tongue's texture, float32 [h, w, 4]: colours (0..255) times cover, and cover.

    Args:
        colour: float32 [3], 0..255: its colour.
        light_from_right: See ``draw_tongue``.
        smaller: Pixels of the texture per pixel of the picture: finer detail would flicker.
    """
    light, cover = draw_tongue(light_from_right)
    texture = np.concatenate((light[..., None] * colour * cover[..., None], cover[..., None]), axis=-1)
    return np.asarray(cv2.GaussianBlur(texture, (0, 0), max(0.4 * smaller, 0.3)), np.float32)


def light_from_right(rgb: RgbPicture, rig: PortraitRig) -> float:
    """Excess of light on the picture's right cheek of a face over its left one, -1..1."""
    landmarks = rig.face.landmarks[:, :2]
    left, right = (
        float(median_at(rgb, landmarks[list(points)], rig.pose.scale * 0.4).sum())
        for points in ((50, 205, 36), (280, 425, 266))
    )
    share = (right - left) / max(right + left, 1.0)
    return float(np.clip(2 * share, -_MOST_UNEVEN, _MOST_UNEVEN) / _MOST_UNEVEN)


@lru_cache(maxsize=1)
def _papillae(height: int, width: int) -> FloatArray:
    """Roughness of a tongue's surface, the same in all portraits: float32 [height, width], deviation 1."""
    noise = np.random.default_rng(0).standard_normal((height, width)).astype(np.float32)
    grains = 1.5 * cv2.GaussianBlur(noise, (0, 0), 1.5) + 3 * cv2.GaussianBlur(noise, (0, 0), 3.0)
    return np.asarray(grains / grains.std(), np.float32)


def _ramp(values: FloatArray, low: float, high: float) -> FloatArray:
    share = np.clip((values - low) / (high - low), 0, 1)
    return np.asarray(share * share * (3 - 2 * share), np.float32)
