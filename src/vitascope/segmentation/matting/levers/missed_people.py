"""People whom a network misses beside larger ones: what lies beside these is shown to it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import as_coefficients, bounded, small_alpha, small_grey
from vitascope.segmentation.matting.shots import ShotInference, StreamNetwork

_PERSON: Final = 0.5
_LARGE = 0.05
"""The share of the picture from which on a person hides others from the network. This and what follows was chosen on
``several`` of the seeds 92 and 205 of ``benchmarks/matte_quality``."""
_LEAST_WIDTH = 0.12
"""The width of columns without anybody large, as a share of the picture's longer side: narrower ones are left out."""
_REACH = 0.09
"""How far a span reaches into the large ones beside it at most, as a share of the longer side: others stand close to
them. No further than their middle: whoever is shown whole hides others again."""
_STEP: Final = 32
"""Spans begin and end at multiples of it, in samples: an engine opens a network once for each size."""
_LEAST_SHARE = 0.0011
"""The share of the picture from which on somebody counts."""
_SURE = 0.75
"""The mean of ``|2 alpha - 1|`` inside somebody from which on they are believed."""
_MISSED, _STILL_MISSED = 0.5, 0.9
"""The share of somebody that others see below which they are missed; and of one who was missed in the frame behind."""
_LEAST_FRAMES = 6
"""Consecutive frames of a window in which somebody must be missed; all of a shorter one."""
_FRAMES_OF_A_CALL = 8
"""A window is shown in such parts: what the network answers is larger than what is kept of it."""
_MARGIN = 9
"""Around somebody, in samples, what was seen beside the large counts, too: their soft edges."""


class MissedPeople:
    """Finds whom a network missed in a window of a shot, beside larger people.

    A network that sees the whole picture tells people by their size among others. A standing man beside two faces that
    fill the picture is nobody to it, and is seen at once where the columns without them are shown by themselves. So
    these are looked at in the window's last and first frame. Where somebody is seen there who is missing in the mattes,
    the whole window is shown from its last frame back, and they are taken from it, with their edges, if they last.
    Somebody at an inner side of the columns may be a part of a larger one, and is left out.

    Args:
        stream: The network, which takes pictures of any size.
        wanted: The pictures whose size mattes have.
    """

    def __init__(self, stream: StreamNetwork, wanted: NetworkInput) -> None:
        self._stream, self._wanted = stream, wanted

    def complete(self, batch: Batch, estimates: Sequence[MatteEstimate]) -> list[MatteEstimate]:
        """Mattes of a window with those who were missed in them.

        Args:
            batch: Frames of one shot, and their usual pictures.
            estimates: Alpha's coefficients, of the size of ``wanted``.
        """
        completed = list(estimates)
        looked = sorted({0, len(batch) // 2, len(batch) - 1})
        alphas = [
            to_numpy(small_alpha(estimates[at], batch.images[at], self._stream.wanted)) for at in looked
        ]
        for span in spans_beside_large(np.concatenate(alphas)):
            seen = self._seen_beside(batch, estimates, span)
            if seen:
                completed = [one.put_into(matte) for one, matte in zip(seen, completed, strict=True)]
        return completed

    def _seen_beside(
        self, batch: Batch, estimates: Sequence[MatteEstimate], span: tuple[int, int]
    ) -> list[_Seen]:
        """Who is missed in these columns, frame by frame; empty where it is nobody in the first and in the last."""
        shots = self._stream.shots(looks_ahead=False)
        behind = None
        for at in (len(batch) - 1, 0):
            behind = self._look(batch.frames[at : at + 1], estimates[at : at + 1], shots, span)[0].where
            if behind.any():
                break
        else:
            return []
        seen: list[_Seen] = []
        for end in range(len(batch), 0, -_FRAMES_OF_A_CALL):
            back = range(end - 1, max(end - _FRAMES_OF_A_CALL, 0) - 1, -1)
            frames = [batch.frames[at] for at in back]
            seen += self._look(frames, [estimates[at] for at in back], shots, span, behind=behind)
            behind = seen[-1].where
        seen.reverse()
        least = min(_LEAST_FRAMES, len(batch))
        eyes = [lasting([one.where[eye] for one in seen], least) for eye in range(len(seen[0].where))]
        return [replace(one, where=np.stack(wheres)) for one, *wheres in zip(seen, *eyes, strict=True)]

    def _look(
        self,
        frames: Sequence[Frame],
        estimates: Sequence[MatteEstimate],
        shots: ShotInference,
        span: tuple[int, int],
        *,
        behind: npt.NDArray[np.bool_] | None = None,
    ) -> list[_Seen]:
        """Who is missed in each frame.

        Args:
            frames: From the last to the first.
            estimates: Their mattes.
            shots: Is shown them.
            span: Columns, from the first up to another.
            behind: Where somebody was missed in the frame behind.
        """
        views, (height, width) = self._stream.views, self._wanted.size
        wanted = replace(self._wanted, size=(height, span[1] - span[0]))
        part = Region(span[0], 0, span[1] - span[0], height)
        windows = views.windows([part] * views.eyes, self._wanted.size)
        images = views.make(frames, wanted, windows=windows)
        answers = shots.estimate(Batch(frames, images, [False] * len(frames)))
        inner = span[0] > 0, span[1] < width
        seen = []
        for answer, shown, estimate in zip(answers, images, estimates, strict=True):
            gain, offset = bounded(as_coefficients(answer, shown, wanted), shown, wanted)
            grey = small_grey(answer, shown, wanted)
            assert estimate.gain is not None  # coefficients, by contract
            assert estimate.offset is not None
            across = np.s_[:, -1, :, span[0] : span[1]]
            here = to_numpy(gain[:, -1] * grey + offset[:, -1])
            there = to_numpy((estimate.gain[across] * grey + estimate.offset[across]).clip(0.0, 1.0))
            behind = np.stack(
                [
                    missed(
                        one,
                        other,
                        inner,
                        least_area=_LEAST_SHARE * height * width,
                        behind=None if behind is None else behind[eye],
                    )
                    for eye, (one, other) in enumerate(zip(here, there, strict=True))
                ]
            )
            seen.append(_Seen(span, gain, offset, behind, here >= there))
        return seen


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What is seen in some columns of a frame."""

    span: tuple[int, int]
    gain: Any
    """float32 [E, 1, h, w], of the columns."""
    offset: Any
    where: npt.NDArray[np.bool_]
    """[E, h, w]: who is missed."""
    more: npt.NDArray[np.bool_]
    """[E, h, w]: where no less of anybody is seen than in the matte: large ones beside stay as they are there."""

    def put_into(self, estimate: MatteEstimate) -> MatteEstimate:
        """A matte with those who are missed in it."""
        if not self.where.any():
            return estimate
        assert estimate.gain is not None  # coefficients, by contract
        assert estimate.offset is not None
        across = np.s_[..., self.span[0] : self.span[1]]
        share = (np.stack([_with_margin(eye) for eye in self.where]) * self.more)[:, None]
        share = array_module(on_gpu=is_on_gpu(self.gain)).asarray(share)
        gain, offset = estimate.gain.copy(), estimate.offset.copy()
        gain[across] += share * (self.gain - gain[across])
        offset[across] += share * (self.offset - offset[across])
        return MatteEstimate(gain=gain, offset=offset)


def spans_beside_large(alphas: FloatArray) -> list[tuple[int, int]]:
    """Columns in which nobody large is in any of some mattes; none where nobody large is at all.

    Args:
        alphas: float32 [N, h, w], 0..1.

    Returns:
        Of each span the first column and the one behind the last.
    """
    height, width = alphas.shape[1:]
    taken = np.zeros(width, bool)
    for alpha in alphas:
        _, _, boxes, _ = cv2.connectedComponentsWithStats((alpha > _PERSON).astype(np.uint8), connectivity=4)
        for left, _, columns, _, area in boxes[1:]:
            if area >= _LARGE * alpha.size:
                taken[left : left + columns] = True
    if not taken.any():
        return []
    # Where the picture begins, columns change, and it ends.
    edges = [0, *(np.flatnonzero(np.diff(taken)) + 1).tolist(), width]
    longer, spans = max(height, width), []
    for at, (left, right) in enumerate(pairwise(edges)):
        if taken[left] or right - left < _LEAST_WIDTH * longer:
            continue
        first, end = left, right
        if left > 0:
            reach = min(_REACH * longer, (left - edges[at - 1]) / 2)
            first = ceil((left - reach) / _STEP) * _STEP
        if right < width:
            reach = min(_REACH * longer, (edges[at + 2] - right) / 2)
            end = floor((right + reach) / _STEP) * _STEP
        if end - first >= _LEAST_WIDTH * longer:  # in small pictures little may be left between the steps
            spans.append((first, end))
    return spans


def lasting(wheres: Sequence[npt.NDArray[np.bool_]], least: int) -> list[npt.NDArray[np.bool_]]:
    """Who is in at least so many consecutive frames: somebody is who overlaps them in the frame beside.

    Args:
        wheres: bool [h, w] of consecutive frames.
        least: Frames.
    """

    def ages(frames: Sequence[npt.NDArray[np.bool_]]) -> list[npt.NDArray[np.int32]]:
        """In how many frames up to each one somebody is, at their places; 0 elsewhere."""
        before, found = np.zeros(frames[0].shape, np.int32), []
        for where in frames:
            count, labels = cv2.connectedComponents(where.astype(np.uint8), connectivity=8)
            age = np.zeros_like(before)
            for label in range(1, count):
                inside = labels == label
                age[inside] = 1 + before[inside].max()
            found.append(age)
            before = age
        return found

    behind = ages(wheres[::-1])[::-1]
    return [one + other > least for one, other in zip(ages(wheres), behind, strict=True)]


def missed(
    here: FloatArray,
    there: FloatArray,
    inner: tuple[bool, bool],
    *,
    least_area: float,
    behind: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.bool_]:
    """Where somebody is who is missed elsewhere.

    Args:
        here: float32 [h, w], 0..1, alpha of columns that were shown by themselves.
        there: Alpha of the same columns, of the whole picture.
        inner: Whether more of the picture lies to the left, and to the right.
        least_area: Samples from which on somebody counts.
        behind: As returned for the frame behind.
    """
    people = (here > _PERSON).astype(np.uint8)
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(people, connectivity=8)
    where = np.zeros(here.shape, bool)
    for label in range(1, count):
        left, _, columns, _, area = boxes[label]
        if area < least_area:
            continue
        is_cut = (inner[0] and left == 0) or (inner[1] and left + columns == here.shape[1])
        inside = labels == label
        most = _STILL_MISSED if behind is not None and behind[inside].mean() > _PERSON else _MISSED
        is_sure = abs(2 * here[inside] - 1).mean() >= _SURE
        if not is_cut and is_sure and (there[inside] > _PERSON).mean() < most:
            where |= inside
    return where


def _with_margin(where: npt.NDArray[np.bool_]) -> FloatArray:
    """Weights float32 [h, w], 0..1: 1 there and around, fading out beyond."""
    side = 2 * _MARGIN + 1
    grown = cv2.dilate(where.astype(np.float32), np.ones((side, side)))
    return cv2.blur(grown, (_MARGIN, _MARGIN)).astype(np.float32, copy=False)
