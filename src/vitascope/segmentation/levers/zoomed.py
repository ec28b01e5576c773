"""People's surroundings enlarged: the same work for the network, and more of every person."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation.levers.alpha import as_coefficients, empty_estimate, small_alpha
from vitascope.segmentation.levers.boxes import cover, people_boxes, rim, still_fits
from vitascope.segmentation.levers.cropped import pasted, reaches
from vitascope.segmentation.levers.looks import Looks
from vitascope.segmentation.levers.options import Tally
from vitascope.segmentation.levers.pictures import Pictures, RunShots, Views
from vitascope.segmentation.levers.whole import Whole
from vitascope.segmentation.shots import ShotInference

__all__ = ["Zoomed"]

_MOST_ENLARGED = 2.0
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is cut out, and how large the network sees it."""

    parts: list[Region]
    """In samples of the whole picture at its usual size."""
    windows: list[Region]
    """In luma samples as coded."""
    wanted: NetworkInput
    places: list[Region]
    """The parts in samples of the enlarged whole picture."""
    canvas: tuple[int, int]
    """(height, width) of the enlarged whole picture."""


class Zoomed:
    """Reads parts around people from the full frames, up to twice as large as in the usual picture.

    Where people are is seen in the whole picture, at the start of a shot, every ``recheck_frames`` frames, and when
    something moves outside the parts; a network with memory keeps one for the whole picture and one for the parts.
    Features of another magnification are no memory to go on from: when parts move, theirs begins anew, warm-up
    included, as at the start of a shot. So parts stay where they are while people are well inside.

    Args:
        network: Any.
        run: Shows pictures to a network.
        views: Reads parts of frames.
        wanted: What the network is shown of a whole eye.
        multiple: Of the sides of pictures, for networks that take any size; None for others.
        eye_size: (height, width) of an eye, upright.
        margin: Added to each side of people's box, as a share of its size.
        recheck_frames: Frames from one look at the whole picture to the next.
        warm_up_frames: See ``ShotInference``.
        with_foreground: Keep the foreground's planes, where the network gives them.
        tally: Told what the network saw.
    """

    def __init__(
        self,
        network: MattingNetwork,
        run: RunShots,
        views: Views,
        *,
        wanted: NetworkInput,
        multiple: int | None,
        eye_size: tuple[int, int],
        margin: float,
        recheck_frames: int,
        warm_up_frames: int,
        with_foreground: bool,
        tally: Tally,
    ) -> None:
        self._network, self._run, self._views = network, run, views
        self._wanted, self._multiple, self._eye_size = wanted, multiple, eye_size
        self._margin, self._with_foreground = margin, with_foreground
        self._whole = Whole(run, ShotInference(network, warm_up_frames=warm_up_frames), tally=tally)
        self._enlarged = ShotInference(network, warm_up_frames=warm_up_frames)
        self._tally = tally
        self._looks = Looks(wanted.size, recheck_frames)
        self._plan: _Plan | None = None
        """None: nobody is there, or hardly less than the whole picture would do."""
        self._nobody = False
        self._restarts = True

    def estimate(self, pictures: Pictures) -> list[MatteEstimate]:
        """Mattes of the next frames."""
        estimates: list[MatteEstimate] = []
        while (at := len(estimates)) < len(pictures):
            parts = None if self._plan is None else self._plan.parts
            if self._looks.is_due(pictures, at, parts):
                first = pictures.take([at])
                seen = self._look(first)
                estimates += seen if self._plan is None else self._enlarge(first, self._plan, whole=seen)
                continue
            stretch = pictures.take(range(at, self._looks.stretch_end(pictures, at, parts)))
            self._looks.passed(len(stretch))
            if self._nobody:
                self._tally.empty_frames += len(stretch)
                estimates += [empty_estimate(images, self._wanted) for images in stretch.images]
            elif self._plan is None:
                estimates += self._whole.estimate(stretch)
            else:
                estimates += self._enlarge(stretch, self._plan)
        return estimates

    def _look(self, pictures: Pictures) -> list[MatteEstimate]:
        """The whole picture, and from its last matte where to look closely."""
        estimates = self._whole.estimate(pictures)
        self._looks.looked(pictures)
        boxes = people_boxes(to_numpy(small_alpha(estimates[-1], pictures.images[-1], self._wanted)))
        self._nobody = boxes is None
        if boxes is None:
            self._plan = None
            return estimates
        grid = self._wanted.size
        fresh = cover(boxes, margin=self._margin, grid=grid, multiple=_ALIGNMENT)
        if self._plan is not None and fresh is not None:
            guard = _ALIGNMENT // 2
            enough = still_fits(self._plan.parts, boxes, guard=guard, grid=grid)
            if enough and 2 * _area(fresh) > _area(self._plan.parts):
                if pictures.starts_shot[-1]:
                    self._restarts = True
                return estimates
        self._plan = None if fresh is None else self._planned(fresh)
        self._restarts = True
        return estimates

    def _enlarge(
        self, pictures: Pictures, plan: _Plan, *, whole: list[MatteEstimate] | None = None
    ) -> list[MatteEstimate]:
        """Mattes of the parts; of the whole pictures where they show that somebody reaches out of theirs."""
        images = self._views.make(pictures.frames, plan.wanted, windows=plan.windows)
        starts = [self._restarts, *[False] * (len(pictures) - 1)]
        self._tally.samples += int(images.size) // 3
        answers = self._run(self._enlarged, images, starts)
        self._restarts = False
        mattes = [
            small_alpha(answer, seen, plan.wanted) for answer, seen in zip(answers, images, strict=True)
        ]
        if reaches(mattes, rim(plan.parts, mattes[0].shape[1:], self._wanted.size)):
            self._plan = None  # so that the next look cuts anew
            return self._look(pictures) if whole is None else whole
        self._tally.cropped_frames += len(pictures)
        estimates = []
        for answer, seen in zip(answers, images, strict=True):
            kept = as_coefficients(answer, seen, plan.wanted, with_foreground=self._with_foreground)
            estimates.append(pasted(kept, *self._canvas(plan, kept.size)))
        return estimates

    def _canvas(self, plan: _Plan, size: tuple[int, int]) -> tuple[list[Region], tuple[int, int]]:
        """Where coefficients of a size lie on the enlarged picture, and that one's size.

        A network's mattes may be smaller than its pictures.
        """
        if size == plan.wanted.size:
            return plan.places, plan.canvas
        return _places(plan.parts, self._wanted.size, size)

    def _planned(self, parts: list[Region]) -> _Plan | None:
        grid = self._wanted.size
        part = parts[0]
        windows = self._views.windows(parts, grid)
        native = min(self._eye_size[0] / grid[0], self._eye_size[1] / grid[1])
        factor = min(
            math.sqrt(grid[0] * grid[1] / (part.width * part.height)), _MOST_ENLARGED, max(native, 1.0)
        )
        if self._multiple is None:
            upright = (
                round(part.height * self._eye_size[0] / grid[0]),
                round(part.width * self._eye_size[1] / grid[1]),
            )
            wanted = self._network.input_for(upright)
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
    """Parts of a picture of size ``grid`` where each has ``size`` samples, and the whole picture's size then."""
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


def _area(parts: list[Region]) -> int:
    return sum(part.width * part.height for part in parts)
