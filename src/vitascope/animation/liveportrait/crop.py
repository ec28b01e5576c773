"""Crops pictures to the squares that LivePortrait's networks see, and blends painted squares back."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import EYES, FACE_OVAL, LEFT_BROW, MOUTH_CORNERS, RIGHT_BROW
from vitascope.animation.face import FloatArray, RgbPicture, TrackedFace

_PORTRAIT_SCALE, _PORTRAIT_SHIFT = 2.3, -0.125
_DRIVER_SCALE, _DRIVER_SHIFT = 2.2, -0.1
_RAMP_PIXELS = 16
# The networks were trained on crops around jaw and brows. With the forehead, they would be 13 to 21 % larger.
_FOREHEAD: Final = frozenset({10, 338, 297, 332, 284, 251, 109, 67, 103, 54, 21})
_OUTLINE: Final = np.array(
    [*(point for point in FACE_OVAL if point not in _FOREHEAD), *RIGHT_BROW, *LEFT_BROW]
)
_UPPER_LIP, _LOWER_LIP = 13, 14  # middle of their inner edges


def portrait_crop(face: TrackedFace, side: int) -> FloatArray:
    """Compute the affine map from the portrait to its crop, rotated so that the eyes are above the lips.

    Args:
        face: As tracked in the portrait.
        side: Side of the crop, pixels.

    Returns:
        float32 [2, 3], for ``cv2.warpAffine``: pixel centres are at whole numbers.
    """
    points = face.landmarks[:, :2].astype(np.float64)
    eyes = np.mean([points[eye.iris[0]] for eye in EYES], axis=0)
    down = points[list(MOUTH_CORNERS)].mean(axis=0) - eyes
    length = np.linalg.norm(down)
    down = down / length if length > 1 else np.array([0.0, 1.0])
    return _square(points[_OUTLINE], down, scale=_PORTRAIT_SCALE, shift=_PORTRAIT_SHIFT, side=side)


def driver_crop(face: TrackedFace, side: int) -> FloatArray:
    """Compute the affine map from a driver's picture to its upright crop: roll is part of the motion.

    Computed once, from the neutral picture: a crop that follows the face would hide its motion.
    """
    points = face.landmarks[_OUTLINE, :2].astype(np.float64)
    return _square(points, np.array([0.0, 1.0]), scale=_DRIVER_SCALE, shift=_DRIVER_SHIFT, side=side)


def _square(
    points: npt.NDArray[np.float64], down: npt.NDArray[np.float64], *, scale: float, shift: float, side: int
) -> FloatArray:
    axes = np.array([[down[1], -down[0]], down])  # rows: right and down
    middle = points.mean(axis=0)
    along = (points - middle) @ axes.T
    low, high = along.min(axis=0), along.max(axis=0)
    size = float((high - low).max()) * scale
    centre = middle + (low + high) / 2 @ axes + down * shift * size
    factor = side / max(size, 1e-6)
    linear = axes * factor
    # The edges of picture and crop are half a pixel outside the centres of the outer pixels.
    offset = side / 2 - 0.5 - linear @ (centre - 0.5)
    return np.column_stack([linear, offset]).astype(np.float32)


def crop_picture(rgb: RgbPicture, to_crop: FloatArray, side: int) -> RgbPicture:
    """Cut out a square, averaged where it shrinks, with border pixels repeated outside.

    Args:
        rgb: uint8 [H, W, 3].
        to_crop: From ``portrait_crop`` or ``driver_crop``, for this side.
        side: Pixels.
    """
    factor = float(np.hypot(*to_crop[0, :2]))
    # Sample finely enough that no pixel is skipped, then average.
    finer = int(min(max(np.ceil(1 / max(factor, 1e-6)), 1), 8))
    fine = to_crop * finer
    fine[:, 2] += (finer - 1) / 2
    large = cv2.warpAffine(
        rgb, fine, (side * finer, side * finer), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    made = large if finer == 1 else cv2.resize(large, (side, side), interpolation=cv2.INTER_AREA)
    return np.asarray(made, np.uint8)


def paste_mask(side: int) -> FloatArray:
    """Make the weights of a painted square, float32 [side, side]: 1 inside, 0 at its edges."""
    edge = _RAMP_PIXELS * side / 512
    distance = np.minimum(np.arange(side), np.arange(side)[::-1])
    ramp = np.clip(distance / edge, 0, 1)
    return np.minimum(ramp[:, None], ramp[None]).astype(np.float32)


def lip_openness(face: TrackedFace) -> float:
    """Measure the gap between the lips, as a share of the mouth's width."""
    points = face.landmarks[:, :2]
    gap = np.linalg.norm(points[_UPPER_LIP] - points[_LOWER_LIP])
    width = np.linalg.norm(points[MOUTH_CORNERS[0]] - points[MOUTH_CORNERS[1]])
    return float(gap / max(float(width), 1e-6))
