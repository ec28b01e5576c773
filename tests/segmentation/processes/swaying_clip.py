"""A short video of a swaying person, and the packets of a file, to compare runs that share a video."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np

from clips import write_clip
from photographs import astronaut

__all__ = ["packets", "swaying_clip"]


def _swaying(n: int):
    return np.ascontiguousarray(np.roll(astronaut()[:256:2, 60:316:2], n // 2, axis=1))


def swaying_clip(folder: Path, *, frame_count: int) -> Path:
    """Write a clip of 128 x 128, with sound and a keyframe in every 12 frames."""
    return write_clip(
        folder / "in.mp4",
        width=128,
        height=128,
        frame_count=frame_count,
        paint=_swaying,
        audio="aac",
        codec_options={"g": "12"},
    )


def packets(path: Path) -> list[tuple[int, int | None, int | None, bytes]]:
    """Return every packet of every stream: its stream, pts, dts and bytes."""
    with av.open(str(path)) as container:
        return [(p.stream.index, p.pts, p.dts, bytes(p)) for p in container.demux() if p.size]
