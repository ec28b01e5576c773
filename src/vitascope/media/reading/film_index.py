"""The keyframes of a video, from its container's index, and segments that begin at keyframes.

A video is divided into segments that are decoded independently. A segment begins with a keyframe's packet and ends
before the packet of another keyframe. It *owns* the pictures shown from its own keyframe up to the next segment's::

    decode order   I0 P2 P4   I7 b5 b6 P9 P11   I14 ...
    shown          0  2  4    7  5  6  9  11    14
    owned by       segment 0: shown 0 to 6      segment 1: shown 7 to 13

``b5`` and ``b6`` are leading pictures of an open GOP: their packets follow the keyframe ``I7``, but they are shown
before it and also refer to earlier pictures. So segment 0 continues to decode into segment 1 until it has them, and
segment 1, which cannot decode them, drops them. In closed GOPs nothing is decoded twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

import av

from vitascope.media.reading.container import ContainerSource, Decoding
from vitascope.media.reading.source import LONGEST_PAUSE_SECONDS

Stamp = Literal["dts", "pts"]
"""The kind of timestamp in a container's index."""


@dataclass(frozen=True, slots=True)
class FilmIndex:
    """The keyframes of a video, or why they are unknown without reading it."""

    keyframes: tuple[int, ...] = ()
    """Timestamps in ticks of the video's time base, increasing; empty without a usable index."""
    stamp: Stamp = "dts"
    """The kind of these timestamps."""
    why_none: str | None = None
    """Why the video cannot be divided exactly; None if it can."""

    @classmethod
    def of(cls, keyframes: Sequence[int], stamp: Stamp = "dts") -> Self:
        """The index for keyframes in file order, or why it cannot be used."""
        if not keyframes:
            return cls(stamp=stamp, why_none="its index lists no keyframes")
        if any(later <= earlier for earlier, later in pairwise(keyframes)):
            return cls(stamp=stamp, why_none="the keyframes of its index are not in order")
        return cls(tuple(keyframes), stamp)


def read_film_index(path: Path) -> FilmIndex:
    """List the keyframes of a video, without decoding.

    Raises:
        InputError: The file cannot be opened, or has no video.
    """
    source = ContainerSource(path, decoding=Decoding(threads=1), max_corrupt_frames=0)
    try:
        return index_of(source)
    finally:
        source.close()


def index_of(headers: ContainerSource) -> FilmIndex:
    """The index of an open video; its reading position is undefined afterwards."""
    facts, video = headers.facts, headers.video
    stream = video.stream
    stamp: Stamp = "dts"
    if "mp4" in facts.container:
        if not stream.frames:
            return FilmIndex(why_none="a fragmented MP4 has no index of the whole video")
    elif "matroska" in facts.container:
        stamp = "pts"
        with suppress(av.FFmpegError, OSError):
            video.container.seek(0)  # loads the cues, which Matroska reads only on demand
    else:
        return FilmIndex(why_none=f"{facts.container} has no index of its keyframes")
    # Entries point into the container, so copy them while it is open.
    entries = [(entry.timestamp, entry.is_keyframe) for entry in stream.index_entries]
    pause = LONGEST_PAUSE_SECONDS / facts.time_base
    if any(later[0] - earlier[0] > pause for earlier, later in pairwise(entries)):
        return FilmIndex(why_none="its clock was reset in the middle")
    if entries and not entries[0][1]:
        return FilmIndex(why_none="it does not begin with a keyframe")
    return FilmIndex.of([when for when, is_key in entries if is_key], stamp)


@dataclass(frozen=True, slots=True)
class Segment:
    """Packets from one keyframe up to, but excluding, another."""

    number: int
    """Position in the video, from 0."""
    start: int
    """Timestamp of its first keyframe."""
    end: int | None
    """Timestamp of the next segment's keyframe; None for the last segment."""


@dataclass(frozen=True, slots=True)
class GopPlan:
    """The segments of a video, in order and without gaps, or why it is not divided."""

    segments: tuple[Segment, ...] = ()
    """At least two; empty if the video is not divided."""
    stamp: Stamp = "dts"
    """The kind of the segments' timestamps."""
    why_whole: str | None = None
    """Why the video is not divided; None if it is."""

    def segment_at(self, stamp: int) -> int:
        """Number of the segment that contains a timestamp; 0 for one before the first."""
        return max(bisect_right(self.segments, stamp, key=lambda segment: segment.start) - 1, 0)


def plan_segments(index: FilmIndex, *, min_ticks: int = 1) -> GopPlan:
    """Divide a video at its keyframes.

    Args:
        index: The video's index.
        min_ticks: Minimum distance between the starts of two segments. Each segment costs a seek, so a video of
            keyframes alone must not be divided at every picture.

    Returns:
        Segments that begin with the first keyframe, or no segments and the reason.
    """
    if index.why_none is not None:
        return GopPlan(why_whole=index.why_none)
    starts = [index.keyframes[0]]
    for stamp in index.keyframes[1:]:
        if stamp - starts[-1] >= min_ticks:
            starts.append(stamp)
    if len(starts) < 2:
        return GopPlan(why_whole="it has a single group of pictures")
    ends = [*starts[1:], None]
    segments = (Segment(n, start, end) for n, (start, end) in enumerate(zip(starts, ends, strict=True)))
    return GopPlan(tuple(segments), index.stamp)
