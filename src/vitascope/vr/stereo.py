"""Which part of a frame each eye sees."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vitascope.frames import StereoLayout, VideoInfo
from vitascope.gpu.kernels.region import Region

__all__ = ["DetectedLayout", "detect_layout", "eye_regions"]

# Tokens that studios and players put between separators in file names. VR180 cameras and the fisheye lens names mean
# two eyes side by side; a bare "180" may be one eye, and says nothing.
_SIDE_BY_SIDE = frozenset(
    {"sbs", "hsbs", "fsbs", "halfsbs", "fullsbs", "lr", "rl", "lrf", "3dh", "180x180", "vr180"}
    | {"fisheye", "fisheye180", "fisheye190", "fisheye200", "mkx200", "mkx220", "rf52", "vrca220"}
)
_TOP_BOTTOM = frozenset({"tb", "bt", "htb", "ftb", "ou", "hou", "fou", "overunder", "topbottom", "3dv"})
_MONO = frozenset({"mono", "2d", "flat"})


@dataclass(frozen=True, slots=True)
class DetectedLayout:
    """A stereo layout, and how it is known."""

    layout: StereoLayout
    reason: str
    """For people: ``declared``, ``stereo box``, ``file name (_SBS)`` or ``no sign of stereo``."""


def detect_layout(info: VideoInfo, declared: StereoLayout | None = None) -> DetectedLayout:
    """The stereo layout of a video: what the user declared, else the container's box, else the file name.

    Args:
        info: The video; its ``stereo`` and ``path`` are looked at.
        declared: What the user said; None to find out.
    """
    if declared is not None:
        return DetectedLayout(declared, "declared")
    if info.stereo is not None:
        return DetectedLayout(info.stereo, "stereo box")
    return _from_name(info.path)


def eye_regions(width: int, height: int, layout: StereoLayout) -> list[Region]:
    """The luma rectangle of each eye, first eye first; together they cover the frame.

    An odd width or height gives its extra column or row to the first eye.
    """
    if layout is StereoLayout.SIDE_BY_SIDE and width >= 2:
        first = width - width // 2
        return [Region(0, 0, first, height), Region(first, 0, width - first, height)]
    if layout is StereoLayout.TOP_BOTTOM and height >= 2:
        first = height - height // 2
        return [Region(0, 0, width, first), Region(0, first, width, height - first)]
    return [Region(0, 0, width, height)]


def _from_name(path: Path) -> DetectedLayout:
    # Only whole tokens count: "ours_180.mp4" must not read as "ou", nor "slr.mp4" as "lr".
    for token in re.split(r"[_\-. ()\[\]]+", path.stem):
        name = token.lower()
        if name in _SIDE_BY_SIDE:
            return DetectedLayout(StereoLayout.SIDE_BY_SIDE, f"file name ({token})")
        if name in _TOP_BOTTOM:
            return DetectedLayout(StereoLayout.TOP_BOTTOM, f"file name ({token})")
        if name in _MONO:
            return DetectedLayout(StereoLayout.MONO, f"file name ({token})")
    return DetectedLayout(StereoLayout.MONO, "no sign of stereo")
