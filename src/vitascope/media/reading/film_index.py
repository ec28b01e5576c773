"""Where the keyframes of a film lie, as its container's index tells: what it takes to cut the film exactly."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import av

from vitascope.media.reading.container import ContainerSource
from vitascope.media.reading.opened_video import Decoding
from vitascope.media.reading.sessions import Stamp

__all__ = ["FilmIndex", "index_of", "read_film_index"]


@dataclass(frozen=True, slots=True)
class FilmIndex:
    """The keyframes of a film, or why they cannot be known without reading it."""

    keyframes: tuple[int, ...]
    """Time stamps in ticks of the video's time base, growing; empty when there is no index of use."""
    stamp: Stamp = "dts"
    """Which time of a keyframe's packet that is."""
    why_none: str | None = None
    """Why the film cannot be cut exactly; None when it can."""


def read_film_index(path: Path) -> FilmIndex:
    """Look the keyframes of a film up. Decodes nothing.

    Raises:
        InputError: The file cannot be opened or holds no video.
    """
    source = ContainerSource(path, decoding=Decoding(threads=1), max_corrupt_frames=0)
    try:
        return index_of(source)
    finally:
        source.close()


def index_of(headers: ContainerSource) -> FilmIndex:
    """The index of an opened film; what it was about to read next is undefined afterwards."""
    facts, video = headers.facts, headers.video
    stream = video.stream
    stamp: Stamp = "dts"
    if "mp4" in facts.container:
        if not stream.frames:
            return FilmIndex((), why_none="a fragmented MP4 has no index of the whole film")
    elif "matroska" in facts.container:
        stamp = "pts"
        with suppress(av.FFmpegError, OSError):
            video.container.seek(0)  # reads the cues, which Matroska keeps for when they are needed
    else:
        return FilmIndex((), why_none=f"{facts.container} has no index of its keyframes")
    # Entries point into the container: copy what is needed while it is open.
    entries = [(entry.timestamp, entry.is_keyframe) for entry in stream.index_entries]
    if entries and not entries[0][1]:
        return FilmIndex((), why_none="it does not begin with a keyframe")
    keyframes = tuple(when for when, is_key in entries if is_key)
    if not keyframes:
        return FilmIndex((), why_none="its index lists no keyframe")
    if any(later <= earlier for earlier, later in pairwise(keyframes)):
        return FilmIndex((), why_none="the keyframes of its index are not in order")
    return FilmIndex(keyframes, stamp)
