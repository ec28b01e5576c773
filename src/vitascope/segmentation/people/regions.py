"""Regions that are never kept, as layers: garbage mattes."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.config.hints import Eye, Region
from vitascope.frames import Frame

FloatMap = npt.NDArray[np.float32]

_SIDE, _FINE = 256, 4
"""Samples of a map along each side of an eye's picture; edges are drawn so much finer, and averaged."""


def polygon_map(corners: Sequence[tuple[float, float]]) -> FloatMap:
    """How much of each sample a polygon covers.

    Args:
        corners: x and y as shares of the picture.

    Returns:
        float32 [256, 256], 0..1.
    """
    fine = np.zeros((_SIDE * _FINE, _SIDE * _FINE), np.float32)
    points = np.rint(np.array(corners) * fine.shape[0]).astype(np.int32)
    cv2.fillPoly(fine, [points], 1.0)
    return np.asarray(cv2.resize(fine, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA), np.float32)


class RegionLayer:
    """Leaves out regions.

    Args:
        regions: Which, and when.
        origin_seconds: Time of the video's first picture on the clock of its frames.
        eyes: Which eye each half of a frame is, in order.
    """

    def __init__(
        self, regions: Sequence[Region], *, origin_seconds: float, eyes: tuple[Eye, Eye] = ("left", "right")
    ) -> None:
        self._eyes = eyes
        self._regions = [(region, polygon_map(region.polygon)) for region in regions]
        self._origin_seconds = origin_seconds

    def share_at(self, frame: Frame, _: int | None = None) -> FloatMap | None:
        """As ``Layer``."""
        seconds = frame.pts_seconds - self._origin_seconds
        acting = [
            (region.eye, drawn)
            for region, drawn in self._regions
            if region.from_ <= seconds < (float("inf") if region.to is None else region.to)
        ]
        if not acting:
            return None
        eyes = np.ones((2, _SIDE, _SIDE), np.float32)
        for eye, drawn in acting:
            for place, name in enumerate(self._eyes):
                if eye in (name, "both"):
                    eyes[place] *= 1 - drawn
        return eyes

    def added_at(self, _: Frame) -> FloatMap | None:
        """Nothing."""
        return None
