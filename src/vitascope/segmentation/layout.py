"""What a video is to VR: as the settings say, as the file says, or as its pictures show."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vitascope.frames import Projection, StereoLayout, VideoInfo
from vitascope.media.reading.keyframes import keyframe_lumas
from vitascope.vr.detection import VrDescription, describe_vr
from vitascope.vr.stereo import NO_SIGN, DetectedLayout, compare_halves, detect_layout, possible_layout

__all__ = ["describe_video_vr", "layout_of"]

_PICTURES, _LONGEST_SIDE = 5, 512


def layout_of(info: VideoInfo, wanted: str) -> DetectedLayout:
    """The stereo layout of a video.

    Where neither the file nor its name says anything and the shape is that of two eyes, some of its pictures are
    looked at.

    Args:
        info: The video.
        wanted: The setting ``video.stereo``: a layout, or ``auto``.
    """
    found = detect_layout(info, None if wanted == "auto" else StereoLayout(wanted))
    if found.reason != NO_SIGN or info.container == "images":
        return found
    possible = possible_layout(info.width, info.height)
    if possible is None:
        return found
    pictures = _pictures(info)
    return (compare_halves(pictures, possible) if pictures else None) or found


def describe_video_vr(
    info: VideoInfo,
    *,
    stereo: str = "auto",
    projection: Projection | None = None,
    fov_degrees: float | None = None,
) -> VrDescription:
    """What a video is to a VR player, some of its pictures looked at.

    Args:
        info: The video.
        stereo: The setting ``video.stereo``: a layout, or ``auto``.
        projection: What the user says of it; None to find out.
        fov_degrees: Likewise.

    Raises:
        UsageError: A field of view that the projection cannot have.
    """
    return describe_vr(
        info,
        () if info.container == "images" else _pictures(info),
        layout=None if stereo == "auto" else StereoLayout(stereo),
        projection=projection,
        fov_degrees=fov_degrees,
    )


def _pictures(info: VideoInfo) -> tuple[npt.NDArray[np.uint8], ...]:
    return _keyframes(info.path, info.path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _keyframes(video: Path, _written_ns: int) -> tuple[npt.NDArray[np.uint8], ...]:
    return tuple(keyframe_lumas(video, _PICTURES, longest_side=_LONGEST_SIDE))
