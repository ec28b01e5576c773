"""What a viewer in a headset sees of a frame: each eye straightened in five directions, with the matte's edge."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.remap import remap
from vitascope.vr.detection import VrDescription
from vitascope.vr.projection import (
    OUTSIDE,
    Equirectangular,
    Fisheye,
    Lens,
    Rectilinear,
    reprojection_map,
    turned,
)
from vitascope.vr.stereo import eye_regions

Rgb8 = npt.NDArray[np.uint8]

VIEW_SIDE = 240
"""Samples of a side of a view."""
_FOV_DEGREES = 90.0
_EYE_SIDE = 720
"""Samples of a side of the picture of an eye that views are read from: what they show at 180 degrees, doubled."""
_EDGE, _BESIDE = (255, 0, 200), 24
_DRAWN_SHIFT = 2


def has_rectified_views(vr: VrDescription) -> bool:
    """True for a video whose eyes are known to see so much that a flat picture of them is no picture of people."""
    return isinstance(vr.trusted_lens, Equirectangular | Fisheye)


def rectified_views(frame: Frame, alpha: Plane, vr: VrDescription) -> Rgb8:
    """A row of five views for each eye: ahead, left, right, up, down; the matte's edge is drawn where alpha is a half.

    Args:
        frame: Not turned.
        alpha: uint8 or uint16 [H, W] of the frame, full scale 255 or 65535, in the host's memory.
        vr: What the video is to VR.

    Returns:
        uint8 RGB [eyes * VIEW_SIDE, 5 * VIEW_SIDE, 3]; dark where an eye sees nothing.
    """
    regions = eye_regions(frame.width, frame.height, vr.layout)
    size = (_EYE_SIDE, _EYE_SIDE)
    shown: Any = preprocess(frame, regions=regions, size=size, layout="NHWC")
    eyes = shown.get() if is_on_gpu(shown) else shown
    peak = np.float32(np.iinfo(alpha.dtype).max)
    rows = []
    for eye, region, lens in zip(eyes, regions, vr.lenses, strict=True):
        matte: Any = cv2.resize(alpha[region.rows, region.columns], size, interpolation=cv2.INTER_AREA)
        matte = matte.astype(np.float32) / peak
        rows.append(np.concatenate([_view(eye, matte, maps) for maps in _maps(_known(lens))], axis=1))
    return np.concatenate(rows, axis=0)


def _view(eye: Any, matte: Any, maps: tuple[Any, Any]) -> Rgb8:
    picture: Rgb8 = np.rint(remap(eye, *maps).clip(0, 1) * 255).astype(np.uint8)
    seen = maps[0] > OUTSIDE / 2
    picture[~seen] = _BESIDE
    # Four times as fine, so that the line does not follow samples.
    fine = cv2.resize(remap(matte, *maps) * seen, None, fx=4, fy=4, interpolation=cv2.INTER_CUBIC)
    outlines, _ = cv2.findContours((fine >= 0.5).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    cv2.polylines(picture, outlines, True, _EDGE, 1, cv2.LINE_AA, _DRAWN_SHIFT)
    picture[-1], picture[:, -1] = _BESIDE, _BESIDE
    return picture


@lru_cache(maxsize=4)
def _maps(lens: Equirectangular | Fisheye) -> list[tuple[Any, Any]]:
    aside, up = _turns(lens)
    return [
        reprojection_map(
            lens,
            Rectilinear(_FOV_DEGREES, _FOV_DEGREES),
            source_size=(_EYE_SIDE, _EYE_SIDE),
            target_size=(VIEW_SIDE, VIEW_SIDE),
            rotation=turned(yaw_degrees=yaw, pitch_degrees=pitch),
        )
        for yaw, pitch in ((0.0, 0.0), (-aside, 0.0), (aside, 0.0), (0.0, up), (0.0, -up))
    ]


def _known(lens: Lens) -> Equirectangular | Fisheye:
    assert isinstance(lens, Equirectangular | Fisheye)  # has_rectified_views
    return lens


def _turns(lens: Equirectangular | Fisheye) -> tuple[float, float]:
    """How far to look aside and up, in degrees: as far as a view is filled."""
    if isinstance(lens, Equirectangular):
        fovs = lens.horizontal_fov_degrees, lens.vertical_fov_degrees
    else:
        fovs = lens.fov_degrees, lens.fov_degrees
    aside, up = (min(max((fov - _FOV_DEGREES) / 2, 0.0), 90.0) for fov in fovs)
    return aside, up
