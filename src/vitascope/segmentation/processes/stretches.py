"""Cutting a video into stretches that are made apart from one another: pure arithmetic on time stamps.

A stretch *owns* the pictures shown from its ``begin`` up to, and without, its ``end``, which is the next one's
``begin``: every picture has exactly one owner, whatever the frame rate does. Whoever makes a stretch starts at
``warm_up_from``, some pictures earlier, so that what a network and a smoother remember has settled at ``begin``::

    keyframe  lead  warm-up                     next keyframe
       |-------|-------|----------- owned -----------|-------|-------|------ owned ...
                     begin                                         begin = end of the one before

Decoders start at keyframes. So a stretch begins that far *behind* a keyframe, and nothing is decoded in vain but the
warm-up itself, which the stretch before decodes, too. The lead is for containers whose index has decoding times: a
picture is shown a few pictures' time later than it is decoded.

The plan knows nothing of processes, devices or machines, so however many share a video, and whoever makes a stretch a
second time, make the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil, isqrt

_LEAD_FRAMES = 4
"""x264 and x265 hold back two pictures by default, three at most with their pyramids; a seek that lands too late goes
back further, which costs time and nothing else."""
_SHARED_BY = 4
_LEAST_OPENINGS = 6
"""A stretch is at least so many times as long as it takes to open decoder and encoders."""


@dataclass(frozen=True, slots=True)
class FilmStretch:
    """A part of a video, in ticks of its presentation times."""

    number: int
    """Position in the video, from 0."""
    warm_up_from: int | None
    """First pts that is decoded, for the memory of network and smoother; None where nothing comes before."""
    begin: int | None
    """First pts that is owned; None: from where the run begins."""
    end: int | None
    """First pts that the next stretch owns; None: up to where the run ends."""


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


def stretch_count(
    frame_count: int, *, warm_up_frames: int, opening_frames: int, most_frames: int | None = None
) -> int:
    """How many stretches a video is cut into.

    Each costs a warm-up and the opening of decoder and encoders. In return, who is done waits for half a stretch of
    another on the mean, and a kill loses little. Where k share F frames, and to begin a stretch takes c frames' time,
    n of them take (F + n·c)/k + F/2n: least at n = √(k·F/2c). How many will share a video must not matter, so k is
    taken for four; the minimum is flat.

    That is of a video alone. In a queue all have enough to do, and every cut is a loss, so short ones are not cut.

    Args:
        frame_count: Frames of the video.
        warm_up_frames: Frames that a stretch decodes before its own.
        opening_frames: Frames in whose time decoder and encoders are opened.
        most_frames: What a stretch shall have at most; one that is shorter than its warm-up has as many as that.

    Returns:
        1 or more; even, so that two have as much to do; no more than leave each twice its warm-up and six times its
        opening, if it is not asked for.
    """
    count = isqrt(_SHARED_BY * frame_count // (2 * max(warm_up_frames + opening_frames, 1)))
    least = max(2 * warm_up_frames, _LEAST_OPENINGS * opening_frames, 1)
    count = min(count + count % 2 if count > 1 else 1, frame_count // least)
    if most_frames is not None:
        count = max(count, ceil(frame_count / max(most_frames, warm_up_frames)))
    return max(count, 1)


def plan_film(
    span: FilmSpan, *, keyframes: Sequence[int] | None, count: int, warm_up_frames: int
) -> tuple[FilmStretch, ...]:
    """Cut a video into stretches.

    Args:
        span: What is to be cut.
        keyframes: Time stamps of the video's keyframes in ticks, growing, decoding or presentation times; None where
            decoding can start anywhere (pictures).
        count: How many stretches there shall be; there are fewer where keyframes lie further apart.
        warm_up_frames: Pictures that a stretch decodes before those it owns.

    Returns:
        One or more stretches of about equal length, in order, which own every picture exactly once.

    Raises:
        ValueError: A count below 1, or keyframes that do not grow.
    """
    if count < 1 or warm_up_frames < 0:
        raise ValueError(f"count={count}, warm_up_frames={warm_up_frames}")
    if keyframes is not None and any(later <= earlier for earlier, later in pairwise(keyframes)):
        raise ValueError("keyframes are not in order")
    begins = _begins(span, keyframes, count=count, warm_up_frames=warm_up_frames)
    warm_up = ceil(warm_up_frames * span.frame_ticks)
    stretches = []
    for number, (begin, end) in enumerate(zip([None, *begins], [*begins, None], strict=True)):
        from_pts = None if begin is None else max(begin - warm_up, span.begin)
        stretches.append(FilmStretch(number, from_pts, begin, end))
    return tuple(stretches)


def _begins(span: FilmSpan, keyframes: Sequence[int] | None, *, count: int, warm_up_frames: int) -> list[int]:
    """Where each stretch but the first begins: strictly growing, inside the span."""
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
