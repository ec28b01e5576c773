"""Layout and projection of a video: from the settings, the file, its name, or else its pictures."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vitascope.config import VideoSettings
from vitascope.frames import Plane, Projection, StereoLayout, VideoInfo
from vitascope.media.reading.reader import keyframe_lumas
from vitascope.vr.detection import NO_SIGN, VrDescription, describe_vr, possible_layout

_PICTURES, _LONGEST_SIDE = 5, 512


def vr_of(
    info: VideoInfo, wanted: VideoSettings, *, luma: Plane | None = None, always_looks: bool = False
) -> VrDescription:
    """What a video is to VR.

    Args:
        info: The video.
        wanted: ``stereo``, ``projection`` and ``fov_degrees`` say what is known of it.
        luma: A picture to look at, uint8 [H, W], where there is no file to look into: a camera's.
        always_looks: Look at pictures also where the file or the user says enough: they may contradict it.

    Raises:
        UsageError: A field of view that the projection cannot have.
    """

    def describe(pictures: tuple[Plane, ...]) -> VrDescription:
        return describe_vr(
            info,
            pictures,
            layout=None if wanted.stereo == "auto" else wanted.stereo,
            projection=None if wanted.projection == "auto" else wanted.projection,
            fov_degrees=wanted.fov_degrees,
        )

    if luma is not None:
        return describe((luma,))
    said = describe(())
    if info.container == "images" or not (always_looks or _leaves_open(said, info)):
        return said
    try:
        return describe(_keyframes(info.path, info.path.stat().st_mtime_ns))
    except OSError:  # removed meanwhile
        return said


def _leaves_open(said: VrDescription, info: VideoInfo) -> bool:
    """True if pictures would show more: decoding some takes longer than opening a file."""
    if said.projection is Projection.FISHEYE:
        return True  # where its circle lies
    if said.layout_reason.how == NO_SIGN and possible_layout(info.width, info.height) is not None:
        return True
    is_guess = said.projection_reason.sureness == "a guess"
    return is_guess and (said.projection is not Projection.FLAT or said.layout is not StereoLayout.MONO)


@lru_cache(maxsize=64)
def _keyframes(video: Path, _written_ns: int) -> tuple[npt.NDArray[np.uint8], ...]:
    return tuple(keyframe_lumas(video, _PICTURES, longest_side=_LONGEST_SIDE))
