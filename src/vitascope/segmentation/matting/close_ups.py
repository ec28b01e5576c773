"""Shows close-ups to the network at a smaller size, so that its features cover more of a body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.models.network import FloatArray, NetworkInput, SpatialState
from vitascope.segmentation.matting.look_ahead import shrunk

CLOSE_UP_SIDE: Final = 512
"""Longest side, in samples, of the network's pictures of close-ups; the network's authors use it for all videos.

The larger pictures for whole bodies give finer edges, but lose torsos that fill them: two thirds of a torso
in a white shirt at a white table were gone within a second."""
LOOK_EVERY_FRAMES: Final = 64
"""Frames between two checks, inside a shot, of whether somebody fills the picture: each check waits for the
network's output. A power of two, so that checks split no batch."""
_CLOSE = 0.25
"""Minimum share of the picture for a close-up. Above it, on clips with a truth, 512 samples are as good as 768; below,
they are worse in all clips (``benchmarks/close_ups.py``). Earlier frames do not count, so that a stretch that begins in
the middle of a shot decides like the whole."""
_THICK = 0.195
"""Minimum radius of the largest circle inside the people, as a share of the square root of the picture's
area, for one person to fill it: several people who touch are thinner, and a smaller picture would lose the
smaller ones."""
CLOSE_UP_RULES: Final = (CLOSE_UP_SIDE, LOOK_EVERY_FRAMES, _CLOSE, _THICK)
"""Constants that mattes of a network with close-ups depend on."""
_PERSON = 0.5


class CloseUps:
    """Chooses between two picture sizes for a stream: smaller while a person fills the picture.

    Args:
        usual: Format of the network's picture of whole bodies, NCHW; its longest side is above
            ``CLOSE_UP_SIDE``.
    """

    def __init__(self, usual: NetworkInput) -> None:
        scale = CLOSE_UP_SIDE / max(usual.size)
        height, width = (max(round(side * scale), 1) for side in usual.size)
        self._usual, self._small = usual, replace(usual, size=(height, width))
        self.are_seen = False
        """True while the network sees the smaller pictures."""

    @staticmethod
    def may_need(usual: NetworkInput) -> bool:
        """False if the usual pictures are no larger than those for close-ups."""
        return max(usual.size) > CLOSE_UP_SIDE

    @property
    def shown(self) -> NetworkInput:
        """Format of the network's picture at present."""
        return self._small if self.are_seen else self._usual

    def shown_of(self, pictures: Any) -> Any:
        """Resize usual pictures [T, E, 3, h, w], NumPy or CuPy, to the present format."""
        return shrunk(pictures, CLOSE_UP_SIDE) if self.are_seen else pictures

    @staticmethod
    def would_be_seen(alpha: FloatArray, *, from_share: float = _CLOSE) -> bool:
        """True if smaller pictures should be used after a frame.

        Args:
            alpha: float32 [E, h, w], 0..1, of the frame, in the host's memory.
            from_share: Minimum share of the picture for one person to fill it.
        """
        return any(largest_share(eye) >= from_share and _thickness(eye) >= _THICK for eye in alpha)

    def size_of(self, *, close: bool) -> tuple[int, int]:
        """(height, width) of the pictures."""
        return (self._small if close else self._usual).size

    def change(self, state: SpatialState, *, are_seen: bool) -> None:
        """Switch to the other pictures, and convert the network's memory."""
        state.stretch(self.size_of(close=are_seen))
        self.are_seen = are_seen

    def with_choice(self, memory: list[FloatArray]) -> list[FloatArray]:
        """State for a run that continues: only the memory, whose size tells which pictures are in use."""
        return memory

    def go_on_from(self, memory: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Continue an earlier run, whose pictures had twice the size of the memory's first array.

        Returns:
            The network's memory.
        """
        height, width = self._small.size
        self.are_seen = memory[0].shape[-2:] == (-(-height // 2), -(-width // 2))
        return memory


def largest_share(alpha: npt.NDArray[np.float32]) -> float:
    """Measure the share of the picture covered by the largest connected person.

    Args:
        alpha: float32 [h, w], 0..1.
    """
    return float(people_boxes(alpha)[:, cv2.CC_STAT_AREA].max(initial=0)) / alpha.size


def people_boxes(alpha: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Find the boxes of connected people: left, top, width, height and area in samples, int32 [N, 5].

    Args:
        alpha: float32 [h, w], 0..1.
    """
    people = (alpha > _PERSON).astype(np.uint8)
    boxes = cv2.connectedComponentsWithStats(people, connectivity=4)[2][1:]
    return boxes.astype(np.int32, copy=False)


def _thickness(alpha: npt.NDArray[np.float32]) -> float:
    """Radius of the largest circle inside the people, as a share of the square root of the picture's area.

    The circle may extend beyond the picture, where bodies continue. Holes count as people: the network loses
    parts of people who fill the picture, and people hold things.
    """
    people = (alpha > _PERSON).astype(np.uint8)
    outlines, _ = cv2.findContours(people, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = cv2.drawContours(people, outlines, -1, 1, cv2.FILLED)
    if filled.all():
        return 1.0
    return float(cv2.distanceTransform(filled, cv2.DIST_L2, 5).max()) / float(np.sqrt(alpha.size))
