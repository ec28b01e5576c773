"""Shows the network only the surroundings of people, at the usual resolution, which is faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.config.compute import InferenceSettings
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import MatteEstimate, NetworkInput, SpatialState
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import as_coefficients, small_alpha
from vitascope.segmentation.matting.levers.surroundings import (
    VISIBLE,
    Surroundings,
    cover,
    people_boxes,
    rim,
    still_fits,
    total_area,
)
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shots import StreamNetwork


class Cropped(Surroundings):
    """Crops the network's pictures to parts around people, without resampling, and runs the network on those.

    The network sees the whole picture at the start of a shot, every ``recheck_frames`` frames, and when something moves
    outside the parts. If a matte reaches the edge of its part, it is discarded and the frames are run whole, so that
    nobody is cut off.

    A recurrent network's memory is spatial. Parts begin at multiples of the coarsest level's step, so that a part's
    memory is a slice of the whole picture's: it is cut out before the call and written back after. Nothing is
    resampled, and memory is not reset when parts move.

    Args:
        stream: The network, which takes pictures of any size, and how it is shown frames.
        options: How often the whole picture is looked at, and how wide the margin around people is.
        multiple: The sides of parts are multiples of it.
    """

    def __init__(self, stream: StreamNetwork, options: InferenceSettings, *, multiple: int) -> None:
        super().__init__(stream, options)
        self._multiple = multiple
        self._parts: list[Region] | None = None
        """None while the whole picture is run."""

    def _watched(self) -> list[Region] | None:
        return self._parts

    def _follow_look(self, boxes: list[Region] | None, *, starts_shot: bool) -> None:
        del starts_shot  # a part's memory is a slice of the whole picture's, which is reset already
        self._parts = None if boxes is None else self._cover(boxes)

    def _look_closely(self, batch: Batch) -> list[MatteEstimate]:
        parts = self._parts
        assert parts is not None  # only called with parts
        images = _cut(batch.images, parts, self._wanted)
        whole = self._shots.state
        state = whole.window(parts) if isinstance(whole, SpatialState) else whole
        shots = self._stream.shots(state=state)
        answers = shots.estimate(replace(batch, images=images, changes=[Change.SMALL] * len(batch)))
        mattes = [
            small_alpha(answer, seen, self._wanted) for answer, seen in zip(answers, images, strict=True)
        ]
        if reaches(mattes, rim(parts, mattes[0].shape[1:], self._wanted.size)):
            return self._look(batch)
        if isinstance(whole, SpatialState) and isinstance(state, SpatialState):
            whole.put(parts, state)
        self._tally.cropped_frames += len(batch)
        self._follow(mattes[-1], parts)
        return [
            pasted(
                as_coefficients(answer, seen, self._wanted),
                parts,
                self._wanted.size,
            )
            for answer, seen in zip(answers, images, strict=True)
        ]

    def _follow(self, alpha: Any, parts: list[Region]) -> None:
        """Keep the parts while people are well inside them and they are not far too large; else choose new ones."""
        boxes = people_boxes(to_numpy(alpha))
        if boxes is None:
            self._nobody = True
            return
        boxes = [
            Region(box.x + part.x, box.y + part.y, box.width, box.height)
            for box, part in zip(boxes, parts, strict=True)
        ]
        fresh = self._cover(boxes)
        kept = still_fits(parts, boxes, guard=self._multiple // 2, grid=self._wanted.size)
        if not kept or fresh is None or 2 * total_area(fresh) < total_area(parts):
            self._parts = fresh

    def _cover(self, boxes: list[Region]) -> list[Region] | None:
        return cover(
            boxes, margin=self._options.region_margin, grid=self._wanted.size, multiple=self._multiple
        )


def pasted(estimate: MatteEstimate, parts: list[Region], size: tuple[int, int]) -> MatteEstimate:
    """Paste coefficients of parts into whole pictures that are empty elsewhere.

    Args:
        estimate: gain and offset of the parts.
        parts: Their places in samples of the result, of the estimate's size.
        size: (height, width) of the result.
    """
    assert estimate.gain is not None
    assert estimate.offset is not None
    arrays = array_module(on_gpu=is_on_gpu(estimate.gain))
    whole = []
    for planes in (estimate.gain, estimate.offset):
        canvas = arrays.zeros((*planes.shape[:2], *size), planes.dtype)
        for eye, (own, part) in enumerate(zip(planes, parts, strict=True)):
            canvas[eye, :, part.rows, part.columns] = own
        whole.append(canvas)
    return MatteEstimate(gain=whole[0], offset=whole[1])


def reaches(mattes: list[Any], where: npt.NDArray[np.bool_]) -> bool:
    """True if any of the mattes [E, h, w] shows a person at the samples in ``where`` [E, h, w]."""
    arrays = array_module(on_gpu=is_on_gpu(mattes[0]))
    mask = arrays.asarray(where)
    return any(bool(seen) for seen in to_numpy(arrays.stack([(m * mask).max() for m in mattes])) > VISIBLE)


def _cut(images: Any, parts: list[Region], wanted: NetworkInput) -> Any:
    """Crop pictures [T, E, ...] to the parts, one for each eye; contiguous."""
    arrays = array_module(on_gpu=is_on_gpu(images))
    if wanted.layout == "NCHW":
        eyes = [images[:, eye, :, part.rows, part.columns] for eye, part in enumerate(parts)]
    else:
        eyes = [images[:, eye, part.rows, part.columns] for eye, part in enumerate(parts)]
    return arrays.stack(eyes, axis=1)
