"""When the whole picture has to be looked at again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.region import Region
from vitascope.segmentation.matting.levers.boxes import largest_change_outside
from vitascope.segmentation.matting.levers.pictures import Pictures

__all__ = ["Looks"]

MOTION = 0.04
"""Change of a tile outside people's parts, in shares of full scale, after which somebody may have come in: ten levels
of 255 over a tile of 16 x 16 samples."""


class Looks:
    """Remembers the last look at the whole picture.

    Args:
        grid: (height, width) of the network's picture, in samples of which parts are given.
        recheck_frames: Frames from one look to the next at the latest.
    """

    def __init__(self, grid: tuple[int, int], recheck_frames: int) -> None:
        self._grid = grid
        self._recheck_frames = recheck_frames
        self._since: int | None = None
        """Frames since the last look; None before the first."""
        self._reference: npt.NDArray[np.float32] | None = None

    def looked(self, pictures: Pictures) -> None:
        """The last of these frames was looked at whole."""
        assert pictures.tiles is not None  # made for every lever that wants them
        self._since, self._reference = 0, pictures.tiles[-1]

    def passed(self, frames: int) -> None:
        """So many more frames are dealt with."""
        if self._since is not None:
            self._since += frames

    def is_due(self, pictures: Pictures, index: int, parts: Sequence[Region] | None) -> bool:
        """True where a frame has to be looked at whole.

        Args:
            pictures: Consecutive frames.
            index: Which of them.
            parts: What is looked at of the others, one for each eye; None: nothing, or everything.
        """
        if self._since is None or self._reference is None or pictures.starts_shot[index]:
            return True
        assert pictures.tiles is not None  # made for every lever that wants them
        # The look itself was at a frame, so that of ``recheck_frames`` frames one is looked at whole.
        if self._since + 1 >= self._recheck_frames:
            return True
        return largest_change_outside(self._reference, pictures.tiles[index], parts, self._grid) > MOTION

    def stretch_end(self, pictures: Pictures, first: int, parts: Sequence[Region] | None) -> int:
        """One past the last frame, from ``first`` on, for which no look is due."""
        assert self._since is not None  # ``first`` is not due
        last = min(len(pictures), first + self._recheck_frames - 1 - self._since)
        for index in range(first + 1, last):
            if self.is_due(pictures, index, parts):
                return index
        return max(last, first + 1)
