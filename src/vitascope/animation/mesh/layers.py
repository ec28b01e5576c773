"""Cuts openings into the skin, and lays pictures under them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.face import FloatArray, RgbPicture

Sample = TypeVar("Sample", bound=np.generic)
_SHIFT = 4
_SUBDIVISIONS = 4


@dataclass(frozen=True, slots=True)
class Patch:
    """A rectangle of a picture, in pixels."""

    left: int
    top: int
    width: int
    height: int

    def of(self, picture: npt.NDArray[Sample]) -> npt.NDArray[Sample]:
        """View this part of a picture."""
        return picture[self.top : self.top + self.height, self.left : self.left + self.width]

    def within(self, larger: Patch) -> Patch:
        """The same rectangle, relative to a larger one."""
        return Patch(self.left - larger.left, self.top - larger.top, self.width, self.height)

    @property
    def places(self) -> FloatArray:
        """float32 [height, width, 2]: (x, y) of each pixel in the whole picture."""
        made = np.empty((self.height, self.width, 2), np.float32)
        made[..., 0] = np.arange(self.left, self.left + self.width, dtype=np.float32)
        made[..., 1] = np.arange(self.top, self.top + self.height, dtype=np.float32)[:, None]
        return made


def patch_around(points: FloatArray, *, margin: float, size: tuple[int, int]) -> Patch | None:
    """Bounding box of points within a picture; None if it is outside.

    Args:
        points: float32 [N, 2], pixels.
        margin: Added on each side, in pixels.
        size: (height, width) of the picture.
    """
    # Plain numbers are faster: each picture needs six rectangles.
    (low_x, low_y), (high_x, high_y) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    left, top = max(math.floor(low_x - margin), 0), max(math.floor(low_y - margin), 0)
    right = min(math.ceil(high_x + margin) + 1, size[1])
    bottom = min(math.ceil(high_y + margin) + 1, size[0])
    return Patch(left, top, right - left, bottom - top) if right > left and bottom > top else None


def read_at(
    picture: npt.NDArray[Any],
    places: FloatArray,
    *,
    nearest: bool = False,
    mirrored: bool = False,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Read a picture at places.

    Args:
        picture: uint8 or float32, [H, W] or [H, W, C].
        places: float32 [h, w, 2]: (x, y), pixels.
        nearest: Take the nearest pixel instead of a mix of four.
        mirrored: Mirror the picture beyond its border; else the border is repeated.
        out: [h, w] or [h, w, C] of the picture's dtype, for the result; a new array when omitted.
    """
    how = cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
    # OpenCV takes None when x and y share one map, which its stubs lack.
    no_second: Any = None
    border = cv2.BORDER_REFLECT_101 if mirrored else cv2.BORDER_REPLICATE
    return cv2.remap(picture, places, no_second, how, dst=out, borderMode=border)


def median_at(rgb: RgbPicture, points: FloatArray, radius: float) -> FloatArray:
    """Median colour of squares around points, float32 [3]; grey if all are outside the picture."""
    found = []
    reach = max(1, round(radius))
    for x, y in np.rint(points).astype(int):
        area = rgb[max(y - reach, 0) : y + reach + 1, max(x - reach, 0) : x + reach + 1]
        if area.size:
            found.append(area.reshape(-1, 3))
    return (
        np.median(np.concatenate(found), axis=0).astype(np.float32) if found else np.full(3, 128, np.float32)
    )


def to_host(picture: Any) -> RgbPicture:
    """Convert a picture, on either device, to a C-contiguous NumPy array."""
    return np.ascontiguousarray(picture.get() if hasattr(picture, "get") else picture, np.uint8)


def smooth_outline(points: FloatArray) -> FloatArray:
    """A closed curve through points: a Catmull-Rom spline with four points for each given one.

    Args:
        points: float32 [N, 2], in order around the outline.
    """
    return np.asarray(_spline(len(points)) @ points, np.float32)


@lru_cache(maxsize=8)
def _spline(count: int) -> FloatArray:
    """Weights of the given points in each point of the curve, float32 [4 * count, count]."""
    t = np.arange(_SUBDIVISIONS)[:, None] / _SUBDIVISIONS
    weights = 0.5 * np.concatenate(
        (2 * t**2 - t**3 - t, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2), axis=1
    )
    matrix = np.zeros((count, _SUBDIVISIONS, count), np.float32)
    for point in range(count):
        # The point before, the point itself, and two after it.
        matrix[point][:, np.arange(point - 1, point + 3) % count] = weights
    return matrix.reshape(-1, count)


def opening_mask(outline: FloatArray, patch: Patch, *, feather: float) -> FloatArray:
    """Draw the mask of an outline's inside on a patch: float32 [height, width], 0..1, with a soft edge.

    Args:
        outline: float32 [N, 2], pixels of the whole picture.
        patch: Where to draw it.
        feather: Standard deviation of the edge's softness, pixels.
    """
    mask = np.zeros((patch.height, patch.width), np.uint8)
    corners = np.rint((outline - (patch.left, patch.top)) * (1 << _SHIFT)).astype(np.int32)
    cv2.fillPoly(mask, [corners], 255, lineType=cv2.LINE_AA, shift=_SHIFT)
    soft = cv2.GaussianBlur(mask, (0, 0), feather) if feather > 0.3 else mask
    return np.asarray(soft, np.float32) * np.float32(1 / 255)


def lay_under(picture: RgbPicture, patch: Patch, colours: FloatArray, mask: FloatArray) -> None:
    """Blend colours (float32 [h, w, 3], 0..255) into a picture by a mask (float32 [h, w], 0..1), in place."""
    area = patch.of(picture)
    area[...] = cv2.convertScaleAbs(area + (colours - area) * mask[..., None])
