"""How two eyes share a video's frames: as the setting says, as the file says, or as its pictures show."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from vitascope.config import VideoSettings
from vitascope.frames import StereoLayout, VideoInfo
from vitascope.media.reading.keyframes import keyframe_lumas
from vitascope.vr.projection import Lens, lens_of
from vitascope.vr.stereo import NO_SIGN, DetectedLayout, compare_halves, detect_layout, possible_layout

__all__ = ["layout_of", "lenses_of"]

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
    return _seen(info.path, info.path.stat().st_mtime_ns, possible) or found


def lenses_of(info: VideoInfo, wanted: VideoSettings) -> Sequence[Lens | None]:
    """The projection of each eye; None for flat pictures.

    Args:
        info: The video.
        wanted: ``projection`` and ``fov_degrees`` are looked at.
    """
    projection = info.projection if wanted.projection == "auto" else wanted.projection
    return [None if projection is None else lens_of(projection, wanted.fov_degrees)] * 2


@lru_cache(maxsize=64)
def _seen(video: Path, _written_ns: int, possible: StereoLayout) -> DetectedLayout | None:
    pictures = keyframe_lumas(video, _PICTURES, longest_side=_LONGEST_SIDE)
    return compare_halves(pictures, possible) if pictures else None
