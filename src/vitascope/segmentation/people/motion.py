"""What moves where between two small pictures, and masks that are carried along."""

from __future__ import annotations

from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

FloatMap = npt.NDArray[np.float32]
Grey = npt.NDArray[np.uint8]


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

    def place(self, picture: Grey, other: Grey) -> FloatMap:
        """Where each cell of a picture lies in another one: float32 [h, w, 2], x and y.

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
        """A mask of the other picture as it lies in this one.

        Args:
            mask: float32 or uint8 [h, w].
            place: As ``place`` gives it.
            by: How values between cells are read; labels are read ``nearest``.
        """
        how = cv2.INTER_LINEAR if by == "linear" else cv2.INTER_NEAREST
        remap: Any = cv2.remap  # its stubs do not know that the second map may be None
        return remap(mask, place, None, how, borderMode=cv2.BORDER_REPLICATE)
