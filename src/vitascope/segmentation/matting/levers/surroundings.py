"""Decides when the network sees the surroundings of people instead of the whole picture, and where these are.

Boxes enclose mattes; the parts of a picture that are cropped for them are larger.
"""

from __future__ import annotations

import math
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
from vitascope.segmentation.matting.shots import StreamNetwork

FloatArray = npt.NDArray[np.float32]

MOTION = 0.04
"""Minimum change of a tile outside the parts, as a share of full scale, that may be a person entering: ten
levels of 255 over a tile of 16 x 16 samples."""


class Surroundings(ABC):
    """Runs the whole picture when due, and the parts around people in between.

    The whole picture is run at the start of a shot, every ``recheck_frames`` frames, and when something moves outside
    the parts. If nobody was found, the network does not run in between.

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
        """Run the whole picture, and choose the next parts from its last matte."""
        estimates = self._shots.estimate(batch)
        self._looks.looked(batch)
        boxes = people_boxes(to_numpy(small_alpha(estimates[-1], batch.images[-1], self._wanted)))
        self._nobody = boxes is None
        self._follow_look(boxes, starts_shot=bool(batch.starts_shot[-1]))
        return estimates

    @abstractmethod
    def _watched(self) -> list[Region] | None:
        """The current parts, one for each eye; None if the whole picture is run, or nothing, as nobody is there."""

    @abstractmethod
    def _follow_look(self, boxes: list[Region] | None, *, starts_shot: bool) -> None:
        """Choose parts from the people found in a whole picture: boxes, one for each eye; None if nobody was found."""

    @abstractmethod
    def _look_closely(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes from the parts, for frames that need no look at the whole picture."""

    def _improved(self, batch: Batch, whole: list[MatteEstimate]) -> list[MatteEstimate]:
        """The mattes of frames that were run whole; unchanged unless a lever improves them."""
        del batch
        return whole


class _Looks:
    """Remembers the last look at the whole picture.

    Args:
        grid: (height, width) of the network's picture, in samples of which parts are given.
        recheck_frames: Maximum frames from one look to the next.
    """

    def __init__(self, grid: tuple[int, int], recheck_frames: int) -> None:
        self._grid = grid
        self._recheck_frames = recheck_frames
        self._since: int | None = None
        """Frames since the last look; None before the first."""
        self._reference: npt.NDArray[np.float32] | None = None

    def looked(self, batch: Batch) -> None:
        """Note that the last of these frames was run whole."""
        assert batch.tiles is not None  # made for every lever that wants them
        self._since, self._reference = 0, batch.tiles[-1]

    def passed(self, frames: int) -> None:
        """Note that more frames were run."""
        if self._since is not None:
            self._since += frames

    def is_due(self, batch: Batch, index: int, parts: Sequence[Region] | None) -> bool:
        """True if a frame must be matted whole.

        Args:
            batch: Consecutive frames.
            index: Which of them.
            parts: The current parts, one for each eye; None if nothing or everything is run.
        """
        if self._since is None or self._reference is None or batch.starts_shot[index]:
            return True
        assert batch.tiles is not None  # made for every lever that wants them
        # The look counts as a frame, too, so that one in ``recheck_frames`` frames is run whole.
        if self._since + 1 >= self._recheck_frames:
            return True
        return largest_change_outside(self._reference, batch.tiles[index], parts, self._grid) > MOTION

    def stretch_end(self, batch: Batch, first: int, parts: Sequence[Region] | None) -> int:
        """The first frame after ``first`` that must be matted whole."""
        assert self._since is not None  # ``first`` is not due
        last = min(len(batch), first + self._recheck_frames - 1 - self._since)
        for index in range(first + 1, last):
            if self.is_due(batch, index, parts):
                return index
        return max(last, first + 1)


VISIBLE = 0.1
"""Alpha from which a sample counts as a person's: hair and motion blur are below one half."""
# Parts come in few sizes, because engines prepare for each size.
_SIZE_STEPS = 8
_WORTH_CUTTING = 0.8


def people_boxes(alpha: FloatArray) -> list[Region] | None:
    """Find a box around all people for each eye, of the same rows, because both eyes see the same heights.

    Args:
        alpha: float32 [E, h, w], 0..1.

    Returns:
        In samples; None if nobody is there.
    """
    seen = alpha > VISIBLE
    rows = np.flatnonzero(seen.any(axis=(0, 2)))
    if rows.size == 0:
        return None
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    boxes = []
    for eye in seen:
        columns = np.flatnonzero(eye.any(axis=0))
        if columns.size == 0:  # only the other eye sees them: use the whole width until this one does
            boxes.append(Region(0, top, seen.shape[2], bottom - top))
        else:
            boxes.append(Region(int(columns[0]), top, int(columns[-1]) + 1 - int(columns[0]), bottom - top))
    return boxes


def cover(
    boxes: Sequence[Region], *, margin: float, grid: tuple[int, int], multiple: int
) -> list[Region] | None:
    """Choose parts that hold the boxes and a margin, of the same size and rows in every eye.

    Args:
        boxes: One for each eye, of the same rows.
        margin: Added on each side, as a share of the box, and at least ``multiple`` samples.
        grid: (height, width) of the picture.
        multiple: Parts begin at multiples of it, and end at multiples or at the picture's edge.

    Returns:
        In samples of the grid; None if they would cover nearly the whole picture.
    """
    height, width = grid
    box = boxes[0]
    top, bottom = _widened(box.y, box.height, margin, multiple)
    y, part_height = _aligned(top, bottom - top, height, multiple)
    spans = [_widened(box.x, box.width, margin, multiple) for box in boxes]
    widest = max(right - left for left, right in spans)
    # One width for all eyes: the narrower box keeps its middle.
    middles = [(left + right) / 2 for left, right in spans]
    aligned = [_aligned(math.floor(middle - widest / 2), widest, width, multiple) for middle in middles]
    part_width = max(length for _, length in aligned)
    parts = []
    for x, length in aligned:
        if length < part_width:
            x = min(x, max(width - part_width, 0) // multiple * multiple)
        parts.append(Region(x, y, min(part_width, width - x), part_height))
    if len({part.width for part in parts}) > 1:
        return None
    share = parts[0].width * part_height / (width * height)
    return parts if share <= _WORTH_CUTTING else None


def still_fits(
    parts: Sequence[Region], boxes: Sequence[Region], *, guard: int, grid: tuple[int, int]
) -> bool:
    """True while the boxes keep a distance from their parts' edges, except at the picture's own.

    Args:
        parts: The current parts, one for each eye.
        boxes: Where people are now.
        guard: The distance, in samples.
        grid: (height, width) of the picture.
    """
    height, width = grid
    for part, box in zip(parts, boxes, strict=True):
        left = part.x == 0 or box.x >= part.x + guard
        top = part.y == 0 or box.y >= part.y + guard
        right_edge, bottom_edge = part.x + part.width, part.y + part.height
        right = right_edge == width or box.x + box.width <= right_edge - guard
        bottom = bottom_edge == height or box.y + box.height <= bottom_edge - guard
        if not (left and top and right and bottom):
            return False
    return True


def total_area(parts: Sequence[Region]) -> int:
    """Samples of all parts together."""
    return sum(part.width * part.height for part in parts)


def rim(parts: Sequence[Region], size: tuple[int, int], grid: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """The samples where a person would be cut off: the outermost of each part, except those at the picture's own edge.

    Args:
        parts: One for each eye.
        size: (height, width) of the parts' mattes, which may be larger or smaller than the parts.
        grid: (height, width) of the picture, in samples of which the parts are given.

    Returns:
        bool [E, *size].
    """
    mask = np.zeros((len(parts), *size), np.bool_)
    for eye, part in zip(mask, parts, strict=True):
        eye[0] |= part.y > 0
        eye[-1] |= part.y + part.height < grid[0]
        eye[:, 0] |= part.x > 0
        eye[:, -1] |= part.x + part.width < grid[1]
    return mask


def largest_change_outside(
    before: FloatArray, now: FloatArray, parts: Sequence[Region] | None, grid: tuple[int, int]
) -> float:
    """Measure the largest change of any tile that is not wholly inside its eye's part.

    Args:
        before: float32 [3 E, rows, columns]: ``tile_means`` of an earlier frame.
        now: The same of this frame.
        parts: One for each eye; None if everything is outside.
        grid: (height, width) of the picture, in samples of which the parts are given.

    Returns:
        In shares of full scale, the mean over R, G and B; 0 where nothing is outside.
    """
    rows, columns = now.shape[-2:]
    change = np.abs(now - before).reshape(-1, 3, rows, columns).mean(axis=1)
    if parts is not None:
        for eye, part in zip(change, parts, strict=True):
            top, bottom = _tiles_inside(part.y, part.height, rows, grid[0])
            left, right = _tiles_inside(part.x, part.width, columns, grid[1])
            eye[top:bottom, left:right] = 0.0
    return float(change.max())


def _tiles_inside(start: int, length: int, tiles: int, samples: int) -> tuple[int, int]:
    return math.ceil(start * tiles / samples), math.floor((start + length) * tiles / samples)


def _widened(start: int, length: int, margin: float, least: int) -> tuple[int, int]:
    more = max(round(length * margin), least)
    return start - more, start + length + more


def _aligned(start: int, length: int, whole: int, multiple: int) -> tuple[int, int]:
    """Move start and length to multiples inside ``whole``, with one of few lengths."""
    step = max(math.ceil(whole / _SIZE_STEPS / multiple), 1) * multiple
    length = min(math.ceil(min(length, whole) / step) * step, whole)
    start = min(max(start, 0), whole - length) // multiple * multiple
    # If the picture's side is not a multiple, the last part extends to the edge.
    return (start, whole - start) if whole - (start + length) < multiple else (start, length)
