"""Shows the network the surroundings of people, enlarged: more detail for the same work."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vitascope.config.compute import InferenceSettings
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import as_coefficients, small_alpha
from vitascope.segmentation.matting.levers.cropped import pasted, reaches
from vitascope.segmentation.matting.levers.surroundings import (
    Surroundings,
    cover,
    rim,
    still_fits,
    total_area,
)
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shots import StreamNetwork

_MOST_ENLARGED = 2.0
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class _Plan:
    """The parts that are cropped, and their size for the network."""

    parts: list[Region]
    """In samples of the whole picture at its usual size."""
    windows: list[Region]
    """In luma samples as coded."""
    wanted: NetworkInput
    places: list[Region]
    """The parts in samples of the enlarged whole picture."""
    canvas: tuple[int, int]
    """(height, width) of the enlarged whole picture."""


class Zoomed(Surroundings):
    """Reads parts around people from the full frames, up to twice as large as in the usual picture.

    People are located in the whole picture at the start of a shot, every ``recheck_frames`` frames, and when something
    moves outside the parts. A network with memory keeps one memory for the whole picture and one for the parts. Memory
    of another magnification is useless: when parts move, theirs is reset, with a warm-up as at the start of a shot. So
    parts stay in place while people are well inside.

    Args:
        stream: The network, and how it is shown frames.
        options: How often the whole picture is looked at, and how wide the margin around people is.
        multiple: The sides of pictures are multiples of it, for networks that take any size; None for others.
    """

    def __init__(self, stream: StreamNetwork, options: InferenceSettings, *, multiple: int | None) -> None:
        super().__init__(stream, options)
        self._multiple = multiple
        self._enlarged = stream.shots(looks_ahead=False)
        self._plan: _Plan | None = None
        """None if nobody is there, or if the parts would cover nearly the whole picture."""
        self._restarts = True

    def _watched(self) -> list[Region] | None:
        return None if self._plan is None else self._plan.parts

    def _follow_look(self, boxes: list[Region] | None, *, starts_shot: bool) -> None:
        if boxes is None:
            self._plan = None
            return
        grid = self._wanted.size
        fresh = cover(boxes, margin=self._options.region_margin, grid=grid, multiple=_ALIGNMENT)
        if self._plan is not None and fresh is not None:
            guard = _ALIGNMENT // 2
            enough = still_fits(self._plan.parts, boxes, guard=guard, grid=grid)
            if enough and 2 * total_area(fresh) > total_area(self._plan.parts):
                if starts_shot:
                    self._restarts = True
                return
        self._plan = None if fresh is None else self._planned(fresh)
        self._restarts = True

    def _improved(self, batch: Batch, whole: list[MatteEstimate]) -> list[MatteEstimate]:
        return whole if self._plan is None else self._enlarge(batch, self._plan, whole=whole)

    def _look_closely(self, batch: Batch) -> list[MatteEstimate]:
        assert self._plan is not None  # its parts are watched
        return self._enlarge(batch, self._plan)

    def _enlarge(
        self, batch: Batch, plan: _Plan, *, whole: list[MatteEstimate] | None = None
    ) -> list[MatteEstimate]:
        """Mattes from the parts; from the whole pictures for people who extend beyond their parts."""
        images = self._stream.views.make(batch.frames, plan.wanted, windows=plan.windows)
        changes = [Change(self._restarts), *[Change.SMALL] * (len(batch) - 1)]
        answers = self._enlarged.estimate(replace(batch, images=images, changes=changes))
        self._restarts = False
        mattes = [
            small_alpha(answer, seen, plan.wanted) for answer, seen in zip(answers, images, strict=True)
        ]
        if reaches(mattes, rim(plan.parts, mattes[0].shape[1:], self._wanted.size)):
            self._plan = None  # so that the next look chooses new parts
            return self._look(batch) if whole is None else whole
        self._tally.cropped_frames += len(batch)
        estimates = []
        for answer, seen in zip(answers, images, strict=True):
            kept = as_coefficients(answer, seen, plan.wanted)
            estimates.append(pasted(kept, *self._canvas(plan, kept.size)))
        return estimates

    def _canvas(self, plan: _Plan, size: tuple[int, int]) -> tuple[list[Region], tuple[int, int]]:
        """Return positions of coefficients of a size on the enlarged picture, and the size of that picture.

        A network's mattes may be smaller than its pictures.
        """
        if size == plan.wanted.size:
            return plan.places, plan.canvas
        return _places(plan.parts, self._wanted.size, size)

    def _planned(self, parts: list[Region]) -> _Plan | None:
        grid = self._wanted.size
        part = parts[0]
        windows = self._stream.views.windows(parts, grid)
        native = min(self._stream.eye_size[0] / grid[0], self._stream.eye_size[1] / grid[1])
        factor = min(
            math.sqrt(grid[0] * grid[1] / (part.width * part.height)), _MOST_ENLARGED, max(native, 1.0)
        )
        if self._multiple is None:
            upright = (
                round(part.height * self._stream.eye_size[0] / grid[0]),
                round(part.width * self._stream.eye_size[1] / grid[1]),
            )
            wanted = self._stream.network.input_for(upright)
        else:
            height, width = (
                max(round(side * factor / self._multiple), 1) * self._multiple
                for side in (part.height, part.width)
            )
            wanted = replace(self._wanted, size=(height, width))
        places, canvas = _places(parts, grid, wanted.size)
        return _Plan(parts, windows, wanted, places, canvas)


def _places(
    parts: list[Region], grid: tuple[int, int], size: tuple[int, int]
) -> tuple[list[Region], tuple[int, int]]:
    """Scale parts of a picture of size ``grid`` to ``size`` samples each; also gives the whole picture's size."""
    height, width = size
    down, across = height / parts[0].height, width / parts[0].width
    canvas = max(round(grid[0] * down), height), max(round(grid[1] * across), width)
    places = [
        Region(
            min(round(part.x * across), canvas[1] - width),
            min(round(part.y * down), canvas[0] - height),
            width,
            height,
        )
        for part in parts
    ]
    return places, canvas
