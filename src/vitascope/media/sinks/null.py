"""Nowhere: what is measured ends at the animator."""

from __future__ import annotations

from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat

__all__ = ["NullSink"]


class NullSink:
    """Takes pictures and forgets them.

    Args:
        target: Empty.
    """

    def __init__(self, target: str = "") -> None:
        del target

    @property
    def name(self) -> str:
        """``null``."""
        return "null"

    @property
    def pixel_format(self) -> PixelFormat:
        """What the animator makes."""
        return "rgb24"

    def open(self, made: SinkFormat) -> None:
        """Nothing to do."""

    def send(self, picture: LivePicture) -> None:
        """Forget it."""

    def close(self) -> None:
        """Nothing to do."""
