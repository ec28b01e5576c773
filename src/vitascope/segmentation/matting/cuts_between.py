"""Cuts of a video of which the network sees some frames only: they are looked for in all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.kernels.color import yuv_from_rgb
from vitascope.gpu.kernels.region import Region
from vitascope.segmentation.matting.batch import tiles_size
from vitascope.segmentation.matting.scene_cuts import SceneCutDetector

_SAMPLES_A_TILE = 16
"""Along each side: as many as the network's picture has, about."""


class CutsBetween:
    """Gives every so many frames of a stream, once it is known of each whether a shot began since the one before.

    The detector is fitted to consecutive frames. Shown every third one alone it missed a cut in ten of
    ``benchmarks/shot_quality``, and whoever stood where somebody else had stood got their number.

    Iterated once, by one thread; another may ask ``starts_shot``.

    Args:
        frames: All of them, on the CPU.
        step: How many to go on by.
        eye: The part of a frame that is looked at.
        threshold: As of ``SceneCutDetector``.
    """

    def __init__(self, frames: Iterable[Frame], step: int, *, eye: Region, threshold: float) -> None:
        self._frames, self._step, self._eye = frames, step, eye
        self._detector = SceneCutDetector(threshold)
        self._starts: dict[int, bool] = {}

    def __iter__(self) -> Iterator[Frame]:
        """The frames, with those after them looked at as far as that takes."""
        waiting: deque[Frame | None] = deque()  # None for one that is skipped
        began = False

        def settled(decided: list[bool]) -> Iterator[Frame]:
            nonlocal began
            for starts in decided:
                frame, began = waiting.popleft(), began or starts
                if frame is not None:
                    self._starts[frame.index], began = began, False
                    yield frame

        for number, frame in enumerate(self._frames):
            waiting.append(None if number % self._step else frame)
            for decided in self._detector.see(_grey_tiles(frame, self._eye)):
                yield from settled(decided)
        yield from settled(self._detector.finish())

    def starts_shot(self, frame: Frame) -> bool:
        """True where a shot began since the frame that was given before this one; asked once of each."""
        return self._starts.pop(frame.index)


def _grey_tiles(frame: Frame, eye: Region) -> npt.NDArray[np.float32]:
    """Means of tiles as ``tile_means`` gives them, but grey, and of some samples of each tile: it knows no colours.

    Args:
        frame: On the CPU.
        eye: What is looked at, as coded.

    Returns:
        float32 [1, 3, rows, columns], 0..1.
    """
    size = tiles_size(*eye.size)
    stride = max(min(eye.height // size[0], eye.width // size[1]) // _SAMPLES_A_TILE, 1)
    luma = frame.planes[0][eye.rows, eye.columns][::stride, ::stride]
    codes = cv2.resize(np.ascontiguousarray(luma), size[::-1], interpolation=cv2.INTER_AREA)
    matrix, offset = yuv_from_rgb(frame.color, frame.format)
    grey = (codes.astype(np.float32) - np.float32(offset[0])) / np.float32(matrix[0].sum())
    return np.broadcast_to(np.clip(grey, 0, 1), (1, 3, *size))
