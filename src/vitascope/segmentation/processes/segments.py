"""Cutting a video into segments that are matted apart from one another: pure arithmetic on time stamps.

A segment *owns* the pictures shown from its ``begin`` up to, and without, its ``end``, which is the next one's
``begin``: every picture has exactly one owner, whatever the frame rate does. Whoever works on a segment starts at
``warm_up_from``, some pictures earlier, so that what a network and a smoother remember has settled at ``begin``::

    keyframe  lead  warm-up                     next keyframe
       |-------|-------|----------- owned -----------|-------|-------|------ owned ...
                     begin                                         begin = end of the one before

Decoders start at keyframes. So a segment begins that far *behind* a keyframe, and nothing is decoded in vain but the
warm-up itself, which the segment before decodes, too. The lead is for containers whose index has decoding times: a
picture is shown a few pictures' time later than it is decoded.

The plan knows nothing of processes or devices: those that share a video, on one machine or several, need only
agree on it.

Who takes which segment of a video: neighbours stay together, and whoever is done helps the one furthest behind.

Each worker begins with a range of neighbouring segments of its own. From one segment to its neighbour a network's
memory simply goes on; only where a range begins it must be warmed up anew, and only there the video has a seam. There
are as few of these as there are workers, and one more whenever a worker that has run out takes over the end of what
another has still before it: as much as lets both be done at the same time, the beginning included, if both go on as
fast as until then; and nothing where the beginning takes longer than what is left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import NamedTuple

__all__ = ["Assignment", "FilmSegment", "FilmSpan", "WorkSharing", "plan_film"]


_LEAD_FRAMES = 4
"""x264 and x265 hold back two pictures by default, three at most with their pyramids; a seek that lands too late goes
back further, which costs time and nothing else."""


@dataclass(frozen=True, slots=True)
class FilmSegment:
    """A stretch of a video, in ticks of its presentation times."""

    number: int
    """Position in the video, from 0."""
    warm_up_from: int | None
    """First pts that is decoded, for the memory of network and smoother, by whoever did not do the segment before;
    None where nothing comes before."""
    begin: int | None
    """First pts that is owned; None: from where the run begins."""
    end: int | None
    """First pts that the next segment owns; None: up to where the run ends."""


@dataclass(frozen=True, slots=True)
class FilmSpan:
    """The part of a video that a run is about.

    Raises:
        ValueError: No length, or a frame without duration.
    """

    begin: int
    """pts of its first picture."""
    length: int
    """Ticks that it lasts, as far as headers tell."""
    frame_ticks: Fraction
    """Ticks of a picture, on average."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.length < 0 or self.frame_ticks <= 0:
            raise ValueError(f"a span of {self.length} ticks, {self.frame_ticks} ticks a picture")

    @property
    def frame_count(self) -> int:
        """Pictures, by the average rate."""
        return ceil(self.length / self.frame_ticks)


def plan_film(
    span: FilmSpan,
    *,
    keyframes: Sequence[int] | None,
    workers: int,
    most_frames: int,
    warm_up_frames: int,
) -> tuple[FilmSegment, ...]:
    """Cut a video for a number of workers that share it.

    Args:
        span: What is to be cut.
        keyframes: Time stamps of the video's keyframes in ticks, growing, decoding or presentation times; None where
            decoding can start anywhere (pictures).
        workers: How many work at a time; 1 or more.
        most_frames: Pictures that a segment shall have at most; segments whose keyframes lie further apart have more.
        warm_up_frames: Pictures that a segment decodes before those it owns, for whoever did not do the one before.

    Returns:
        One or more segments of about equal length, in order, which own every picture exactly once.

    Raises:
        ValueError: A count below 1, or keyframes that do not grow.
    """
    if workers < 1 or most_frames < 1 or warm_up_frames < 0:
        raise ValueError(f"workers={workers}, most_frames={most_frames}, warm_up_frames={warm_up_frames}")
    if keyframes is not None and any(later <= earlier for earlier, later in pairwise(keyframes)):
        raise ValueError("keyframes are not in order")
    frame_count = span.frame_count
    count = ceil(frame_count / most_frames)
    count = max(count, min(workers, frame_count))
    begins = _begins(span, keyframes, count=count, warm_up_frames=warm_up_frames)
    warm_up = ceil(warm_up_frames * span.frame_ticks)
    segments = []
    for number, (begin, end) in enumerate(zip([None, *begins], [*begins, None], strict=True)):
        from_pts = None if begin is None else max(begin - warm_up, span.begin)
        segments.append(FilmSegment(number, from_pts, begin, end))
    return tuple(segments)


def _begins(span: FilmSpan, keyframes: Sequence[int] | None, *, count: int, warm_up_frames: int) -> list[int]:
    """Where each segment but the first begins: strictly growing, inside the span."""
    distance = ceil((warm_up_frames + _LEAD_FRAMES) * span.frame_ticks)
    begins: list[int] = []
    for n in range(1, count):
        begin = span.begin + round(Fraction(span.length * n, count))
        if keyframes is not None and len(keyframes) > 1:
            begin = _nearest(keyframes, begin - distance) + distance
        earliest = (begins[-1] if begins else span.begin) + 1
        if earliest <= begin < span.begin + span.length:
            begins.append(begin)
    return begins


def _nearest(stamps: Sequence[int], target: int) -> int:
    place = bisect_left(stamps, target)
    return min(stamps[max(place - 1, 0) : place + 1], key=lambda stamp: abs(stamp - target))


class Assignment(NamedTuple):
    """The next segment of one worker."""

    number: int
    goes_on: bool
    """True when it follows the worker's segment before, whose memory then goes on."""


class WorkSharing:
    """Hands out segments; each exactly once. Not thread-safe.

    Args:
        segments: How many there are, 1 or more.
        workers: How many share them, 1 or more.
        beginning: What it takes to begin a range, as that many segments: opening a decoder, warming up.
    """

    def __init__(self, segments: int, *, workers: int, beginning: int) -> None:
        edges = [segments * n // workers for n in range(workers + 1)]
        self._left = [range(first, last) for first, last in pairwise(edges)]
        self._last: list[int | None] = [None] * workers
        self._beginning = beginning
        self._begun = [1] * workers  # so that one that has not begun is not taken for one that never will

    def next_for(self, worker: int) -> Assignment | None:
        """The next segment of a worker; None when there is nothing left to begin."""
        if not self._left[worker]:
            self._take_over(worker)
        left = self._left[worker]
        if not left:
            return None
        self._begun[worker] += 1
        number, self._left[worker] = left[0], left[1:]
        before, self._last[worker] = self._last[worker], number
        return Assignment(number, goes_on=before is not None and before + 1 == number)

    def _take_over(self, worker: int) -> None:
        """Take the end of the longest range that is left."""
        victim = max(range(len(self._left)), key=lambda other: len(self._left[other]))
        left = self._left[victim]
        all_begun = self._begun[victim] + self._begun[worker]
        kept = min(ceil((len(left) + self._beginning) * self._begun[victim] / all_begun), len(left))
        self._left[victim], self._left[worker] = left[:kept], left[kept:]
