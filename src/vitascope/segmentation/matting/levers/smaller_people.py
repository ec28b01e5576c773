"""Pictures in which large people are smaller: they show a network whom it misses beside these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.gpu.kernels.small_matte import BoundedMatte
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch, mirrored
from vitascope.segmentation.matting.estimates import COARSER, bounded, coarse, small_alpha
from vitascope.segmentation.matting.shots import ShotInference, Views

_PERSON: Final = 0.5
_LARGE = 0.05
"""The share of the picture from which on a person hides others from the network. This and what follows was chosen on
``several`` and ``crossing`` of the seeds 92, 205, and 111 to 126, and on scenery of 211 to 222, of
``benchmarks/matte_quality``."""
_SHOWN = 0.3
"""The size at which they are shown: at 0.4 fewer of the others are seen (``crossing`` 112 and 118)."""
_EDGE = 3
"""Samples of the coarse mattes around them that are painted over, too: their hair."""
_PAINT = (120, 30, 10, 3, 1)
"""Samples of the longer side of the grids from which paint is made. Each finds what is further around."""
_FURTHER = 0.01
"""How much a grid counts beside the finer one before it."""
_APART = 0.6
"""The share of somebody that lies outside the paint at least."""
_LEAST_SHARE = 0.0011
"""The share of the picture from which on somebody counts."""
_SURE = 0.6
"""The mean of ``|2 alpha - 1|`` inside somebody, over all frames, from which on they are believed: of people who are
there it is 0.63 and more, of a motorcycle or a wall 0.58 at most. Where large people are painted over, and nobody is
left in the picture, the network is surer of these: so they stay in it, smaller."""
_SURE_AROUND, _AROUND = 0.7, 9
"""That mean around a sample, over so many to a side, from which on the sample is of somebody, or from that of all of
them in the frame: scenery that hangs together with them is not."""
_MISSED, _STILL_MISSED = 0.5, 0.9
"""The share of somebody that others see below which they are missed; and of one who was missed in the frame behind."""
_LEAST_FRAMES = 4
"""Frames of a window in which somebody must be missed; all of a shorter one."""
_PICTURES_OF_A_CALL = 4
"""Pictures are painted over in such parts: it takes several times their memory."""
_MARGIN = 2
"""Around somebody, in samples of the coarse mattes, what was seen beside the large counts, too: their soft edges."""
_LESS, _LOST = 0.5, 5
"""Where the larger look sees so much less alpha of somebody than the smaller one, in so many samples of the coarse
mattes to a side, this one counts: where less are less, edges are finer."""
_AGREED = 0.7
"""The share of somebody in the larger look that the smaller one must see for all of them to be taken."""

SMALLER_PEOPLE_RULES: Final = (
    "they are found in the smaller pictures, by how sure a window is of them, or by two looks of one size",
    (_LARGE, _SHOWN, _EDGE, _PAINT, _FURTHER, _APART, COARSER),
    (
        _LEAST_SHARE,
        _SURE,
        _SURE_AROUND,
        _AROUND,
        _MISSED,
        _STILL_MISSED,
        _LEAST_FRAMES,
        _MARGIN,
        _LESS,
        _LOST,
        _AGREED,
    ),
)
"""What mattes with those who were missed depend on."""


class SmallerPeople:
    """Shows a network frames whose large people are smaller, and tells who is missed in their mattes.

    Args:
        views: Makes the network's pictures.
        wanted: The pictures whose size mattes have.
        smaller: Those that are shown.
    """

    def __init__(self, views: Views, wanted: NetworkInput, smaller: NetworkInput) -> None:
        self._views, self._wanted, self._shown = views, wanted, smaller

    @property
    def are_small(self) -> bool:
        """False where the pictures are as large as mattes: more of a body is not to be seen in them."""
        return self._shown.size != self._wanted.size

    def seen(
        self,
        shots: ShotInference,
        frames: Sequence[Frame],
        alphas: Any,
        *,
        is_mirrored: bool = True,
    ) -> list[Seen]:
        """What is seen in consecutive frames, in either order.

        Args:
            shots: Is shown them.
            frames: Few enough for a call.
            alphas: Alpha of their mattes, as ``alpha_of`` gives it.
            is_mirrored: Whether the pictures are mirrored.
        """
        there = to_numpy(coarse(alphas))[:, 0]
        large = np.stack([large_people(alpha) for alpha in there])
        images = self._views.make(frames, self._shown)
        gain, offset, said = shown_smaller(
            shots, frames, images, self._shown, alphas, large, is_mirrored=is_mirrored
        )
        alpha = to_numpy(resized(said[:, 1:2], there.shape[1:]))[:, 0]
        paint = np.stack([paint_of(labels) for labels in large])
        eyes_of_frames = (
            slice(first, first + self._views.eyes) for first in range(0, len(large), self._views.eyes)
        )
        return [
            Seen(gain[eyes], offset[eyes], large[eyes], CoarseLook(alpha[eyes], there[eyes], paint[eyes]))
            for eyes in eyes_of_frames
        ]

    def missed(self, seen: Sequence[CoarseLook]) -> npt.NDArray[np.bool_]:
        """Who is missed in consecutive frames, in either order: bool [N, E, rows, columns]."""
        height, width = self._wanted.size
        alphas, theres, paints = (np.stack(planes, axis=1) for planes in zip(*seen, strict=True))
        least_area = _LEAST_SHARE * height * width / COARSER**2
        of_eyes = zip(alphas, theres, paints, strict=True)
        return np.stack([missed(*of_eye, least_area=least_area) for of_eye in of_eyes], axis=1)

    def alpha_of(self, estimates: Sequence[MatteEstimate], images: Any) -> Any:
        """Alpha of frames, float32 [N * E, 1, h, w], 0..1, on their device; ``images`` are as large."""
        gain, offset = _coefficients(estimates)
        together = MatteEstimate(gain=gain, offset=offset)
        return small_alpha(together, images.reshape(-1, *images.shape[2:]), self._wanted)[:, None]


class CoarseLook(NamedTuple):
    """By what it is judged who is missed in a frame: [E, rows, columns], in the host's memory."""

    alpha: FloatArray
    """Alpha 0..1 as it is seen where large people are smaller."""
    there: FloatArray
    """Alpha of the frame's matte."""
    paint: npt.NDArray[np.bool_]
    """Where the picture is another one."""

    def agreed(self, other: CoarseLook) -> CoarseLook:
        """Who is seen in both."""
        return self._replace(alpha=np.minimum(self.alpha, other.alpha))


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What is seen in a frame whose large people are smaller."""

    gain: Any
    """Alpha's coefficients, float32 [E, 1, h, w], on their device."""
    offset: Any
    """Likewise."""
    large: npt.NDArray[np.int32]
    """Its large people, as ``large_people`` gives them, [E, rows, columns]."""
    coarse: CoarseLook

    def put_into(
        self,
        estimate: MatteEstimate,
        where: npt.NDArray[np.bool_],
        larger: BoundedMatte,
        shown: FloatArray,
        there: Any,
    ) -> MatteEstimate:
        """The frame's matte with those who are missed in it, from the larger pictures where these show them.

        Args:
            estimate: The matte.
            where: Who is missed, [E, rows, columns].
            larger: What is seen of the same in the larger pictures, whose size the matte has.
            shown: Its alpha, coarse, [E, rows, columns].
            there: The matte's alpha, float32 [E, 1, h, w].
        """
        lost = ((self.coarse.alpha - shown) / np.float32(_LESS)).clip(0.0, 1.0)
        lost = np.stack([cv2.morphologyEx(eye, cv2.MORPH_OPEN, np.ones((_LOST, _LOST))) for eye in lost])
        less = _enlarged(lost, there)
        own = self._at_size(there)
        mixed = (
            one + less * (other - one)
            for one, other in zip((larger.gain, larger.offset, larger.said[:, 1:2]), own, strict=True)
        )
        return self._put(estimate, where, shown, there, *mixed)

    def put_alone_into(
        self, estimate: MatteEstimate, where: npt.NDArray[np.bool_], there: Any
    ) -> MatteEstimate:
        """The frame's matte with those who are missed in it, as these pictures show them.

        Args:
            estimate: As ``put_into`` takes it.
            where: Likewise.
            there: Likewise.
        """
        return self._put(estimate, where, self.coarse.alpha, there, *self._at_size(there))

    def _at_size(self, there: Any) -> tuple[Any, Any, Any]:
        """Gain, offset and alpha, float32 [E, 1, h, w] as ``there``."""
        size = there.shape[2:]
        return resized(self.gain, size), resized(self.offset, size), _enlarged(self.coarse.alpha, there)

    def _put(
        self,
        estimate: MatteEstimate,
        where: npt.NDArray[np.bool_],
        shown: FloatArray,
        there: Any,
        gain: Any,
        offset: Any,
        alpha: Any,
    ) -> MatteEstimate:
        where = np.stack([taken_whole(*eye) for eye in zip(where, shown, self.coarse.paint, strict=True)])
        # Where no less of anybody is seen than in the matte: large ones beside stay as they are there.
        shares = _enlarged(np.stack([_with_margin(eye) for eye in where]), there) * (alpha >= there)
        their_gain, their_offset = _coefficients([estimate])
        their_gain += shares * (gain - their_gain)
        their_offset += shares * (offset - their_offset)
        return MatteEstimate(gain=their_gain, offset=their_offset)


def _enlarged(planes: FloatArray, like: Any) -> Any:
    """Coarse planes [E, rows, columns] of the host's memory, as large as other ones and on their device."""
    arrays = array_module(on_gpu=is_on_gpu(like))
    return resized(arrays.asarray(planes[:, None]), like.shape[2:])


def shown_smaller(
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
    planes = images.reshape(-1, *images.shape[2:])
    if wanted.layout == "NHWC":
        planes = np.moveaxis(planes, -1, 1)
    changed = np.flatnonzero(large.any(axis=(1, 2))).tolist()
    for first in range(0, len(changed), _PICTURES_OF_A_CALL):
        some = changed[first : first + _PICTURES_OF_A_CALL]
        pictures, opacities = (np.stack([each[at] for at in some]) for each in (planes, alphas))
        for at, shown in zip(some, with_smaller_people(pictures, opacities, large[some]), strict=True):
            planes[at] = shown
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


def with_smaller_people(pictures: Any, alphas: Any, large: npt.NDArray[np.int32]) -> Any:
    """Pictures in which large people are shown smaller, and what is around them where they were.

    Args:
        pictures: float16 or float32 [N, 3, h, w], on their device.
        alphas: float32 [N, 1, rows, columns], 0..1, on the same device.
        large: As ``large_people`` gives it, in any size, int32 [N, rows, columns].

    Returns:
        Of their dtype, on their device.
    """
    arrays = array_module(on_gpu=is_on_gpu(pictures))
    size = pictures.shape[2:]
    alphas = resized(alphas, size)
    shown = painted_over(pictures, np.stack([paint_of(labels) for labels in large])).astype(np.float32)
    labels = arrays.asarray(large[:, None])
    for label in range(1, large.max() + 1):
        opacities = resized((labels == label).astype("float32"), size) * alphas
        for at in np.flatnonzero((large == label).any(axis=(1, 2))).tolist():
            (rows, columns), (upright, across) = _places(large[at] == label, size)
            opacity = opacities[at, None, :, rows, columns]
            person = np.concatenate([pictures[at, None, :, rows, columns] * opacity, opacity], axis=1)
            person = resized(person, (upright.stop - upright.start, across.stop - across.start))[0]
            place = shown[at, :, upright, across]
            place *= 1 - person[3:]
            place += person[:3]
    return shown.astype(pictures.dtype)


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
        # A GPU shrinks a row 1000 times at most.
        finer = known if samples > 1 and step <= 1000 else grids[-1]
        grids.append(resized(finer, (max(round(height / step), 1), max(round(width / step), 1))))
    around = grids.pop()
    for finer in reversed(grids):
        around = finer + np.float32(_FURTHER) * resized(around, finer.shape[2:])
    around = resized(around, size)
    paint = around[:, :3] / (around[:, 3:] + np.float32(1e-12))
    soft = resized(resized(kept, (ceil(height / 4), ceil(width / 4))), size) * kept
    painted = known[:, :3] * soft + paint * (1 - soft)
    return painted.astype(pictures.dtype)


def missed(
    seen: FloatArray, there: FloatArray, painted: npt.NDArray[np.bool_], *, least_area: float
) -> npt.NDArray[np.bool_]:
    """Where somebody is who is missed elsewhere, in consecutive frames of one eye.

    Args:
        seen: float32 [N, h, w], 0..1, alpha of pictures in which large people are smaller.
        there: Alpha of the whole pictures.
        painted: bool [N, h, w], where paint is.
        least_area: Samples from which on somebody counts.

    Returns:
        bool [N, h, w].
    """
    found = np.zeros(seen.shape, bool)
    least_frames = min(_LEAST_FRAMES, len(seen))
    sure = np.abs(2 * seen - 1)
    for places in _followed([_people(*of_frame, least_area) for of_frame in zip(seen, painted, strict=True)]):
        if np.concatenate([sure[at][inside] for at, inside in places.items()]).mean() < _SURE:
            continue
        missing: dict[int, npt.NDArray[np.bool_]] = {}
        for at, inside in places.items():
            is_still = at - 1 in missing and missing[at - 1][inside].mean() > _PERSON
            if (there[at][inside] > _PERSON).mean() < (_STILL_MISSED if is_still else _MISSED):
                missing[at] = inside
        if len(missing) >= least_frames:
            for at, inside in missing.items():
                found[at] |= _sure_part(sure[at], inside)
    return found


def _people(
    alpha: FloatArray, painted: npt.NDArray[np.bool_], least_area: float
) -> list[npt.NDArray[np.bool_]]:
    """People in a frame who are not in the paint, each as bool [h, w]."""
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(
        (alpha > _PERSON).astype(np.uint8), connectivity=8
    )
    people = []
    for label in range(1, count):
        whole = boxes[label, cv2.CC_STAT_AREA]
        if whole < least_area:
            continue
        inside = (labels == label) & ~painted
        if inside.sum() >= max(least_area, _APART * whole):
            people.append(inside)
    return people


def _followed(frames: Sequence[Sequence[npt.NDArray[np.bool_]]]) -> list[dict[int, npt.NDArray[np.bool_]]]:
    """Where each person is, by frame: who overlaps somebody of the frame before is the same.

    Args:
        frames: The people of each frame, each as bool [h, w].
    """
    people: list[dict[int, npt.NDArray[np.bool_]]] = []
    for at, insides in enumerate(frames):
        for inside in insides:
            same = [one for one in people if at - 1 in one and (one[at - 1] & inside).any()]
            joined: dict[int, npt.NDArray[np.bool_]] = {}
            for places in (*same, {at: inside}):
                for frame, place in places.items():
                    joined[frame] = joined[frame] | place if frame in joined else place
            people = [one for one in people if not any(one is other for other in same)]
            people.append(dict(sorted(joined.items())))
    return people


def _sure_part(sure: FloatArray, inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The part of somebody around which the network is sure."""
    weights = inside.astype(np.float32)
    around = cv2.blur(sure * weights, (_AROUND, _AROUND))
    least = min(_SURE_AROUND, 0.95 * float(sure[inside].mean()))
    part: npt.NDArray[np.bool_] = inside & (around >= least * cv2.blur(weights, (_AROUND, _AROUND)))
    return part


def taken_whole(
    where: npt.NDArray[np.bool_], larger: FloatArray, painted: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Where somebody is, and all of people in the larger look who are there mostly; all [h, w]."""
    # Counted for all at once: an unsure look sees thousands of specks.
    count, labels = cv2.connectedComponents((larger > _PERSON).astype(np.uint8), connectivity=8)
    areas, apart, agreed = (
        np.bincount(labels[samples], minlength=count)
        for samples in (np.ones_like(where), ~painted, where & ~painted)
    )
    is_taken = (apart >= np.maximum(_APART * areas, 1)) & (agreed / np.maximum(apart, 1) >= _AGREED)
    is_taken[0] = False  # where nobody is
    whole: npt.NDArray[np.bool_] = where | (is_taken[labels] & ~painted)
    return whole


def _with_margin(where: npt.NDArray[np.bool_]) -> FloatArray:
    """Weights float32 [h, w], 0..1: 1 there and around, fading out beyond."""
    side = 2 * _MARGIN + 1
    grown = cv2.dilate(where.astype(np.float32), np.ones((side, side)))
    return cv2.blur(grown, (3, 3)).astype(np.float32, copy=False)
