"""People's surroundings instead of whole pictures: decides when the network sees which."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vitascope.config.compute import InferenceSettings
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import MatteEstimate
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import empty_estimate, small_alpha
from vitascope.segmentation.matting.levers.boxes import largest_change_outside, people_boxes
from vitascope.segmentation.matting.shots import StreamNetwork

MOTION = 0.04
"""Change of a tile outside people's parts, in shares of full scale, after which somebody may have come in: ten levels
of 255 over a tile of 16 x 16 samples."""


class Surroundings(ABC):
    """Looks at the whole picture when that is due, and at parts around people in between.

    The picture is looked at as a whole at the start of a shot, every ``recheck_frames`` frames, and when something
    moves outside the parts. Where nobody was seen, nothing is asked of the network until then.

    Args:
        stream: The network, and how it is shown frames.
        options: How often the whole picture is looked at, and how wide the margin around people is.
    """

    def __init__(self, stream: StreamNetwork, options: InferenceSettings) -> None:
        self._stream, self._options = stream, options
        self._wanted, self._tally = stream.wanted, stream.tally
        self._shots = stream.shots()
        """The network over whole pictures."""
        self._looks = _Looks(stream.wanted.size, options.recheck_frames)
        self._nobody = False

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames."""
        estimates: list[MatteEstimate] = []
        while (at := len(estimates)) < len(batch):
            parts = self._watched()
            if self._looks.is_due(batch, at, parts):
                first = batch.take([at])
                estimates += self._improved(first, self._look(first))
                continue
            stretch = batch.take(range(at, self._looks.stretch_end(batch, at, parts)))
            self._looks.passed(len(stretch))
            if self._nobody:
                self._tally.empty_frames += len(stretch)
                estimates += [empty_estimate(images, self._wanted) for images in stretch.images]
            elif parts is None:
                estimates += self._shots.estimate(stretch)
            else:
                estimates += self._look_closely(stretch)
        return estimates

    def _look(self, batch: Batch) -> list[MatteEstimate]:
        """The whole picture, and from its last matte where to look next."""
        estimates = self._shots.estimate(batch)
        self._looks.looked(batch)
        boxes = people_boxes(to_numpy(small_alpha(estimates[-1], batch.images[-1], self._wanted)))
        self._nobody = boxes is None
        self._follow_look(boxes, starts_shot=bool(batch.starts_shot[-1]))
        return estimates

    @abstractmethod
    def _watched(self) -> list[Region] | None:
        """The parts that are requested, one for each eye; None: the whole picture, or nothing as nobody is there."""

    @abstractmethod
    def _follow_look(self, boxes: list[Region] | None, *, starts_shot: bool) -> None:
        """Choose parts by where a look at the whole picture saw people: boxes, one for each eye; None: nobody."""

    @abstractmethod
    def _look_closely(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes by the parts, of frames of which no look at the whole picture is due."""

    def _improved(self, batch: Batch, whole: list[MatteEstimate]) -> list[MatteEstimate]:
        """The matte of a frame that was seen whole; unchanged unless a lever does more."""
        del batch
        return whole


class _Looks:
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

    def looked(self, batch: Batch) -> None:
        """The last of these frames was looked at whole."""
        assert batch.tiles is not None  # made for every lever that wants them
        self._since, self._reference = 0, batch.tiles[-1]

    def passed(self, frames: int) -> None:
        """So many more frames are dealt with."""
        if self._since is not None:
            self._since += frames

    def is_due(self, batch: Batch, index: int, parts: Sequence[Region] | None) -> bool:
        """True where a frame has to be looked at whole.

        Args:
            batch: Consecutive frames.
            index: Which of them.
            parts: What is looked at of the others, one for each eye; None: nothing, or everything.
        """
        if self._since is None or self._reference is None or batch.starts_shot[index]:
            return True
        assert batch.tiles is not None  # made for every lever that wants them
        # The look itself was at a frame, so that of ``recheck_frames`` frames one is looked at whole.
        if self._since + 1 >= self._recheck_frames:
            return True
        return largest_change_outside(self._reference, batch.tiles[index], parts, self._grid) > MOTION

    def stretch_end(self, batch: Batch, first: int, parts: Sequence[Region] | None) -> int:
        """One past the last frame, from ``first`` on, for which no look is due."""
        assert self._since is not None  # ``first`` is not due
        last = min(len(batch), first + self._recheck_frames - 1 - self._since)
        for index in range(first + 1, last):
            if self.is_due(batch, index, parts):
                return index
        return max(last, first + 1)
