"""Between video frames and the RGB pictures that trackers and animators take."""

from __future__ import annotations

import cv2
import numpy as np

from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Plane, Rotation
from vitascope.gpu.kernels.color import yuv_from_rgb
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region

__all__ = ["OUTPUT_COLOR", "driver_picture", "planes_of"]

OUTPUT_COLOR = ColorSpec(
    matrix="bt709", full_range=False, chroma_location="center", primaries=1, transfer=1, matrix_code=1
)
"""Colour of animated pictures in files: BT.709, limited range, each chroma sample the mean of its four pixels."""

_FORMAT = PIXEL_FORMATS["yuv420p"]


def _output_matrix() -> FloatArray:
    """Rows of ``yuv = matrix @ (r, g, b, 1)`` for codes 0..255."""
    matrix, offset = yuv_from_rgb(OUTPUT_COLOR, _FORMAT)
    return np.concatenate((matrix / 255, offset[:, None]), axis=1).astype(np.float32)


_OUTPUT_MATRIX = _output_matrix()


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


def planes_of(rgb: RgbPicture) -> tuple[Plane, Plane, Plane]:
    """Planes of a picture as ``yuv420p`` in ``OUTPUT_COLOR``: as ``kernels.rgb`` makes them within a code, and faster.

    Args:
        rgb: uint8 [H, W, 3].
    """
    yuv = cv2.transform(rgb, _OUTPUT_MATRIX)
    height, width = rgb.shape[:2]
    luma = np.ascontiguousarray(yuv[..., 0])
    if height % 2 or width % 2:
        yuv = cv2.copyMakeBorder(yuv, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    half = cv2.resize(yuv, (yuv.shape[1] // 2, yuv.shape[0] // 2), interpolation=cv2.INTER_AREA)
    return luma, np.ascontiguousarray(half[..., 1]), np.ascontiguousarray(half[..., 2])
