"""Tells drivers who barely moved, for whom the last picture may be shown again."""

from __future__ import annotations

import cv2
import numpy as np

from vitascope.animation.face import RgbPicture
from vitascope.gpu.toolkit.temporal import change

__all__ = ["Stillness", "similarity"]

_NOTHING_IN_COMMON = 0.02
"""Mean difference of one tile of two thumbnails, in shares of the scale."""
_TILES = (8, 8)
_THUMBNAIL = (64, 64)


class Stillness:
    """Compares each picture of a driver with the last one that was animated. Used by one thread.

    Args:
        similarity: 0..1: from here on the driver barely moved.
    """

    def __init__(self, similarity: float) -> None:
        self._similarity = similarity
        self._animated: RgbPicture | None = None

    def barely_moved(self, rgb: RgbPicture, *, is_first: bool) -> bool:
        """True when the picture need not be animated.

        Args:
            rgb: The driver's picture, uint8 [H, W, 3].
            is_first: The first one after the camera was found, or found again, is always animated.
        """
        thumbnail = np.asarray(cv2.resize(rgb, _THUMBNAIL, interpolation=cv2.INTER_AREA), np.uint8)
        before = self._animated
        if before is not None and not is_first and similarity(before, thumbnail) >= self._similarity:
            return True
        self._animated = thumbnail  # of the last one that was animated: drift adds up
        return False


def similarity(before: RgbPicture, now: RgbPicture) -> float:
    """Compare two small pictures: 1 when nothing changed, 0 when any tile differs by 2 % of the scale.

    Two consecutive pictures of people who talk in front of a still camera: 0.73 and 0.78 in the median, 0.86
    and 0.90 in the stillest 5 % (two videos of 512x512). So 0.92 finds drivers who sit still, and nobody who speaks.

    Args:
        before: uint8 [64, 64, 3].
        now: The same.
    """
    planes = (np.moveaxis(picture, -1, 0) for picture in (before, now))
    return max(1 - change(*planes, tiles=_TILES) / _NOTHING_IN_COMMON, 0.0)
