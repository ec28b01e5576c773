"""Finds cuts in all frames of a video of which the network sees only some."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.kernels.color import yuv_from_rgb
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.segmentation.matting.batch import tiles_size
from vitascope.segmentation.matting.scene_cuts import Change, SceneCutDetector

_SAMPLES_A_TILE = 16
"""Samples along each side of a tile: about as many as in the network's picture."""
_FRAMES_A_COPY = 8
"""Frames whose tiles are copied from a GPU at once: the host waits for each copy."""


class CutsBetween:
    """Yields every ``step``-th frame of a stream, once it is known whether a shot began since the previous one.

    The detector is tuned on consecutive frames. With only every third frame it missed a cut in ten of
    ``benchmarks/shot_quality``, and people inherited the number of somebody who had stood in the same place.

    Iterate once, on one thread; ``change`` may be called on another.

    Args:
        frames: All frames, on either device.
        step: Distance between the frames that are yielded.
        eye: The part of a frame that is examined.
        threshold: See ``SceneCutDetector``.
    """

    def __init__(self, frames: Iterable[Frame], step: int, *, eye: Region, threshold: float) -> None:
        self._frames, self._step, self._eye = frames, step, eye
        self._detector = SceneCutDetector(threshold)
        self._changes: dict[int, Change] = {}
        self._size = tiles_size(*eye.size)
        self._stream: Any = None

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames; later ones are read ahead as far as the decision needs."""
        waiting: deque[Frame | None] = deque()  # None for one that is skipped
        began = False

        def settled(decided: list[Change]) -> Iterator[Frame]:
            nonlocal began
            for change in decided:
                frame, began = waiting.popleft(), began or change.starts_shot
                if frame is not None:
                    self._changes[frame.index], began = Change(began), False
                    yield frame

        numbers = count()
        for frames in self._groups():
            decided: list[list[Change]] = []
            for is_gpu, together in groupby(frames, _is_on_gpu):
                look = self._tiles_on_gpu if is_gpu else self._grey_tiles
                decided += self._detector.see(look(list(together)))
            waiting.extend(None if next(numbers) % self._step else frame for frame in frames)
            frames.clear()  # frees the GPU memory of skipped frames
            for some in decided:
                yield from settled(some)
        yield from settled(self._detector.finish())

    def change(self, frame: Frame) -> Change:
        """``NEW_SHOT`` if a shot began since the frame yielded before this one; call once for each frame."""
        return self._changes.pop(frame.index)

    def _groups(self) -> Iterator[list[Frame]]:
        """Group frames; one by one on the CPU, so that none is kept longer than needed."""
        group: list[Frame] = []
        for frame in self._frames:
            group.append(frame)
            if len(group) == _FRAMES_A_COPY or not _is_on_gpu(frame):
                yield group
                group = []
        if group:
            yield group

    def _grey_tiles(self, frames: Sequence[Frame]) -> npt.NDArray[np.float32]:
        """Tile means like ``tile_means``, but grey and from a subset of each tile's samples.

        Args:
            frames: On the CPU.

        Returns:
            float32 [T, 3, rows, columns], 0..1.
        """
        eye, size = self._eye, self._size
        stride = max(min(eye.height // size[0], eye.width // size[1]) // _SAMPLES_A_TILE, 1)
        tiles = np.empty((len(frames), 1, *size), np.float32)
        for tile, frame in zip(tiles, frames, strict=True):
            luma = frame.planes[0][eye.rows, eye.columns][::stride, ::stride]
            codes = cv2.resize(np.ascontiguousarray(luma), size[::-1], interpolation=cv2.INTER_AREA)
            matrix, offset = yuv_from_rgb(frame.color, frame.format)
            tile[0] = (codes.astype(np.float32) - np.float32(offset[0])) / np.float32(matrix[0].sum())
        return np.broadcast_to(np.clip(tiles, 0, 1), (len(frames), 3, *size))

    def _tiles_on_gpu(self, frames: Sequence[Frame]) -> npt.NDArray[np.float32]:
        """Tile means in colour, computed on the frames' GPU; the frames may be freed after it."""
        import cupy

        plane: Any = frames[0].planes[0]
        with plane.device:
            if self._stream is None:
                self._stream = cupy.cuda.Stream(non_blocking=True)
            with self._stream:
                tiles = cupy.empty((len(frames), 3, *self._size), np.float32)
                for tile, frame in zip(tiles, frames, strict=True):
                    preprocess(frame, regions=[self._eye], size=self._size, out=tile[None])
                found: npt.NDArray[np.float32] = tiles.get()
        return found


def _is_on_gpu(frame: Frame) -> bool:
    return is_on_gpu(frame.planes[0])
