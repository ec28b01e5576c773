"""Unpacks packed alpha: the mattes at full size, and people on a colour."""

from __future__ import annotations

from typing import Literal

import cv2
import numpy as np

from vitascope.frames import Frame, StereoLayout, VideoInfo
from vitascope.gpu.kernels.composite import render_alpha
from vitascope.gpu.kernels.composite_launch import MatteOnly, OnColor
from vitascope.vr.packing import unpack_discs
from vitascope.vr.stereo import eye_regions

UnpackedKind = Literal["mask", "key"]


class Unpacker:
    """Turns packed frames into plain fisheye frames, on the CPU. Threads may share it.

    Args:
        info: Description of the packed frames, checked by ``refuse_other_than_packed``.
        paint: How to draw: the matte, or people on a colour.
    """

    def __init__(self, info: VideoInfo, paint: MatteOnly | OnColor) -> None:
        self._regions = eye_regions(info.width, info.height, StereoLayout.SIDE_BY_SIDE)
        self._paint = paint

    def unpack(self, frame: Frame) -> Frame:
        """Unpack one frame, at the same size; it is empty outside the circles, where the mattes are stored."""
        side = frame.height
        alpha = np.hstack([cv2.resize(tile, (side, side)) for tile in unpack_discs(frame)])
        # Keep the frame's depth, in which the mattes were stored.
        dtype, peak = (np.uint8, 255) if frame.format.bit_depth == 8 else (np.uint16, 65535)
        codes = np.rint(alpha * peak).astype(dtype)
        return render_alpha(frame, codes, regions=self._regions, paint=self._paint)
