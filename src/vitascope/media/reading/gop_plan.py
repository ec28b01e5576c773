"""Cutting a film into segments that decode on their own: pure arithmetic on an index of keyframes.

A segment begins with the packet of a keyframe and ends before that of another. It *owns* the pictures that are shown
from its own keyframe on and before the next segment's::

    decode order   I0 P2 P4   I7 b5 b6 P9 P11   I14 ...
    shown          0  2  4    7  5  6  9  11    14
    owned by       segment 0: shown 0 to 6      segment 1: shown 7 to 13

``b5`` and ``b6`` are leading pictures of an open GOP: their packets follow the keyframe ``I7``, but they are shown
before it, and refer to pictures from before it too. So segment 0 decodes on into segment 1 until it has them, and
segment 1, which cannot decode them, drops them. Of closed GOPs nothing is decoded twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["GopPlan", "Segment", "plan_segments"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Packets from one keyframe up to, and without, another."""

    number: int
    """Position in the film, from 0."""
    start: int
    """Stamp of the keyframe that it begins with."""
    end: int | None
    """Stamp of the keyframe that the next segment begins with; None for the last."""


@dataclass(frozen=True, slots=True)
class GopPlan:
    """The segments of a film, in order and without gaps, or why it stays whole."""

    segments: tuple[Segment, ...]
    """At least two; empty when the film stays whole."""
    why_whole: str | None = None
    """Why it cannot be cut; None when it can."""

    def segment_at(self, stamp: int) -> int:
        """Number of the segment that a stamp lies in; 0 for what lies before the first."""
        return max(bisect_right(self.segments, stamp, key=lambda segment: segment.start) - 1, 0)


def plan_segments(stamps: Sequence[int], *, min_ticks: int = 1) -> GopPlan:
    """Cut a film at its keyframes.

    Args:
        stamps: Time stamps of the keyframes, in the order of the file: decoding or presentation times in ticks,
            whichever the container's index has.
        min_ticks: The least distance between the starts of two segments. Films of keyframes alone would be cut at
            every picture otherwise, and every cut costs a seek.

    Returns:
        Segments of which the first is the first keyframe's, or no segments and the reason.
    """
    if not stamps:
        return GopPlan((), "its index lists no keyframe")
    if any(later <= earlier for earlier, later in pairwise(stamps)):
        return GopPlan((), "the keyframes of its index are not in order")
    starts = [stamps[0]]
    for stamp in stamps[1:]:
        if stamp - starts[-1] >= min_ticks:
            starts.append(stamp)
    if len(starts) < 2:
        return GopPlan((), "it has a single group of pictures")
    ends = [*starts[1:], None]
    return GopPlan(
        tuple(Segment(n, start, end) for n, (start, end) in enumerate(zip(starts, ends, strict=True)))
    )
