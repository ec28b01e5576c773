"""Who takes which segment of a film: neighbours stay together, and whoever is done helps the one furthest behind.

Each worker begins with a range of neighbouring segments of its own. From one segment to its neighbour a network's
memory simply goes on; only where a range begins it must be warmed up anew, and only there the film has a seam. So there
are as few of these as there are workers, and one more whenever a worker that has run out takes over the end of what
another has still before it: as much as lets both be done at the same time, the beginning included, if both go on as
fast as until then; and nothing where the beginning takes longer than what is left.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import NamedTuple

__all__ = ["Assignment", "WorkSharing"]


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
