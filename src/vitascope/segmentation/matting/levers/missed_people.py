"""People whom a network misses beside larger ones: it is shown pictures in which these are smaller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.interchange import on_its_way, to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.gpu.kernels.small_matte import BoundedMatte
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch, mirrored
from vitascope.segmentation.matting.estimates import bounded, small_alpha
from vitascope.segmentation.matting.shots import ShotInference, StreamNetwork

_PERSON: Final = 0.5
_LARGE = 0.05
"""The share of the picture from which on a person hides others from the network. This and what follows was chosen on
``several`` and ``crossing`` of the seeds 92, 205, and 111 to 126, and on scenery of 211 to 222, of
``benchmarks/matte_quality``."""
_SHOWN = 0.3
"""The size at which they are shown: at 0.4 fewer of the others are seen in both looks (``crossing`` 112 and 118)."""
_EDGE = 3
"""Samples of the smaller mattes around them that are painted over, too: their hair."""
_PAINT = (120, 30, 10, 3, 1)
"""Samples of the longer side of the grids from which paint is made. Each finds what is further around."""
_FURTHER = 0.01
"""How much a grid counts beside the finer one before it."""
_APART = 0.6
"""The share of somebody that lies outside the paint at least."""
_SMALLER: Final = 4
"""By how much the mattes in which people are told one from another are smaller than the network's pictures."""
_LEAST_SHARE = 0.0011
"""The share of the picture from which on somebody counts."""
_SURE = 0.6
"""The mean of ``|2 alpha - 1|`` inside somebody from which on they are believed."""
_AGREED = 0.7
"""The share of somebody that the other look sees, too: one look alone takes scenery for people more often. Where large
people are painted over, and nobody is left in the picture, it finds somebody in a motorcycle or a wall: so they stay
in it, smaller."""
_MISSED, _STILL_MISSED = 0.5, 0.9
"""The share of somebody that others see below which they are missed; and of one who was missed in the frame behind."""
_LEAST_FRAMES = 4
"""Consecutive frames of a window in which somebody must be missed; all of a shorter one."""
_FRAMES_OF_A_CALL = 8
"""A window is shown in such parts: what the network answers is larger than what is kept of it."""
_MARGIN = 2
"""Around somebody, in samples of the smaller mattes, what was seen beside the large counts, too: their soft edges."""

MISSED_PEOPLE_RULES: Final = (
    "the middle is looked at where nobody large is at the ends",
    (_LARGE, _SHOWN, _EDGE, _PAINT, _FURTHER, _APART, _SMALLER),
    (_LEAST_SHARE, _SURE, _AGREED, _MISSED, _STILL_MISSED, _LEAST_FRAMES, _MARGIN),
)
"""What mattes with those who were missed depend on."""


class MissedPeople:
    """Finds whom a network missed in a window of a shot, beside larger people.

    A network that sees the whole picture tells people by their size among others. A standing man beside a face that
    fills the picture is nobody to it, and is seen at once where that face is no larger than he is. So large people are
    shown smaller, in the window's last and first frame, or in the middle one if nobody large is in these; what is
    around them is painted over the rest of them. Where somebody is seen there who is missing in the mattes, the whole
    window is shown so from its last frame back, and once more in smaller pictures, mirrored. Who is seen in both, for
    several frames, and not in the paint, is taken from the larger ones, with their edges.

    Args:
        stream: The network, which takes pictures of any size.
        wanted: The pictures whose size mattes have.
        other: The smaller ones.
    """

    def __init__(self, stream: StreamNetwork, wanted: NetworkInput, other: NetworkInput) -> None:
        self._stream, self._wanted, self._other = stream, wanted, other

    def judge(self, batch: Batch, estimates: Sequence[MatteEstimate]) -> Callable[[], FloatArray]:
        """Begin to bring to the host what ``complete`` judges by.

        Args:
            batch: Frames of one shot, and their usual pictures.
            estimates: Alpha's coefficients, of the size of ``wanted``.
        """
        alphas = [
            small_alpha(estimates[at], batch.images[at], self._stream.wanted) for at in _judged_at(len(batch))
        ]
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
        at_frames = _judged_at(len(batch))
        is_large = np.reshape([large_people(alpha).any() for alpha in judged], (len(at_frames), -1))
        large = {at for at, eyes in zip(at_frames, is_large, strict=True) if eyes.any()}
        if not large:
            return estimates
        ends = {at_frames[0], at_frames[-1]}
        seen = self._seen_beside_large(batch, estimates, sorted(ends if ends & large else large))
        if not any(one.where.any() for one in seen):
            return estimates
        return [one.put_into(estimate) for one, estimate in zip(reversed(seen), estimates, strict=True)]

    def _seen_beside_large(
        self, batch: Batch, estimates: Sequence[MatteEstimate], first: Sequence[int]
    ) -> list[_Seen]:
        """Who is missed and lasts, from the last frame to the first.

        Args:
            batch: As ``judge`` takes it.
            estimates: Likewise.
            first: Frames that are looked at first; the others are not where nobody is missed in these.
        """
        frames, mattes = batch.frames[::-1], estimates[::-1]
        looked_at = [len(frames) - 1 - at for at in reversed(first)]
        alone, shots, others = (self._stream.shots(looks_ahead=False) for _ in range(3))
        first_look = self._look([frames[at] for at in looked_at], [mattes[at] for at in looked_at], alone)
        if not any(one.where.any() for one in first_look):
            return []
        seen: list[_Seen] = []
        for at in range(0, len(frames), _FRAMES_OF_A_CALL):
            part = slice(at, at + _FRAMES_OF_A_CALL)
            behind = seen[-1].where if seen else None
            seen += self._look(frames[part], mattes[part], shots, others, behind=behind)
        wheres = np.stack([one.where for one in seen], axis=1)
        least = min(_LEAST_FRAMES, len(frames))
        lasts = np.stack([lasting(eye, least) for eye in wheres], axis=1)
        return [replace(one, where=where) for one, where in zip(seen, lasts, strict=True)]

    def _look(
        self,
        frames: Sequence[Frame],
        estimates: Sequence[MatteEstimate],
        shots: ShotInference,
        others: ShotInference | None = None,
        *,
        behind: npt.NDArray[np.bool_] | None = None,
    ) -> list[_Seen]:
        """Who is missed in each frame.

        Args:
            frames: From the last to the first.
            estimates: Their mattes.
            shots: Is shown them.
            others: Is shown them in the smaller pictures; nobody need be seen there where it is omitted.
            behind: Where somebody was missed in the frame behind, as ``_Seen.where``.
        """
        views, (height, width) = self._stream.views, self._wanted.size
        images = views.make(frames, self._wanted)
        their_gain, their_offset = _coefficients(estimates)
        theirs = MatteEstimate(gain=their_gain, offset=their_offset)
        there = small_alpha(theirs, images.reshape(-1, *images.shape[2:]), self._wanted)[:, None]
        del theirs, their_gain, their_offset  # eyes of some frames take hundreds of MB
        large = np.stack([large_people(alpha) for alpha in to_numpy(_smaller(there))[:, 0]])
        painted = np.stack([paint_of(labels) for labels in large])
        gain, offset, said = _shown(shots, frames, images, self._wanted, there, large)
        here = said[:, 1:2]
        told = to_numpy(_smaller(np.concatenate([here, there, said[:, :1]], axis=1)))
        again = told[:, 0]
        if others is not None:
            images = views.make(frames, self._other)
            said = _shown(others, frames, images, self._other, there, large, is_mirrored=True)[2]
            again = to_numpy(resized(said[:, 1:2], told.shape[2:]))[:, 0]
        least_area = _LEAST_SHARE * height * width / _SMALLER**2
        wheres: list[npt.NDArray[np.bool_]] = []
        before: Sequence[npt.NDArray[np.bool_] | None] = (
            [None] * views.eyes if behind is None else list(behind)
        )
        for at, (look, other, paint) in enumerate(zip(told, again, painted, strict=True)):
            # The same eye in the frame behind.
            then = [*before, *wheres][at]
            wheres.append(missed(look[0], look[1], look[2], other, paint, least_area=least_area, behind=then))
        more = here >= there
        eyes_of_frames = (slice(at, at + views.eyes) for at in range(0, len(wheres), views.eyes))
        return [_Seen(gain[at], offset[at], more[at], np.stack(wheres[at])) for at in eyes_of_frames]


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What is seen in a frame whose large people are smaller."""

    gain: Any
    """float32 [E, 1, h, w]."""
    offset: Any
    """Likewise."""
    more: Any
    """bool [E, 1, h, w]: where no less of anybody is seen than in the matte: large ones beside stay as they are
    there."""
    where: npt.NDArray[np.bool_]
    """Who is missed, in the smaller mattes: [E, rows, columns], in the host's memory."""

    def put_into(self, estimate: MatteEstimate) -> MatteEstimate:
        """The frame's matte with those who are missed in it; the same where nobody is."""
        if not self.where.any():
            return estimate
        margins = np.stack([_with_margin(eye) for eye in self.where])[:, None]
        margins = array_module(on_gpu=is_on_gpu(self.gain)).asarray(margins)
        shares = resized(margins, self.gain.shape[2:]) * self.more
        gain, offset = _coefficients([estimate])
        for planes, seen in ((gain, self.gain), (offset, self.offset)):
            planes += shares * (seen - planes)
        return MatteEstimate(gain=gain, offset=offset)


def _judged_at(count: int) -> list[int]:
    """Frames of a window of so many in which large people are looked for."""
    return sorted({0, count // 2, count - 1})


def _shown(
    shots: ShotInference,
    frames: Sequence[Frame],
    images: Any,
    wanted: NetworkInput,
    alphas: Any,
    large: npt.NDArray[np.int32],
    *,
    is_mirrored: bool = False,
) -> BoundedMatte:
    """What a network sees in frames whose large people are shown smaller.

    Args:
        shots: The network.
        frames: N frames.
        images: Their pictures [N, E, ...]; given up.
        wanted: How they were prepared.
        alphas: Their mattes, float32 [N * E, 1, h, w], 0..1, on their device.
        large: Their large people, as ``large_people`` gives them, int32 [N * E, rows, columns].
        is_mirrored: Mirror the pictures, and what is seen back.
    """
    for picture, alpha, labels in zip(images.reshape(-1, *images.shape[2:]), alphas, large, strict=True):
        if labels.any():  # one by one: it takes several times the memory of a picture
            planes = picture if wanted.layout == "NCHW" else np.moveaxis(picture, -1, 0)
            planes[...] = with_smaller_people(planes, alpha, labels)
    if is_mirrored:
        images = mirrored(images, wanted.layout)
    answers = shots.estimate(Batch(frames, images, [False] * len(frames)))
    return bounded(answers, images, wanted, is_mirrored=is_mirrored)


def _coefficients(estimates: Sequence[MatteEstimate]) -> tuple[Any, Any]:
    """Gain and offset of frames, float32 [N * E, 1, h, w], in memory of their own."""
    gains, offsets = [], []
    for one in estimates:
        assert one.gain is not None  # coefficients, by contract
        assert one.offset is not None
        gains.append(one.gain)
        offsets.append(one.offset)
    return np.concatenate(gains), np.concatenate(offsets)


def _smaller(planes: Any) -> Any:
    """Planes [N, C, h, w] in which people are told one from another, on their device."""
    height, width = planes.shape[2:]
    return resized(planes, (ceil(height / _SMALLER), ceil(width / _SMALLER)))


def large_people(alpha: FloatArray) -> npt.NDArray[np.int32]:
    """People who hide others from the network: 1 where the first is, 2 where the second is; 0 where nobody is.

    Args:
        alpha: float32 [h, w], 0..1.

    Returns:
        int32 [h, w].
    """
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(
        (alpha > _PERSON).astype(np.uint8), connectivity=4
    )
    numbers = np.zeros(count, np.int32)
    is_large = boxes[1:, cv2.CC_STAT_AREA] >= _LARGE * alpha.size
    numbers[1:][is_large] = np.arange(1, is_large.sum() + 1)
    people: npt.NDArray[np.int32] = numbers[labels]
    return people


def paint_of(large: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Where the picture is another one once large people are shown smaller.

    Args:
        large: As ``large_people`` gives it, int32 [rows, columns].

    Returns:
        bool [rows, columns]: where large people are or are shown, and a little around.
    """
    paint = (large > 0).astype(np.uint8)
    for label in range(1, large.max() + 1):
        _, place = _places(large == label, large.shape)
        paint[place] = 1  # who is bent around something is shown upon it
    side = 2 * _EDGE + 1
    return cv2.dilate(paint, np.ones((side, side), np.uint8)) > 0


def _places(
    inside: npt.NDArray[np.bool_], size: tuple[int, int]
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Rows and columns of somebody in a picture of a size, and those where they are shown, in the middle of these."""
    own, shown = [], []
    for axis, (samples, whole) in enumerate(zip(inside.shape, size, strict=True)):
        there = np.flatnonzero(inside.any(axis=1 - axis))
        first, end = int(there[0]) * whole // samples, ceil((int(there[-1]) + 1) * whole / samples)
        length = max(round((end - first) * _SHOWN), 1)
        own.append(slice(first, end))
        begin = first + (end - first - length) // 2
        shown.append(slice(begin, begin + length))
    return (own[0], own[1]), (shown[0], shown[1])


def with_smaller_people(picture: Any, alpha: Any, large: npt.NDArray[np.int32]) -> Any:
    """A picture in which large people are shown smaller, and what is around them where they were.

    Args:
        picture: float16 or float32 [3, h, w], on its device.
        alpha: float32 [1, rows, columns], 0..1, on the same device.
        large: As ``large_people`` gives it, in any size.

    Returns:
        Of its dtype, on its device.
    """
    arrays = array_module(on_gpu=is_on_gpu(picture))
    size = picture.shape[1:]
    alpha = resized(alpha[None], size)
    shown = painted_over(picture[None], paint_of(large)[None])[0].astype(np.float32)
    for label in range(1, large.max() + 1):
        inside = large == label
        (rows, columns), (upright, across) = _places(inside, size)
        opacity = resized(arrays.asarray(inside[None, None].astype(np.float32)), size) * alpha
        opacity = opacity[..., rows, columns]
        person = np.concatenate([picture[None, :, rows, columns] * opacity, opacity], axis=1)
        person = resized(person, (upright.stop - upright.start, across.stop - across.start))[0]
        place = shown[:, upright, across]
        place *= 1 - person[3:]
        place += person[:3]
    return shown.astype(picture.dtype)


def painted_over(pictures: Any, where: npt.NDArray[np.bool_]) -> Any:
    """Pictures in which some places show what is around them, the nearest most.

    Args:
        pictures: float16 or float32 [N, 3, h, w], on their device.
        where: bool [N, rows, columns], of a coarser grid over the picture.

    Returns:
        Of their dtype, on their device.
    """
    arrays = array_module(on_gpu=is_on_gpu(pictures))
    size = height, width = pictures.shape[2:]
    kept = 1 - resized(arrays.asarray(where[:, None].astype(np.float32)), size)
    kept *= kept > 0.999  # between the grid's samples
    known = np.concatenate([pictures.astype(np.float32) * kept, kept], axis=1)
    grids: list[Any] = []
    for samples in _PAINT:
        step = max(height, width) / samples
        # Of all of the picture one sample is the mean of the grid before: a GPU shrinks a row 1000 times at most.
        finer = known if samples > 1 else grids[-1]
        grids.append(resized(finer, (max(round(height / step), 1), max(round(width / step), 1))))
    around = grids.pop()
    for finer in reversed(grids):
        around = finer + np.float32(_FURTHER) * resized(around, finer.shape[2:])
    around = resized(around, size)
    paint = around[:, :3] / (around[:, 3:] + np.float32(1e-12))
    soft = resized(resized(kept, (ceil(height / 4), ceil(width / 4))), size) * kept
    painted = known[:, :3] * soft + paint * (1 - soft)
    return painted.astype(pictures.dtype)


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
    again: FloatArray,
    painted: npt.NDArray[np.bool_],
    *,
    least_area: float,
    behind: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.bool_]:
    """Where somebody is who is missed elsewhere.

    Args:
        here: float32 [h, w], 0..1, alpha of a picture in which large people are smaller.
        there: Alpha of the whole picture.
        sure: How sure the first is, ``|2 alpha - 1|``.
        again: Alpha of another look at the same.
        painted: bool [h, w], where paint is.
        least_area: Samples from which on somebody counts.
        behind: As returned for the frame behind.
    """
    people = (here > _PERSON).astype(np.uint8)
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(people, connectivity=8)
    where = np.zeros(here.shape, bool)
    for label in range(1, count):
        inside = (labels == label) & ~painted
        area = int(inside.sum())
        if area < least_area or area < _APART * boxes[label, cv2.CC_STAT_AREA]:
            continue
        most = _STILL_MISSED if behind is not None and behind[inside].mean() > _PERSON else _MISSED
        is_there = sure[inside].mean() >= _SURE and (again[inside] > _PERSON).mean() >= _AGREED
        if is_there and (there[inside] > _PERSON).mean() < most:
            where |= inside
    return where


def _with_margin(where: npt.NDArray[np.bool_]) -> FloatArray:
    """Weights float32 [h, w], 0..1: 1 there and around, fading out beyond."""
    side = 2 * _MARGIN + 1
    grown = cv2.dilate(where.astype(np.float32), np.ones((side, side)))
    return cv2.blur(grown, (3, 3)).astype(np.float32, copy=False)
