"""The keyframes of a video, from its container's index, and segments between them.

A video is cut into segments that decode on their own. A segment begins with the packet of a keyframe and ends before
that of another. It *owns* the pictures that are shown from its own keyframe on and before the next segment's::

    decode order   I0 P2 P4   I7 b5 b6 P9 P11   I14 ...
    shown          0  2  4    7  5  6  9  11    14
    owned by       segment 0: shown 0 to 6      segment 1: shown 7 to 13

``b5`` and ``b6`` are leading pictures of an open GOP: their packets follow the keyframe ``I7``, but they are shown
before it, and refer to pictures from before it too. So segment 0 decodes on into segment 1 until it has them, and
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
"""Which time of a packet a container's index lists."""


@dataclass(frozen=True, slots=True)
class FilmIndex:
    """The keyframes of a video, or why they are unknown without reading it."""

    keyframes: tuple[int, ...] = ()
    """Time stamps in ticks of the video's time base, growing; empty when there is no index of use."""
    stamp: Stamp = "dts"
    """Which time of a keyframe's packet that is."""
    why_none: str | None = None
    """Why the video cannot be cut exactly; None when it can."""

    @classmethod
    def of(cls, keyframes: Sequence[int], stamp: Stamp = "dts") -> Self:
        """The index of keyframes in the order of the file, or why it cannot be used."""
        if not keyframes:
            return cls(stamp=stamp, why_none="its index lists no keyframes")
        if any(later <= earlier for earlier, later in pairwise(keyframes)):
            return cls(stamp=stamp, why_none="the keyframes of its index are not in order")
        return cls(tuple(keyframes), stamp)


def read_film_index(path: Path) -> FilmIndex:
    """List the keyframes of a video. Decodes nothing.

    Raises:
        InputError: The file cannot be opened or holds no video.
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
            video.container.seek(0)  # reads the cues, which Matroska keeps for when they are needed
    else:
        return FilmIndex(why_none=f"{facts.container} has no index of its keyframes")
    # Entries point into the container: copy what is needed while it is open.
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
    """Stamp of the keyframe that it begins with."""
    end: int | None
    """Stamp of the keyframe that the next segment begins with; None for the last."""


@dataclass(frozen=True, slots=True)
class GopPlan:
    """The segments of a video, in order and without gaps, or why it stays whole."""

    segments: tuple[Segment, ...] = ()
    """At least two; empty when the video stays whole."""
    stamp: Stamp = "dts"
    """Which time of a packet their stamps are."""
    why_whole: str | None = None
    """Why it cannot be cut; None when it can."""

    def segment_at(self, stamp: int) -> int:
        """Number of the segment that a stamp lies in; 0 for what lies before the first."""
        return max(bisect_right(self.segments, stamp, key=lambda segment: segment.start) - 1, 0)


def plan_segments(index: FilmIndex, *, min_ticks: int = 1) -> GopPlan:
    """Cut a video at its keyframes.

    Args:
        index: The video's.
        min_ticks: The least distance between the starts of two segments. Videos of keyframes alone would be cut at
            every picture otherwise, and every cut costs a seek.

    Returns:
        Segments of which the first is the first keyframe's, or no segments and the reason.
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
