"""The part of a video that a run works on."""

from __future__ import annotations

from pathlib import Path

from vitascope.config import VideoSettings
from vitascope.errors import InputError
from vitascope.frames import VideoInfo

__all__ = ["no_picture_between"]


def no_picture_between(video: Path | str, wanted: VideoSettings, info: VideoInfo) -> InputError:
    """The error for a start and an end that no picture lies between."""
    end = "the end" if wanted.end_seconds is None else f"{wanted.end_seconds:g} s"
    length = "" if info.duration_seconds is None else f"; the video is {info.duration_seconds:.1f} s long"
    return InputError(f"{video}: no picture between {wanted.start_seconds:g} s and {end}{length}")
