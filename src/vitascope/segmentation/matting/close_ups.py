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
"""Longest side, in samples, of the pictures that are shown of close-ups; the authors' own for all videos.

The larger ones for whole bodies have finer edges, and lose torsos that fill them: of one in a white shirt at a white
table two thirds were gone within a second."""
LOOK_EVERY_FRAMES: Final = 64
"""Between two looks, inside a shot, whether somebody fills the picture: each waits for the network's answer. A power
of two, so that no batch is cut for it."""
_CLOSE = 0.25
"""The share of the picture from which on somebody fills it. On clips with a truth 512 samples are as good as 768 above
it, and worse in all below (``benchmarks/close_ups.py``). What was before does not count: a stretch that begins in the
middle of a shot decides as the whole would."""
_THICK = 0.195
"""The radius of the largest circle inside the people, as a share of the square root of the picture's area, from which
on it is one person who fills it: several who touch are thinner, and smaller pictures would lose the smaller of them."""
CLOSE_UP_RULES: Final = (CLOSE_UP_SIDE, LOOK_EVERY_FRAMES, _CLOSE, _THICK)
"""What mattes of a network that knows close-ups depend on."""
_PERSON = 0.5


class CloseUps:
    """Chooses between two picture sizes for a stream: smaller while a person fills the picture.

    Args:
        usual: The network's picture of whole bodies, NCHW; its longest side is above ``CLOSE_UP_SIDE``.
    """

    def __init__(self, usual: NetworkInput) -> None:
        scale = CLOSE_UP_SIDE / max(usual.size)
        height, width = (max(round(side * scale), 1) for side in usual.size)
        self._usual, self._small = usual, replace(usual, size=(height, width))
        self.are_seen = False
        """True while smaller pictures are shown."""

    @staticmethod
    def may_need(usual: NetworkInput) -> bool:
        """False if the usual pictures are no larger than those of close-ups."""
        return max(usual.size) > CLOSE_UP_SIDE

    @property
    def shown(self) -> NetworkInput:
        """What the network is shown now."""
        return self._small if self.are_seen else self._usual

    def shown_of(self, pictures: Any) -> Any:
        """Usual pictures [T, E, 3, h, w], NumPy or CuPy, as they are shown now."""
        return shrunk(pictures, CLOSE_UP_SIDE) if self.are_seen else pictures

    @staticmethod
    def would_be_seen(alpha: FloatArray, *, from_share: float = _CLOSE) -> bool:
        """Whether smaller pictures are right from a frame on.

        Args:
            alpha: float32 [E, h, w], 0..1, of the frame, in the host's memory.
            from_share: The share of the picture from which on one person fills it.
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
        """What a run that goes on has to know: the memory tells, as its size follows from the pictures'."""
        return memory

    def go_on_from(self, memory: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Take over from an earlier run: its pictures were twice as large as the first of what it remembers.

        Returns:
            What the network remembers.
        """
        height, width = self._small.size
        self.are_seen = memory[0].shape[-2:] == (-(-height // 2), -(-width // 2))
        return memory


def largest_share(alpha: npt.NDArray[np.float32]) -> float:
    """The share of the picture covered by the largest connected person.

    Args:
        alpha: float32 [h, w], 0..1.
    """
    return float(people_boxes(alpha)[:, cv2.CC_STAT_AREA].max(initial=0)) / alpha.size


def people_boxes(alpha: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Boxes of connected people: left, top, width, height and area in samples, int32 [N, 5].

    Args:
        alpha: float32 [h, w], 0..1.
    """
    people = (alpha > _PERSON).astype(np.uint8)
    boxes = cv2.connectedComponentsWithStats(people, connectivity=4)[2][1:]
    return boxes.astype(np.int32, copy=False)


def _thickness(alpha: npt.NDArray[np.float32]) -> float:
    """The radius of the largest circle inside the people, as a share of the square root of the picture's area.

    It may reach beyond the picture, where bodies go on. Holes in them count as people: the network loses parts of who
    fills the picture, and they hold things.
    """
    people = (alpha > _PERSON).astype(np.uint8)
    outlines, _ = cv2.findContours(people, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = cv2.drawContours(people, outlines, -1, 1, cv2.FILLED)
    if filled.all():
        return 1.0
    return float(cv2.distanceTransform(filled, cv2.DIST_L2, 5).max()) / float(np.sqrt(alpha.size))
