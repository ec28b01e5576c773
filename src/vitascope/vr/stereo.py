"""Which part of a frame each eye sees."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vitascope.frames import StereoLayout, VideoInfo
from vitascope.gpu.kernels.region import Region

__all__ = ["DetectedLayout", "detect_layout", "eye_regions"]

# Tokens that studios and players put between separators in file names. Words that are also something else ("ou" is
# French, "BT" a company) count only beside a word of VR or 3D. Lens names and "VR180" mean two eyes side by side unless
# a word says otherwise; a bare "180" may be one eye, and says nothing.
_SIDE_BY_SIDE = frozenset({"sbs", "hsbs", "fsbs", "halfsbs", "fullsbs", "lr", "rl", "lrf", "3dh", "180x180"})
_TOP_BOTTOM = frozenset({"htb", "ftb", "hou", "fou", "overunder", "topbottom", "3dv"})
_AMBIGUOUS_TOP_BOTTOM = frozenset({"tb", "bt", "ou"})
_MONO = frozenset({"mono", "2d"})
_LENSES = frozenset(
    {"vr180", "fisheye", "fisheye180", "fisheye190", "fisheye200", "mkx200", "mkx220", "rf52", "vrca220"}
)
_VR_HINTS = _LENSES | frozenset({"vr", "3d", "180", "360", "vr360", "stereo", "8k", "6k", "5k", "equirect"})


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
    tokens = [token for token in re.split(r"[_\-. ()\[\]]+", path.stem) if token]
    words = {token.lower() for token in tokens}
    top_bottom = _TOP_BOTTOM | (_AMBIGUOUS_TOP_BOTTOM if words & _VR_HINTS else frozenset())
    # What names a layout beats what names one eye ("2D_3D_sbs"), and that beats what names a lens ("fisheye_mono").
    for known, layout in (
        (_SIDE_BY_SIDE, StereoLayout.SIDE_BY_SIDE),
        (top_bottom, StereoLayout.TOP_BOTTOM),
        (_MONO, StereoLayout.MONO),
        (_LENSES, StereoLayout.SIDE_BY_SIDE),
    ):
        for token in tokens:
            if token.lower() in known:
                return DetectedLayout(layout, f"file name ({token})")
    doubtful = next((token for token in tokens if token.lower() in _AMBIGUOUS_TOP_BOTTOM), None)
    if doubtful is not None:
        return DetectedLayout(
            StereoLayout.MONO, f"{doubtful} alone is no sign of stereo; --stereo tb says it is"
        )
    return DetectedLayout(StereoLayout.MONO, "no sign of stereo")
