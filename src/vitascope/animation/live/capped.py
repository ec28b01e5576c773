"""No more pictures a second than are wanted."""

from __future__ import annotations

import math

from vitascope.media.live_loop import PictureSource
from vitascope.media.reading.camera import CameraPicture

__all__ = ["Capped"]

_JITTER = 0.3
"""A picture may come so much of an interval too soon: cameras are no clocks."""


class Capped:
    """A source of which no more pictures a second are let through; the others count for nothing.

    Args:
        source: The source; not closed here.
        frame_rate: Most pictures a second.
    """

    def __init__(self, source: PictureSource[CameraPicture], *, frame_rate: float) -> None:
        self._source = source
        self._interval = 1 / frame_rate
        self._due = -math.inf
        self._left_out = 0

    @property
    def captured_count(self) -> int:
        """Pictures that came, without those that came too soon."""
        return self._source.captured_count - self._left_out

    @property
    def is_over(self) -> bool:
        """True when no picture will come any more."""
        return self._source.is_over

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """Wait for the newest picture; None when none came in time, or one that came too soon."""
        picture = self._source.take(timeout_seconds=timeout_seconds)
        if picture is None:
            return None
        when = picture.captured_seconds
        if when < self._due - _JITTER * self._interval and not picture.is_first:
            self._left_out += 1
            return None
        # From one moment of the grid to the next, so that a camera's jitter costs no picture; after a gap a new grid.
        self._due = (self._due if when - self._due < self._interval else when) + self._interval
        return picture
