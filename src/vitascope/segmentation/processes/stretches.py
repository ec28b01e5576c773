"""Divides a video into stretches that are made independently: pure arithmetic on timestamps.

A stretch *owns* the frames shown from its ``begin`` up to, but not including, its ``end``, which is the next
stretch's ``begin``: every frame has exactly one owner, even with a variable frame rate. Its maker starts at
``warm_up_from``, some frames earlier, so that the state of network and smoother has settled at ``begin``::

    keyframe  lead  warm-up                     next keyframe
       |-------|-------|----------- owned -----------|-------|-------|------ owned ...
                     begin                                         begin = end of the one before

Decoders start at keyframes. So a stretch begins a little *after* a keyframe, and the only frames decoded twice are
those of the warm-up. The lead is for containers whose index holds decoding times: a frame is shown a few frames later
than it is decoded.

The plan does not depend on processes, devices or machines: however many share a video, and whoever makes a
stretch again, the stretch is the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil, isqrt

_LEAD_FRAMES = 4
"""x264 and x265 delay frames by two by default, by three at most with their pyramids. If a seek lands too late, the
reader goes back further, which only costs time."""
_SHARED_BY = 4
_LEAST_OPENINGS = 6
"""Minimum length of a stretch, as a multiple of the time to open decoder and encoders."""


@dataclass(frozen=True, slots=True)
class FilmStretch:
    """A part of a video, in ticks of its presentation times."""

    number: int
    """Position in the video, from 0."""
    warm_up_from: int | None
    """First pts that is decoded, for the state of network and smoother; None at the beginning."""
    begin: int | None
    """First pts that is owned; None for the beginning of the run."""
    end: int | None
    """First pts that the next stretch owns; None for the end of the run."""


@dataclass(frozen=True, slots=True)
class FilmSpan:
    """The part of a video that a run covers.

    Raises:
        ValueError: A length or a frame's duration is not above 0.
    """

    begin: int
    """pts of its first frame."""
    length: int
    """Length in ticks, as far as headers tell."""
    frame_ticks: Fraction
    """Average ticks per frame."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.length < 0 or self.frame_ticks <= 0:
            raise ValueError(f"a span of {self.length} ticks, {self.frame_ticks} ticks a picture")

    @property
    def frame_count(self) -> int:
        """Number of frames, by the average rate."""
        return ceil(self.length / self.frame_ticks)


def stretch_count(
    frame_count: int, *, warm_up_frames: int, opening_frames: int, most_frames: int | None = None
) -> int:
    """The number of stretches for a video.

    Each stretch costs a warm-up and the opening of decoder and encoders. In return, makers that finish early wait
    less for the last one (half a stretch on average), and a crash loses less work. If k makers share F frames, and
    starting a stretch costs the time of c frames, n stretches take (F + n·c)/k + F/2n, which is least at n =
    √(k·F/2c). The number must not depend on who shares a video, so k is assumed to be four; the minimum is flat.

    This is for a single video. In a queue, all makers have enough to do and each cut is a loss, so short videos are
    not cut.

    Args:
        frame_count: Frames of the video.
        warm_up_frames: Frames that a stretch decodes before its own.
        opening_frames: Time to open decoder and encoders, in frames.
        most_frames: Maximum length of a stretch in frames, but never less than the warm-up; None sets no maximum.

    Returns:
        At least 1; even if above 1, so that two makers get the same share. Without ``most_frames``, each stretch is at
        least twice as long as its warm-up and six times as long as the opening.
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
        span: The part to divide.
        keyframes: Decoding or presentation times of the video's keyframes, in ticks, increasing; None if decoding can
            start anywhere (pictures).
        count: Number of stretches; there are fewer if keyframes are too far apart.
        warm_up_frames: Frames that a stretch decodes before those it owns.

    Returns:
        One or more stretches of about equal length, in order, which own every frame exactly once.

    Raises:
        ValueError: ``count`` is below 1, or keyframes are not increasing.
    """
    if count < 1 or warm_up_frames < 0:
        raise ValueError(f"count={count}, warm_up_frames={warm_up_frames}")
    if keyframes is not None and any(later <= earlier for earlier, later in pairwise(keyframes)):
        raise ValueError("keyframes are not in increasing order")
    begins = _begins(span, keyframes, count=count, warm_up_frames=warm_up_frames)
    warm_up = ceil(warm_up_frames * span.frame_ticks)
    stretches = []
    for number, (begin, end) in enumerate(zip([None, *begins], [*begins, None], strict=True)):
        from_pts = None if begin is None else max(begin - warm_up, span.begin)
        stretches.append(FilmStretch(number, from_pts, begin, end))
    return tuple(stretches)


def _begins(span: FilmSpan, keyframes: Sequence[int] | None, *, count: int, warm_up_frames: int) -> list[int]:
    """Begin of each stretch but the first: strictly increasing, inside the span."""
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
