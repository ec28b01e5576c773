"""Views of a VR frame as a headset shows them: flat pictures in several directions, with the matte's edge."""

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
"""Side of a view in pixels."""
_FOV_DEGREES = 90.0
_EYE_SIDE = 720
"""Pixels per 180 degrees in the picture of an eye that views are sampled from: twice the resolution of a view."""
_EDGE, _BESIDE = (255, 0, 200), 24
_DRAWN_SHIFT = 2


def has_rectified_views(vr: VrDescription) -> bool:
    """True if the field of view is too wide to show people well in one flat picture of an eye."""
    return isinstance(vr.trusted_lens, Equirectangular | Fisheye)


def view_count(vr: VrDescription) -> int:
    """Number of views per eye, for a video that ``has_rectified_views``."""
    return len(_directions(_known(vr.lenses[0])))


def rectified_views(frame: Frame, alpha: Plane, vr: VrDescription) -> Rgb8:
    """A row of views for each eye: ahead, left, right, up, down, and behind for a 360-degree eye.

    The matte's edge is drawn where alpha is 0.5.

    Args:
        frame: The frame as stored, not rotated.
        alpha: uint8 or uint16 [H, W] of the frame, full scale 255 or 65535, in the host's memory.
        vr: Layout and projection of the video.

    Returns:
        uint8 RGB [eyes * VIEW_SIDE, view_count * VIEW_SIDE, 3]; dark outside an eye's field of view.
    """
    regions = eye_regions(frame.width, frame.height, vr.layout)
    size = _eye_size(_known(vr.lenses[0]))
    shown: Any = preprocess(frame, regions=regions, size=size, layout="NHWC")
    eyes = shown.get() if is_on_gpu(shown) else shown
    peak = np.float32(np.iinfo(alpha.dtype).max)
    rows = []
    for eye, region, lens in zip(eyes, regions, vr.lenses, strict=True):
        matte: Any = cv2.resize(alpha[region.rows, region.columns], size[::-1], interpolation=cv2.INTER_AREA)
        matte = matte.astype(np.float32) / peak
        rows.append(np.concatenate([_view(eye, matte, maps) for maps in _maps(_known(lens))], axis=1))
    return np.concatenate(rows, axis=0)


def _view(eye: Any, matte: Any, maps: tuple[Any, Any]) -> Rgb8:
    picture: Rgb8 = np.rint(remap(eye, *maps).clip(0, 1) * 255).astype(np.uint8)
    seen = maps[0] > OUTSIDE / 2
    picture[~seen] = _BESIDE
    # Upscaled four times, so that the line does not follow the samples.
    fine = cv2.resize(remap(matte, *maps) * seen, None, fx=4, fy=4, interpolation=cv2.INTER_CUBIC)
    outlines, _ = cv2.findContours((fine >= 0.5).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    cv2.polylines(picture, outlines, True, _EDGE, 1, cv2.LINE_AA, _DRAWN_SHIFT)
    picture[-1], picture[:, -1] = _BESIDE, _BESIDE
    return picture


@lru_cache(maxsize=4)
def _maps(lens: Equirectangular | Fisheye) -> list[tuple[Any, Any]]:
    return [
        reprojection_map(
            lens,
            Rectilinear(_FOV_DEGREES, _FOV_DEGREES),
            source_size=_eye_size(lens),
            target_size=(VIEW_SIDE, VIEW_SIDE),
            rotation=turned(yaw_degrees=yaw, pitch_degrees=pitch),
        )
        for yaw, pitch in _directions(lens)
    ]


def _known(lens: Lens) -> Equirectangular | Fisheye:
    assert isinstance(lens, Equirectangular | Fisheye)  # implied by has_rectified_views
    return lens


def _eye_size(lens: Equirectangular | Fisheye) -> tuple[int, int]:
    """(height, width) of the picture of an eye that views are sampled from; twice as wide for a 360-degree eye."""
    return _EYE_SIDE, 2 * _EYE_SIDE if _looks_behind(lens) else _EYE_SIDE


def _directions(lens: Equirectangular | Fisheye) -> list[tuple[float, float]]:
    """Directions of the views, (yaw, pitch) in degrees, as far aside and up as a view is filled."""
    if isinstance(lens, Equirectangular):
        fovs = lens.horizontal_fov_degrees, lens.vertical_fov_degrees
    else:
        fovs = lens.fov_degrees, lens.fov_degrees
    aside, up = (min(max((fov - _FOV_DEGREES) / 2, 0.0), 90.0) for fov in fovs)
    behind = [(180.0, 0.0)] if _looks_behind(lens) else []
    return [(0.0, 0.0), (-aside, 0.0), (aside, 0.0), (0.0, up), (0.0, -up), *behind]


def _looks_behind(lens: Equirectangular | Fisheye) -> bool:
    """True if a view to the back shows anything: three views of 90 degrees ahead and aside cover 270."""
    return isinstance(lens, Equirectangular) and lens.horizontal_fov_degrees > 3 * _FOV_DEGREES
