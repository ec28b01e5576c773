"""Measures how far the skin at the brows goes up and down, by optical flow instead of a tracker.

A tracker finds brows by their hair. On a painting that has none it sees hardly any of what was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import EYES, LEFT_BROW, RIGHT_BROW
from vitascope.animation.face import RgbPicture, TrackedFace

__all__ = ["BROWS_MOVE", "brows_by_flow"]

BROWS_MOVE = 0.01
"""A driver whose skin rises by less (standard deviation) does not move the brows: smiles and nods do 0.006."""
_UNIT_PX = 128
"""Pictures are scaled until the eyes' outer corners lie so far apart: paintings are fine-grained, and small faces have
too few pixels."""
_AROUND = 1.5
"""What is looked at goes so far beyond the middle between the eyes, in distances of their outer corners."""
_AT_A_BROW = 0.04
"""Radius of what counts as skin at a point of the brows, in those distances."""
_CORNERS = [index for eye in EYES for index in (eye.outer_corner, eye.inner_corner)]


def brows_by_flow(pictures: Sequence[RgbPicture], rest: int, face: TrackedFace) -> npt.NDArray[np.float64]:
    """Measure how far the skin at the brows is above its rest, relative to the corners of the eyes.

    Args:
        pictures: A video of one face.
        rest: Index of the picture in which it rests.
        face: Tracked in that picture.

    Returns:
        float64 [pictures], in distances of the outer corners of the eyes.
    """
    points = face.landmarks[:, :2].astype(np.float64)
    outer = points[[eye.outer_corner for eye in EYES]]
    unit = float(np.linalg.norm(outer[1] - outer[0]))
    scale, middle = _UNIT_PX / unit, outer.mean(axis=0)
    side = 2 * round(_AROUND * _UNIT_PX)
    onto = np.array([[scale, 0, side / 2 - scale * middle[0]], [0, scale, side / 2 - scale * middle[1]]])
    there = points @ onto[:, :2].T + onto[:, 2]
    skin = np.zeros((side, side), np.uint8)
    for point in there[list(RIGHT_BROW + LEFT_BROW)]:
        cv2.circle(skin, np.rint(point).astype(int).tolist(), round(_AT_A_BROW * _UNIT_PX), 1, -1)
    corners = there[_CORNERS].astype(np.float32)[:, None]
    across = (outer[1] - outer[0]) / unit
    up = np.array([across[1], -across[0]])
    risen = []
    for flow in _flows(pictures, rest, onto, side):
        of_corners = cv2.remap(flow, corners, None, cv2.INTER_LINEAR)[:, 0].mean(axis=0)
        risen.append(float((flow[skin > 0].mean(axis=0) - of_corners) @ up) / _UNIT_PX)
    return np.array(risen)


def _flows(
    pictures: Sequence[RgbPicture], rest: int, onto: npt.NDArray[np.float64], side: int
) -> Iterator[npt.NDArray[np.float32]]:
    """Motion from a video's picture at rest to each: float32 [side, side, 2], pixels of ``onto``'s crop."""
    flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)

    def cut(rgb: RgbPicture) -> npt.NDArray[np.uint8]:
        grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        return cv2.warpAffine(
            grey, onto, (side, side), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
        )

    first = cut(pictures[rest])
    for rgb in pictures:
        yield flow.calc(first, cut(rgb), None)
