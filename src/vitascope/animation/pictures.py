"""The RGB pictures that trackers take, from video frames."""

from __future__ import annotations

import cv2
import numpy as np

from vitascope.animation.face import RgbPicture
from vitascope.frames import Frame, Rotation
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region


def driver_picture(frame: Frame, *, rotation_degrees: Rotation = 0, max_side: int = 768) -> RgbPicture:
    """A driver's frame, upright, shrunk to what a tracker can use.

    Args:
        frame: In the CPU's memory.
        rotation_degrees: Clockwise turn that makes it upright.
        max_side: Longest side of the result, pixels; smaller frames keep their size.

    Returns:
        uint8 [h, w, 3].
    """
    width, height = frame.width, frame.height
    scale = min(1.0, max_side / max(width, height))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    upright = (size[1], size[0]) if rotation_degrees in (90, 270) else size
    picture = preprocess(
        frame,
        regions=[Region(0, 0, width, height)],
        size=upright,
        layout="NHWC",
        rotation_degrees=rotation_degrees,
    )[0]
    return np.asarray(cv2.convertScaleAbs(picture, alpha=255), np.uint8)
