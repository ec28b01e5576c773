"""A few pictures of a video, spread over it: for a look at what it shows, before it is read."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.video.stream import VideoStream

from vitascope.media.libav import open_input

__all__ = ["keyframe_lumas"]


def keyframe_lumas(path: Path, count: int, *, longest_side: int) -> list[npt.NDArray[np.uint8]]:
    """Decode keyframes alone, on the CPU, and shrink them.

    Args:
        path: The video.
        count: How many keyframes are looked for; one may serve several places of a video that has few.
        longest_side: Samples of the longer side of what is given.

    Returns:
        Luma, uint8 [h, w] each, aspect kept; fewer than ``count``, or none, where the video cannot be read.
    """
    found: list[npt.NDArray[np.uint8]] = []
    try:
        with open_input(path) as container:
            stream = container.streams.video[0]
            stream.codec_context.skip_frame = "NONKEY"
            for place in range(count):
                frame = _keyframe_at(container, stream, (place + 0.5) / count)
                if frame is None:
                    break
                shrink = max(frame.width, frame.height) / longest_side
                size = [max(round(side / shrink), 1) for side in (frame.width, frame.height)]
                grey = frame.reformat(width=size[0], height=size[1], format="gray", interpolation="AREA")
                found.append(np.asarray(grey.to_ndarray(), np.uint8))
    except (av.FFmpegError, OSError, IndexError):
        return found
    return found


def _keyframe_at(container: InputContainer, stream: VideoStream, share: float) -> av.VideoFrame | None:
    if stream.duration:
        container.seek((stream.start_time or 0) + int(stream.duration * share), stream=stream)
    elif container.duration:
        container.seek((container.start_time or 0) + int(container.duration * share))
    return next(container.decode(stream), None)
