"""No more pictures a second than are wanted."""

from __future__ import annotations

import math

from vitascope.media.live_loop import PictureSource
from vitascope.media.reading.camera import CameraPicture

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
        self._last_index: int | None = None
        self.captured_count = 0
        """Pictures that came, without those that came too soon; so no more a second than are let through."""

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
        # What came while nobody asked: most of it too soon, the rest as many as would have been let through.
        missed = 0 if self._last_index is None else picture.index - self._last_index - 1
        self._last_index = picture.index
        lost = math.floor((when - self._due) / self._interval) if when > self._due > -math.inf else 0
        self.captured_count += min(missed, lost)
        if when < self._due - _JITTER * self._interval and not picture.is_first:
            return None
        self.captured_count += 1
        # From one moment of the grid to the next, so that a camera's jitter costs no picture; after a gap a new grid.
        self._due = (self._due if when - self._due < self._interval else when) + self._interval
        return picture
