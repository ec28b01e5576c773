"""Regions of a frame: a rectangle of luma samples for each eye, and cutting or creating frames eye by eye.

Each eye is a separate picture, so that nothing is read, weighted or blurred across the seam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vitascope.frames import Frame, Plane, YuvFormat


@dataclass(frozen=True, slots=True)
class Region:
    """``width`` x ``height`` luma samples, with the top left sample at (``x``, ``y``)."""

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


def whole_frame(frame: Frame) -> Region:
    """The region of a whole frame."""
    return Region(0, 0, frame.width, frame.height)


def chroma_region(region: Region, fmt: YuvFormat) -> Region:
    """The chroma samples of a region: those whose blocks begin in it, or in the block cut by its first sample."""
    left, top = region.x >> fmt.chroma_shift_x, region.y >> fmt.chroma_shift_y
    width, height = fmt.chroma_size(region.x + region.width, region.y + region.height)
    return Region(left, top, width - left, height - top)


def is_whole_blocks(region: Region, frame: Frame) -> bool:
    """True if a region begins and ends at chroma blocks, or at the frame's border."""
    step_x, step_y = 1 << frame.format.chroma_shift_x, 1 << frame.format.chroma_shift_y
    ends_x = (region.x + region.width) % step_x == 0 or region.x + region.width == frame.width
    ends_y = (region.y + region.height) % step_y == 0 or region.y + region.height == frame.height
    return region.x % step_x == 0 and region.y % step_y == 0 and ends_x and ends_y


def cut(frame: Frame, window: Region) -> Frame:
    """Views of a frame's planes within a window of whole chroma blocks."""
    chroma = chroma_region(window, frame.format)
    return frame.with_planes(
        (
            frame.planes[0][window.rows, window.columns],
            *(plane[chroma.rows, chroma.columns] for plane in frame.planes[1:]),
        )
    )


def each_eye(
    frame: Frame, alpha: Plane, regions: Sequence[Region], make: Callable[[Frame, Plane, Region], Frame]
) -> Frame:
    """Create a frame eye by eye.

    A seam inside a chroma block (frames whose half has an odd width) cannot be separated in chroma, so such a frame
    is created as a whole.

    Args:
        frame: The picture.
        alpha: uint8 or uint16 [H, W].
        regions: Area of each eye; together they cover the frame.
        make: Makes a picture of the same size and format from an eye, its alpha and its region.
    """
    if len(regions) == 1 or not all(is_whole_blocks(region, frame) for region in regions):
        return make(frame, alpha, whole_frame(frame))
    planes = tuple(np.empty_like(plane) for plane in frame.planes)
    whole = frame.with_planes(planes)
    for region in regions:
        made = make(cut(frame, region), alpha[region.rows, region.columns].copy(), region)
        for target, source in zip(cut(whole, region).planes, made.planes, strict=True):
            target[...] = source
    return whole
