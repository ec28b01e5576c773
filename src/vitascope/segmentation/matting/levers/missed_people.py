"""People whom a network misses beside larger ones: what lies beside these is shown to it by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.interchange import on_its_way, to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.close_ups import people_boxes
from vitascope.segmentation.matting.estimates import bounded, small_alpha
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
_STEP = 0.1
"""Spans begin and end at multiples of it, as a share of the longer side, in whole blocks: an engine opens a network
once for each size."""
_BLOCK: Final = 32
"""Samples of which a network's pictures are made."""
_SMALLER: Final = 4
"""By how much the mattes in which people are told one from another are smaller than the network's pictures."""
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
_MARGIN = 2
"""Around somebody, in samples of the smaller mattes, what was seen beside the large counts, too: their soft edges."""

MISSED_PEOPLE_RULES: Final = (
    (_LARGE, _LEAST_WIDTH, _REACH, _STEP, _BLOCK, _SMALLER),
    (_LEAST_SHARE, _SURE, _MISSED, _STILL_MISSED, _LEAST_FRAMES, _MARGIN),
)
"""What mattes with those who were missed depend on."""


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
        self._step = max(round(max(wanted.size) * _STEP / _BLOCK), 1) * _BLOCK // _SMALLER

    def judge(self, batch: Batch, estimates: Sequence[MatteEstimate]) -> Callable[[], FloatArray]:
        """Begin to bring to the host what ``complete`` judges by.

        Args:
            batch: Frames of one shot, and their usual pictures.
            estimates: Alpha's coefficients, of the size of ``wanted``.
        """
        looked = sorted({0, len(batch) // 2, len(batch) - 1})
        alphas = [small_alpha(estimates[at], batch.images[at], self._stream.wanted) for at in looked]
        return on_its_way(_smaller(np.concatenate(alphas)[:, None])[:, 0])

    def complete(
        self, batch: Batch, estimates: list[MatteEstimate], judged: FloatArray
    ) -> list[MatteEstimate]:
        """Mattes of a window with those who were missed in them; the same list where nobody was.

        Args:
            batch: As ``judge`` takes it.
            estimates: Likewise.
            judged: What came of it.
        """
        completed = estimates
        for first, end in spans_beside_large(judged, step=self._step):
            # The last block may be a part of one.
            span = first * _SMALLER, min(end * _SMALLER, self._wanted.size[1])
            seen = self._seen_beside(batch, estimates, span)
            if seen is not None:
                completed = seen.put_into(completed)
        return completed

    def _seen_beside(
        self, batch: Batch, estimates: Sequence[MatteEstimate], span: tuple[int, int]
    ) -> _Seen | None:
        """Who is missed in these columns; None where nobody is in the first and the last frame, or nobody lasts."""
        shots = self._stream.shots(looks_ahead=False)
        frames, mattes = batch.frames[::-1], estimates[::-1]
        behind = None
        for at in (0, len(frames) - 1):
            behind = self._look(frames[at : at + 1], mattes[at : at + 1], shots, span).where[-1]
            if behind.any():
                break
        else:
            return None
        parts: list[_Seen] = []
        for at in range(0, len(frames), _FRAMES_OF_A_CALL):
            part = slice(at, at + _FRAMES_OF_A_CALL)
            parts.append(self._look(frames[part], mattes[part], shots, span, behind=behind))
            behind = parts[-1].where[-1]
        wheres = np.concatenate([part.where for part in parts])
        least = min(_LEAST_FRAMES, len(frames))
        where = np.stack([lasting(eye, least) for eye in wheres.swapaxes(0, 1)], axis=1)
        if not where.any():
            return None
        return _Seen(
            span,
            gain=np.concatenate([part.gain for part in parts]),
            offset=np.concatenate([part.offset for part in parts]),
            more=np.concatenate([part.more for part in parts]),
            where=where,
        )

    def _look(
        self,
        frames: Sequence[Frame],
        estimates: Sequence[MatteEstimate],
        shots: ShotInference,
        span: tuple[int, int],
        *,
        behind: npt.NDArray[np.bool_] | None = None,
    ) -> _Seen:
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
        gain, offset, said = bounded(answers, images, wanted)
        their_gain, their_offset = _coefficients(estimates, slice(*span))
        theirs = MatteEstimate(gain=their_gain, offset=their_offset)
        here = said[:, 1:2]
        there = small_alpha(theirs, images.reshape(-1, *images.shape[2:]), wanted)[:, None]
        told = to_numpy(_smaller(np.concatenate([here, there, said[:, :1]], axis=1)))
        inner = span[0] > 0, span[1] < width
        least_area = _LEAST_SHARE * height * width / _SMALLER**2
        wheres = []
        for eyes in told.reshape(len(frames), views.eyes, *told.shape[1:]):
            before = [None] * len(eyes) if behind is None else behind
            behind = np.stack(
                [
                    missed(eye[0], eye[1], eye[2], inner, least_area=least_area, behind=one)
                    for eye, one in zip(eyes, before, strict=True)
                ]
            )
            wheres.append(behind)
        return _Seen(span, gain, offset, here >= there, np.stack(wheres))


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What is seen in some columns of N frames, from the last to the first."""

    span: tuple[int, int]
    gain: Any
    """float32 [N * E, 1, h, w], of the columns."""
    offset: Any
    more: Any
    """bool [N * E, 1, h, w]: where no less of anybody is seen than in the matte: large ones beside stay as they are
    there."""
    where: npt.NDArray[np.bool_]
    """Who is missed, in the smaller mattes: [N, E, rows, columns], in the host's memory."""

    def put_into(self, estimates: Sequence[MatteEstimate]) -> list[MatteEstimate]:
        """Mattes of these frames, from the first to the last, with those who are missed in them."""
        margins = np.stack([_with_margin(eye) for frame in self.where for eye in frame])[:, None]
        margins = array_module(on_gpu=is_on_gpu(self.gain)).asarray(margins)
        shares = resized(margins, self.gain.shape[2:]) * self.more
        gain, offset = _coefficients(estimates[::-1])
        for planes, seen in ((gain, self.gain), (offset, self.offset)):
            columns = planes[..., slice(*self.span)]
            columns += shares * (seen - columns)
        eyes = self.where.shape[1]
        firsts = range(0, len(gain), eyes)
        return [
            MatteEstimate(gain=gain[at : at + eyes], offset=offset[at : at + eyes]) for at in reversed(firsts)
        ]


def _coefficients(estimates: Sequence[MatteEstimate], columns: slice = slice(None)) -> tuple[Any, Any]:
    """Gain and offset of frames in some columns, float32 [N * E, 1, h, w], in memory of their own."""
    gains, offsets = [], []
    for one in estimates:
        assert one.gain is not None  # coefficients, by contract
        assert one.offset is not None
        gains.append(one.gain[..., columns])
        offsets.append(one.offset[..., columns])
    return np.concatenate(gains), np.concatenate(offsets)


def _smaller(planes: Any) -> Any:
    """Planes [N, C, h, w] in which people are told one from another, on their device."""
    height, width = planes.shape[2:]
    return resized(planes, (ceil(height / _SMALLER), ceil(width / _SMALLER)))


def spans_beside_large(alphas: FloatArray, *, step: int) -> list[tuple[int, int]]:
    """Columns in which nobody large is in any of some mattes; none where nobody large is at all.

    Args:
        alphas: float32 [N, h, w], 0..1.
        step: Columns; spans begin and end at multiples of it, or with the picture.

    Returns:
        Of each span the first column and the one behind the last.
    """
    height, width = alphas.shape[1:]
    taken = np.zeros(width, bool)
    for alpha in alphas:
        for left, _, columns, _, area in people_boxes(alpha):
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
            first = ceil((left - reach) / step) * step
        if right < width:
            reach = min(_REACH * longer, (edges[at + 2] - right) / 2)
            end = floor((right + reach) / step) * step
        if end - first >= _LEAST_WIDTH * longer:  # in small pictures little may be left between the steps
            spans.append((first, end))
    return spans


def lasting(wheres: npt.NDArray[np.bool_], least: int) -> npt.NDArray[np.bool_]:
    """Who is in at least so many consecutive frames: somebody is who overlaps them in the frame beside.

    Args:
        wheres: bool [N, h, w] of consecutive frames.
        least: Frames.
    """

    def ages(frames: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
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
        return np.stack(found)

    return ages(wheres) + ages(wheres[::-1])[::-1] > least


def missed(
    here: FloatArray,
    there: FloatArray,
    sure: FloatArray,
    inner: tuple[bool, bool],
    *,
    least_area: float,
    behind: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.bool_]:
    """Where somebody is who is missed elsewhere.

    Args:
        here: float32 [h, w], 0..1, alpha of columns that were shown by themselves.
        there: Alpha of the same columns, of the whole picture.
        sure: How sure they are by themselves, ``|2 alpha - 1|``.
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
        if not is_cut and sure[inside].mean() >= _SURE and (there[inside] > _PERSON).mean() < most:
            where |= inside
    return where


def _with_margin(where: npt.NDArray[np.bool_]) -> FloatArray:
    """Weights float32 [h, w], 0..1: 1 there and around, fading out beyond."""
    side = 2 * _MARGIN + 1
    grown = cv2.dilate(where.astype(np.float32), np.ones((side, side)))
    return cv2.blur(grown, (3, 3)).astype(np.float32, copy=False)
