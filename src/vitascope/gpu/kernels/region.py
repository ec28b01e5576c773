"""A rectangle of luma samples: one eye of a stereo frame, or the whole picture."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Region"]


@dataclass(frozen=True, slots=True)
class Region:
    """``width`` x ``height`` luma samples whose top left sample is (``x``, ``y``)."""

    x: int
    y: int
    width: int
    height: int

    @property
    def rows(self) -> slice:
        """Luma rows."""
        return slice(self.y, self.y + self.height)

    @property
    def columns(self) -> slice:
        """Luma columns."""
        return slice(self.x, self.x + self.width)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.height, self.width
