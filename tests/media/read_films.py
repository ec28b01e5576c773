"""Videos with known groups of pictures, and functions that summarise what a reader returns."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import av

from clips import write_clip
from vitascope.frames import Frame
from vitascope.media.reading.reader import VideoReader, open_video

GOP = 20
_X264 = f"keyint={GOP}:min-keyint={GOP}:scenecut=0:bframes=3:b-adapt=0"
_X265 = f"{_X264}:log-level=none"
STRUCTURES: dict[str, tuple[str, str, dict[str, str]]] = {
    "h264-closed.mp4": ("libx264", "yuv420p", {"x264-params": _X264}),
    "h264-open.mp4": ("libx264", "yuv420p", {"x264-params": f"{_X264}:open-gop=1"}),
    "h264-open.mkv": ("libx264", "yuv420p", {"x264-params": f"{_X264}:open-gop=1"}),
    "hevc-closed.mp4": ("libx265", "yuv420p", {"x265-params": f"{_X265}:open-gop=0"}),
    "hevc-open.mp4": ("libx265", "yuv420p10le", {"x265-params": f"{_X265}:open-gop=1"}),
    "hevc-open.mkv": ("libx265", "yuv420p", {"x265-params": f"{_X265}:open-gop=1"}),
    "vp9.webm": (
        "libvpx-vp9",
        "yuv420p",
        {"g": str(GOP), "deadline": "realtime", "cpu-used": "8", "row-mt": "0"},
    ),
}
"""Encoder, pixel format and options for each file name; all have a keyframe every ``GOP`` frames."""


def write_structure(folder: Path, name: str, *, frame_count: int = 100, **changes: Any) -> Path:
    codec, pixel_format, options = STRUCTURES[name]
    return write_clip(
        folder / name,
        width=176,  # NVDEC needs at least 144x144 for HEVC
        height=144,
        frame_count=frame_count,
        codec=codec,
        pixel_format=pixel_format,
        codec_options=options,
        **changes,
    )


def has_leading_pictures(path: Path) -> bool:
    """Check whether packets after a later keyframe are shown before it: open groups of pictures."""
    with av.open(str(path)) as container:
        packets = [(p.pts, p.is_keyframe) for p in container.demux(video=0) if p.size]
    return any(
        is_key and number and any(later < pts for later, _ in packets[number + 1 :])
        for number, (pts, is_key) in enumerate(packets)
    )


def digest(frame: Frame) -> str:
    planes = [plane.get() if hasattr(plane, "get") else plane for plane in frame.planes]
    return hashlib.sha256(b"".join(plane.tobytes() for plane in planes)).hexdigest()[:16]


def told(frame: Frame) -> tuple[object, ...]:
    """Summarise all of a frame that must not depend on the decoder, its samples as a digest."""
    return (
        frame.index,
        frame.pts,
        frame.duration,
        frame.keyframe,
        frame.color,
        frame.format.name,
        digest(frame),
    )


def read_all(path: Path, **options: Any) -> tuple[list[tuple[object, ...]], VideoReader]:
    with open_video(path, **options) as reader:
        return [told(frame) for frame in reader], reader
