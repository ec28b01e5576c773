"""RGB pictures as video and back, on the CPU: as ``kernels.rgb`` makes them within a code or two, and much faster."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Plane, YuvFormat
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb

__all__ = ["RGB_VIDEO_COLOR", "planes_of", "rgb_of"]

RGB_VIDEO_COLOR = ColorSpec(
    matrix="bt709", full_range=False, chroma_location="center", primaries=1, transfer=1, matrix_code=1
)
"""Colour of RGB pictures in video: BT.709, limited range, each chroma sample the mean of its four pixels."""

_FORMAT = PIXEL_FORMATS["yuv420p"]


def _to_video() -> npt.NDArray[np.float32]:
    """Rows of ``yuv = matrix @ (r, g, b, 1)`` for codes 0..255."""
    matrix, offset = yuv_from_rgb(RGB_VIDEO_COLOR, _FORMAT)
    return np.concatenate((matrix / 255, offset[:, None]), axis=1).astype(np.float32)


_TO_VIDEO = _to_video()


def planes_of(rgb: npt.NDArray[np.uint8]) -> tuple[Plane, Plane, Plane]:
    """Planes of a picture as ``yuv420p`` in ``RGB_VIDEO_COLOR``.

    Args:
        rgb: uint8 [H, W, 3].
    """
    yuv = cv2.transform(rgb, _TO_VIDEO)
    height, width = rgb.shape[:2]
    luma = np.ascontiguousarray(yuv[..., 0])
    if height % 2 or width % 2:
        yuv = cv2.copyMakeBorder(yuv, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    half = cv2.resize(yuv, (yuv.shape[1] // 2, yuv.shape[0] // 2), interpolation=cv2.INTER_AREA)
    return luma, np.ascontiguousarray(half[..., 1]), np.ascontiguousarray(half[..., 2])


def rgb_of(frame: Frame) -> npt.NDArray[np.uint8]:
    """The picture of a frame; chroma is assumed between its pixels, which is off by half a pixel at most.

    Args:
        frame: In the host's memory, with three planes.

    Returns:
        uint8 [H, W, 3].
    """
    luma, *chroma = frame.planes
    height, width = luma.shape
    full = [
        cv2.resize(
            plane,
            (plane.shape[1] << frame.format.chroma_shift_x, plane.shape[0] << frame.format.chroma_shift_y),
        )[:height, :width]
        for plane in chroma
    ]
    rgb = cv2.transform(cv2.merge([luma, *full]), _from_video(frame.color, frame.format))
    if rgb.dtype != np.uint8:
        rgb = np.minimum(rgb, 255).astype(np.uint8)
    return np.asarray(rgb)


@lru_cache(maxsize=16)
def _from_video(color: ColorSpec, fmt: YuvFormat) -> npt.NDArray[np.float32]:
    """Rows of ``rgb = matrix @ (y, u, v, 1)`` for codes 0..255."""
    matrix, offset = rgb_from_yuv(color, fmt)
    return (np.concatenate((matrix, offset[:, None]), axis=1) * 255).astype(np.float32)
