"""Draws a page of stills, to judge a matte at a glance."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.config import OutputKind
from vitascope.errors import OutputError
from vitascope.frames import Frame, Plane, Rotation, VideoInfo
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.media.writing.output_target import write_png
from vitascope.segmentation.render.rectified_views import (
    VIEW_SIDE,
    has_rectified_views,
    rectified_views,
    view_count,
)
from vitascope.segmentation.render.renderer import Rendered
from vitascope.vr.detection import VrDescription

_MAX_STILLS = 12
_STILL_WIDTH, _STILL_HEIGHT = 320, 1280
"""Maximum width and height of a still, in pixels."""
_GAP = 6
_COLUMNS, _VR_COLUMNS = 3, 2

Rgb8 = npt.NDArray[np.uint8]


class ContactSheet:
    """Collects stills evenly over a video of unknown length, and draws source, matte and result of each.

    For VR video, ``rectified_views`` of each eye are drawn above these.

    Keeps every frame at first, then every 2nd, 4th and so on as the video goes on, so memory stays bounded.

    Args:
        path: The PNG to write.
        info: The video.
        vr: Layout and projection of the video.
        kind: Kind of the results: packed alpha has square pixels, whatever the source has.
    """

    def __init__(self, path: Path, info: VideoInfo, vr: VrDescription, *, kind: OutputKind) -> None:
        self._path, self._info = path, info
        is_packed = kind == "packed-alpha"
        self._result_info = replace(info, sample_aspect_ratio=Fraction(1)) if is_packed else info
        self._rotation: Rotation = info.rotation_degrees
        self._vr = vr if has_rectified_views(vr) and not info.rotation_degrees else None
        high, wide = info.in_square_pixels((info.height, info.width))
        aspect = wide / high if info.rotation_degrees in (90, 270) else high / wide
        width = _STILL_WIDTH if self._vr is None else view_count(self._vr) * VIEW_SIDE // 3
        width = max(min(width, round(_STILL_HEIGHT / aspect)), 1)
        self._size = min(max(round(width * aspect), 1), _STILL_HEIGHT), width
        self._stride = 1
        self._stills: list[tuple[int, Rgb8]] = []

    def wants(self, index: int) -> bool:
        """True if the next frame would be shown; its alpha and source are then needed."""
        return index % self._stride == 0

    def add(self, rendered: Rendered) -> None:
        """Add the next frame."""
        if self.wants(rendered.index):
            self.add_still(rendered.index, self.still(rendered))

    def add_still(self, index: int, still: Rgb8) -> None:
        """Add a still made by the method ``still``, here or in another process."""
        self._stills.append((index, still))
        if len(self._stills) > _MAX_STILLS:
            self._stride *= 2
            self._stills = [still for still in self._stills if still[0] % self._stride == 0]

    def save(self) -> None:
        """Write the page.

        Raises:
            OutputError: It cannot be written.
        """
        if not self._stills:
            raise OutputError(f"{self._path}: no frame to show")
        rows = []
        blank = np.full_like(self._stills[0][1], 24)
        columns = _COLUMNS if self._vr is None else _VR_COLUMNS
        for start in range(0, len(self._stills), columns):
            row = [still for _, still in self._stills[start : start + columns]]
            row += [blank] * (min(columns, len(self._stills)) - len(row))
            rows.append(np.concatenate(row, axis=1))
        page = np.concatenate(rows, axis=0)
        write_png(self._path, page, what="the contact sheet")

    def still(self, rendered: Rendered) -> Rgb8:
        """Make a still: a frame's source with its time, matte and result, small; uint8 RGB."""
        assert rendered.alpha is not None  # guaranteed by wants()
        assert rendered.source is not None
        height, width = self._size
        upright = np.ascontiguousarray(np.rot90(rendered.alpha, k=-(self._rotation // 90)))
        alpha: Plane = cv2.resize(upright, (width, height), interpolation=cv2.INTER_AREA)
        grey: Rgb8 = (alpha if alpha.dtype == np.uint8 else alpha >> 8).astype(np.uint8)
        pictures = [
            _with_time(self._small(rendered.source, self._info), rendered.source.pts_seconds),
            np.repeat(grey[..., None], 3, axis=-1),
            self._small(rendered.pictures[0], self._result_info),
        ]
        if self._vr is not None:
            views = rectified_views(rendered.source, rendered.alpha, self._vr)
            below = np.concatenate(pictures, axis=1)
            rest = views.shape[1] - below.shape[1]
            pictures = [views, np.pad(below, ((0, 0), (0, rest), (0, 0)), constant_values=24)]
        framed = [np.pad(picture, ((0, _GAP), (0, _GAP), (0, 0)), constant_values=24) for picture in pictures]
        return np.concatenate(framed, axis=0)

    def _small(self, frame: Frame, info: VideoInfo) -> Rgb8:
        """Shrink a frame to a still; packed alpha of another shape is fitted and padded."""
        whole = [Region(0, 0, frame.width, frame.height)]
        high, wide = info.in_square_pixels((frame.height, frame.width))
        upright = (wide, high) if self._rotation in (90, 270) else (high, wide)
        scale = min(side / own for side, own in zip(self._size, upright, strict=True))
        height, width = (max(round(own * scale), 1) for own in upright)
        below, beside = self._size[0] - height, self._size[1] - width
        if max(below, beside) <= 1:  # same shape, apart from rounding
            below, beside = 0, 0
        size = self._size[0] - below, self._size[1] - beside
        rgb: Any = preprocess(
            frame, regions=whole, size=size, layout="NHWC", rotation_degrees=self._rotation
        )[0]
        host = rgb.get() if is_on_gpu(rgb) else rgb  # pictures for the GPU's encoder are still on the GPU
        small: Rgb8 = np.rint(host * 255).astype(np.uint8)
        return np.pad(small, ((0, below), (0, beside), (0, 0)), constant_values=24)


def _with_time(picture: Rgb8, pts_seconds: float) -> Rgb8:
    """Draw the time in a picture's corner: white with a dark outline, legible on any background."""
    minutes, seconds = divmod(max(pts_seconds, 0.0), 60)
    text, place = f"{int(minutes)}:{seconds:04.1f}", (6, picture.shape[0] - 8)
    drawn = np.ascontiguousarray(picture)
    for color, thickness in (((16, 16, 16), 4), ((255, 255, 255), 1)):
        cv2.putText(drawn, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.5, color, thickness, cv2.LINE_AA)
    return drawn
