"""Prepares frames for following people: one eye on a small grid of cells, and its motion since the last frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.segmentation.people.appearance import Codes, color_codes

FloatMap = npt.NDArray[np.float32]
Picture = npt.NDArray[np.uint8]


class MotionField:
    """Dense optical flow (Kroeger and others, "Fast Optical Flow using Dense Inverse Search", 2016) on a grid.

    Args:
        size: (height, width) of the pictures.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._flow: Any = cv2.DISOpticalFlow.create(cv2.DISOpticalFlow_PRESET_FAST)
        rows, columns = np.mgrid[: size[0], : size[1]].astype(np.float32)
        self.rows: FloatMap = rows
        """Row of each cell."""
        self.columns: FloatMap = columns
        """Column of each cell."""
        self.grid: FloatMap = np.dstack([columns, rows])
        """Column and row of each cell, float32 [h, w, 2]."""

    def place(self, picture: Picture, other: Picture) -> FloatMap:
        """The position of each cell in another picture: float32 [h, w, 2], x and y.

        Args:
            picture: uint8 [h, w].
            other: uint8 [h, w], of the same size.
        """
        moved = self._flow.calc(picture, other, None)
        moved += self.grid
        found: FloatMap = moved
        return found

    @staticmethod
    def carried(
        mask: npt.NDArray[Any], place: FloatMap, *, by: Literal["linear", "nearest"] = "linear"
    ) -> Any:
        """Move a mask of the other picture to this one.

        Args:
            mask: float32 or uint8 [h, w].
            place: Positions from ``place``.
            by: How to read values between cells; use ``nearest`` for labels.
        """
        how = cv2.INTER_LINEAR if by == "linear" else cv2.INTER_NEAREST
        remap: Any = cv2.remap  # its stubs do not know that the second map may be None
        return remap(mask, place, None, how, borderMode=cv2.BORDER_REPLICATE)


_SIDE: Final = 160
"""Maximum number of cells along the longest side."""


@dataclass(frozen=True, slots=True, eq=False)
class SmallFrame:
    """A frame used for following people."""

    pts: int
    """Its time stamp."""
    starts_shot: bool
    """True if it begins a shot."""
    rgb: Picture
    """The first eye on the grid, uint8 [h, w, 3]."""
    alpha: FloatMap
    """Its matte, float32 [h, w], 0..1."""
    codes: Codes
    """Its colours, int16 [h, w], from ``color_codes``."""
    before: FloatMap | None
    """Position of each cell in the previous frame, float32 [h, w, 2], x and y; None at the start of a shot."""
    other: FloatMap | None
    """Position of each cell of the other eye in the first one, float32 [h, w, 2]; None for a video of one eye."""
    pixels_a_cell: float
    """Rows of the network's picture per row of the grid."""

    @property
    def nbytes(self) -> int:
        """Number of bytes kept for the next stage."""
        arrays = self.rgb, self.alpha, self.codes, self.before, self.other
        return sum(array.nbytes for array in arrays if array is not None)


class SmallFrames:
    """Makes small frames, in the order of a video."""

    def __init__(self) -> None:
        self._motion: MotionField | None = None
        self._size = 0, 0
        self._grey: Picture | None = None

    def next(self, pts: int, rgb: FloatMap, alpha: FloatMap, starts_shot: bool) -> tuple[SmallFrame, Picture]:
        """Make the next frame, and return it with its first eye as given to the network, uint8 [H, W, 3].

        Args:
            pts: Its time stamp.
            rgb: float32 [E, 3, H, W], 0..1; people are followed in the first eye.
            alpha: float32 [E, H, W], 0..1.
            starts_shot: True if a shot begins.
        """
        height, width = alpha.shape[1:]
        shrink = _shrink(height, width)
        size = round(height / shrink), round(width / shrink)
        if self._motion is None or size != self._size:
            self._motion, self._size, self._grey = MotionField(size), size, None
        small = _shrunk(rgb[0], size)
        grey: Any = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
        starts_shot = starts_shot or self._grey is None
        before = None if starts_shot or self._grey is None else self._motion.place(grey, self._grey)
        self._grey = grey
        other = None
        if len(rgb) == 2:
            of_other: Any = cv2.cvtColor(_shrunk(rgb[1], size), cv2.COLOR_RGB2GRAY)
            other = self._motion.place(of_other, grey)
        matte: Any = cv2.resize(alpha[0], size[::-1], interpolation=cv2.INTER_AREA)
        eye: Any = cv2.convertScaleAbs(cv2.merge(list(rgb[0])), alpha=255)
        frame = SmallFrame(pts, starts_shot, small, matte, color_codes(small), before, other, shrink)
        return frame, eye


def _shrink(height: int, width: int) -> float:
    return max(height / _SIDE, width / _SIDE, 1.0)


def _shrunk(planes: FloatMap, size: tuple[int, int]) -> Picture:
    """A picture, float32 [3, H, W], 0..1, on a grid: uint8 [h, w, 3]."""
    small = [cv2.resize(plane, size[::-1], interpolation=cv2.INTER_AREA) for plane in planes]
    found: Picture = np.rint(np.dstack(small).clip(0, 1) * 255).astype(np.uint8)
    return found
