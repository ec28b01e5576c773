"""People whom a network misses beside larger ones: what lies beside these is shown to it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
_REACH = 0.07
"""How far a span reaches into the large ones beside it, as a share of the longer side: others stand close to them."""
_STEP: Final = 32
"""Spans begin and end at multiples of it, in samples: an engine opens a network once for each size."""
_LEAST_SHARE = 0.002
"""The share of the picture from which on somebody counts."""
_SURE = 0.75
"""The mean of ``|2 alpha - 1|`` inside somebody from which on they are believed."""
_MISSED, _STILL_MISSED = 0.5, 0.9
"""The share of somebody that others see below which they are missed; and of one who was missed in the frame behind."""
_LEAST_FRAMES = 0.5
"""The share of a window's frames in which somebody must be missed."""
_FRAMES_OF_A_CALL = 8
"""A window is shown in such parts: what the network answers is larger than what is kept of it."""
_MARGIN = 9
"""Around somebody, in samples, what was seen beside the large counts, too: their soft edges."""


class MissedPeople:
    """Finds whom a network missed in a window of a shot, beside larger people.

    A network that sees the whole picture tells people by their size among others. A standing man beside two faces that
    fill the picture is nobody to it, and is seen at once where the columns without them are shown by themselves. So
    these are looked at in the window's first and last frame. Where somebody is seen there who is missing in the mattes,
    the whole window is shown from its last frame back, and they are taken from it, with their edges. Somebody at an
    inner side of the columns may be a part of a larger one, and is left out.

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
            if sum(one.misses_anybody for one in seen) >= max(_LEAST_FRAMES * len(batch), 1):
                completed = [
                    found.put_into(one) if found.misses_anybody else one
                    for one, found in zip(completed, seen, strict=True)
                ]
        return completed

    def _seen_beside(
        self, batch: Batch, estimates: Sequence[MatteEstimate], span: tuple[int, int]
    ) -> list[_Seen]:
        """Who is missed in these columns, frame by frame; empty where it is nobody in the first and in the last."""
        shots = self._stream.shots(looks_ahead=False)
        last = len(batch) - 1
        seen = self._look([batch.frames[last]], [estimates[last]], shots, span)
        if not seen[0].misses_anybody:
            alone = self._stream.shots(looks_ahead=False)
            if last == 0 or not self._look(batch.frames[:1], estimates[:1], alone, span)[0].misses_anybody:
                return []
        for end in range(last, 0, -_FRAMES_OF_A_CALL):
            back = range(end - 1, max(end - _FRAMES_OF_A_CALL, 0) - 1, -1)
            frames = [batch.frames[at] for at in back]
            seen += self._look(frames, [estimates[at] for at in back], shots, span, behind=seen[-1].where)
        return seen[::-1]

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
                    missed(one, other, inner, None if behind is None else behind[eye])
                    for eye, (one, other) in enumerate(zip(here, there, strict=True))
                ]
            )
            seen.append(_Seen(span, gain, offset, behind))
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

    @property
    def misses_anybody(self) -> bool:
        """Whether somebody is missed in the frame's matte."""
        return bool(self.where.any())

    def put_into(self, estimate: MatteEstimate) -> MatteEstimate:
        """A matte with those who are missed in it."""
        assert estimate.gain is not None  # coefficients, by contract
        assert estimate.offset is not None
        across = np.s_[..., self.span[0] : self.span[1]]
        share = np.stack([_with_margin(eye) for eye in self.where])[:, None]
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
    edges = np.flatnonzero(np.diff(np.concatenate([[True], taken, [True]])))
    longer = max(height, width)
    spans = []
    for left, right in edges.reshape(-1, 2).tolist():
        if right - left < _LEAST_WIDTH * longer:
            continue
        first = max(round(left - _REACH * longer), 0) if left else 0
        end = min(round(right + _REACH * longer), width) if right < width else width
        spans.append((first // _STEP * _STEP, min(-(-end // _STEP) * _STEP, width)))
    return spans


def missed(
    here: FloatArray,
    there: FloatArray,
    inner: tuple[bool, bool],
    behind: npt.NDArray[np.bool_] | None,
) -> npt.NDArray[np.bool_]:
    """Where somebody is who is missed elsewhere.

    Args:
        here: float32 [h, w], 0..1, alpha of columns that were shown by themselves.
        there: Alpha of the same columns, of the whole picture.
        inner: Whether more of the picture lies to the left, and to the right.
        behind: As returned for the frame behind.
    """
    people = (here > _PERSON).astype(np.uint8)
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(people, connectivity=8)
    where = np.zeros(here.shape, bool)
    for label in range(1, count):
        left, _, columns, _, area = boxes[label]
        if area < _LEAST_SHARE * here.shape[0] ** 2:
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
