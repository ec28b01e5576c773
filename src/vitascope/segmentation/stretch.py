"""The part of a video that a run works on."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from vitascope.config import VideoSettings
from vitascope.errors import InputError
from vitascope.frames import VideoInfo
from vitascope.media.metadata.probe import probe
from vitascope.segmentation.plan import PlannedVideo

__all__ = ["is_finished", "no_picture_between"]

# A frame at 2 frames a second: rounding of containers is far below, a forgotten --end far above.
_TOLERANCE_SECONDS = 0.5


def no_picture_between(video: str | PathLike[str], wanted: VideoSettings, info: VideoInfo) -> InputError:
    """The error for a start and an end that no picture lies between."""
    end = "the end" if wanted.end_seconds is None else f"{wanted.end_seconds:g} s"
    length = "" if info.duration_seconds is None else f"; the video is {info.duration_seconds:.1f} s long"
    return InputError(f"{video}: no picture between {wanted.start_seconds:g} s and {end}{length}")


def is_finished(planned: PlannedVideo, wanted: VideoSettings) -> bool:
    """True when every output exists and covers the stretch that is wanted, and so need not be made again.

    A try with ``--end 5`` must not make a later ``--resume`` believe that the whole film is done. Pictures, and videos
    that do not say how long they are, count as long enough.
    """
    if not planned.is_done:
        return False
    try:
        return all(_is_long_enough(planned.video, path, wanted) for _, path in planned.outputs)
    except InputError:  # what cannot be read is not finished; an unreadable input says so when its turn comes
        return False


def _is_long_enough(video: Path, output: Path, wanted: VideoSettings) -> bool:
    if not output.is_file():  # a folder or pattern of pictures
        return True
    source, made = probe(video), probe(output)
    if source.duration_seconds is None or made.duration_seconds is None or made.container == "images":
        return True
    end = min(source.duration_seconds, wanted.end_seconds or source.duration_seconds)
    return abs(made.duration_seconds - (end - wanted.start_seconds)) <= _TOLERANCE_SECONDS + 0.01 * end
