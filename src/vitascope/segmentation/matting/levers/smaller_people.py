"""Shrinks large people in pictures, so that a network sees the people it misses beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shots import ShotInference, Views

_PERSON: Final = 0.5
_LARGE = 0.05
"""Minimum share of the picture for a person who hides others from the network. This and the following
constants were chosen with ``benchmarks/matte_quality``: on ``several`` and ``crossing`` with seeds 92, 205,
and 111 to 126, and on scenery with 211 to 222."""
_SHOWN = 0.3
"""Scale to which large people are shrunk: at 0.4, fewer other people are found (``crossing`` 112 and 118)."""
_EDGE = 3
"""Margin around large people that is also painted over, for their hair, in samples of the coarse mattes."""
_PAINT = (120, 30, 10, 3, 1)
"""Sizes of the grids from which the paint is made, in samples of the longer side. Each coarser grid reaches further."""
_FURTHER = 0.01
"""Weight of a grid relative to the next finer one."""
_APART = 0.6
"""Minimum share of a person that must lie outside the paint."""
_LEAST_SHARE = 0.0011
"""Minimum share of the picture for a person to count."""
_SURE = 0.6
"""Minimum sureness of a person, the mean of ``|2 alpha - 1|`` inside them over all frames: for real people it is 0.63
and more, for a motorcycle or a wall at most 0.58. If large people were painted over completely and nobody was
left, the network would be surer of such things; so large people stay in the picture, shrunk."""
_SURE_AROUND, _AROUND = 0.7, 9
"""Minimum sureness around a sample, and the side of the square in which it is measured, in samples. A sample below both
this and the person's mean sureness in the frame is taken for scenery that touches them."""
_MISSED, _STILL_MISSED = 0.5, 0.9
"""Maximum share of a person in the usual mattes for them to count as missed; and the same for a person who was missed
in the frame before."""
_LEAST_FRAMES = 4
"""Minimum frames of a window in which a person must be missed; all frames of a shorter window."""
_SAMPLES_OF_A_CALL = 16 * 512 * 288
"""Maximum samples of pictures that are changed at a time: this takes several times their memory, and on a GPU launches
take longest."""
_MARGIN = 2
"""Margin around a person, in samples of the coarse mattes, that is taken along with them: their soft edges."""
_LESS, _LOST = 0.5, 5
"""Minimum loss of alpha, and side of the area in samples of the coarse mattes, at which the smaller look replaces the
larger one. Smaller losses are finer edges, and are kept."""
_AGREED = 0.7
"""Share of a person in the larger look that the smaller look must see for all of the person to be taken."""

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
"""Constants that mattes with missed people depend on."""


class SmallerPeople:
    """Runs a network on frames with large people shrunk; ``missed`` finds people who are missing in the mattes.

    Args:
        views: Makes the network's pictures.
        wanted: The pictures that have the size of the mattes.
        smaller: The pictures that the network sees.
    """

    def __init__(self, views: Views, wanted: NetworkInput, smaller: NetworkInput) -> None:
        self._views, self._wanted, self._shown = views, wanted, smaller

    @property
    def are_small(self) -> bool:
        """True if the pictures are smaller than the mattes; else they cannot show more of a body."""
        return self._shown.size != self._wanted.size

    def seen(
        self,
        shots: ShotInference,
        frames: Sequence[Frame],
        alphas: Any,
        *,
        is_mirrored: bool = True,
    ) -> list[Seen]:
        """Run consecutive frames, in either order, with large people shrunk.

        Args:
            shots: Runs the network on them.
            frames: No more than fit in one call.
            alphas: Alpha of their mattes, from ``alpha_of``.
            is_mirrored: Whether the pictures are mirrored.
        """
        there = to_numpy(coarse(alphas))[:, 0]
        large = np.stack([large_people(alpha) for alpha in there])
        paint = np.stack([paint_of(labels) for labels in large])
        images = self._views.make(frames, self._shown)
        gain, offset, said = shown_smaller(
            shots, frames, images, self._shown, alphas, large, paint, is_mirrored=is_mirrored
        )
        alpha = to_numpy(resized(said[:, 1:2], there.shape[1:]))[:, 0]
        eyes_of_frames = (
            slice(first, first + self._views.eyes) for first in range(0, len(large), self._views.eyes)
        )
        return [
            Seen(gain[eyes], offset[eyes], large[eyes], CoarseLook(alpha[eyes], there[eyes], paint[eyes]))
            for eyes in eyes_of_frames
        ]

    def alpha_of(self, estimates: Sequence[MatteEstimate], images: Any) -> Any:
        """Alpha of frames, float32 [N * E, 1, h, w], 0..1, on their device; of the size of ``images``."""
        gain, offset = _coefficients(estimates)
        together = MatteEstimate(gain=gain, offset=offset)
        return small_alpha(together, images.reshape(-1, *images.shape[2:]), self._wanted)[:, None]


class Somebody(NamedTuple):
    """A person seen in a frame, outside the paint."""

    inside: npt.NDArray[np.bool_]
    """bool [rows, columns]: where they are."""
    samples: int
    """Number of samples in ``inside``."""
    sure: float
    """Sum of ``|2 alpha - 1|`` in these samples."""
    there: int
    """Number of these samples in which the frame's own matte shows a person."""

    def joined(self, other: Somebody) -> Somebody:
        """Join two sightings that do not overlap."""
        return Somebody(
            self.inside | other.inside,
            self.samples + other.samples,
            self.sure + other.sure,
            self.there + other.there,
        )


@dataclass(frozen=True, eq=False)
class CoarseLook:
    """Coarse mattes of a frame, for finding missed people: [E, rows, columns], in host memory."""

    alpha: FloatArray
    """Alpha 0..1 with large people shrunk."""
    there: FloatArray
    """Alpha of the frame's matte."""
    paint: npt.NDArray[np.bool_]
    """True where the picture was changed."""

    def agreed(self, other: CoarseLook) -> CoarseLook:
        """The people seen in both looks."""
        return replace(self, alpha=np.minimum(self.alpha, other.alpha))

    @cached_property
    def people(self) -> list[list[Somebody]]:
        """The people seen in each eye; cached, as several windows need them."""
        return [_people(*eye) for eye in zip(self.alpha, self.there, self.paint, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The network's output for a frame with large people shrunk."""

    gain: Any
    """Alpha's coefficients, float32 [E, 1, h, w], on their device."""
    offset: Any
    """Likewise."""
    large: npt.NDArray[np.int32]
    """Large people of the frame, from ``large_people``, [E, rows, columns]."""
    coarse: CoarseLook


def with_missed(
    estimates: Sequence[MatteEstimate],
    seen: Sequence[Seen],
    wheres: npt.NDArray[np.bool_],
    there: Any,
    larger: BoundedMatte | None = None,
) -> list[MatteEstimate]:
    """Add missed people to the mattes of frames; several at once, because on a GPU launches dominate.

    Args:
        estimates: The frames' mattes.
        seen: Looks at these.
        wheres: Where people are missed, from ``missed``.
        there: Alpha of the mattes, from ``SmallerPeople.alpha_of``.
        larger: Looks at the same frames in larger pictures, of the mattes' size; used where they show the people.
    """
    completed, eyes = list(estimates), wheres.shape[1]
    at_frames: list[int] = np.flatnonzero(wheres.any(axis=(1, 2, 3))).tolist()
    frames_of_a_call = _of_a_call(there.shape[2:], eyes)
    for first in range(0, len(at_frames), frames_of_a_call):
        some = at_frames[first : first + frames_of_a_call]
        at_eyes = [at * eyes + eye for at in some for eye in range(eyes)]
        looks, alphas, size = [seen[at].coarse for at in some], there[at_eyes], there.shape[2:]
        shown = np.concatenate([look.alpha for look in looks])
        gain = resized(np.concatenate([seen[at].gain for at in some]), size)
        offset = resized(np.concatenate([seen[at].offset for at in some]), size)
        alpha = _enlarged(shown, alphas)
        if larger is not None:
            smaller, own = shown, (gain, offset, alpha)
            theirs = [planes[at_eyes] for planes in (larger.gain, larger.offset, larger.said[:, 1:2])]
            shown = to_numpy(coarse(theirs[2]))[:, 0]
            lost = ((smaller - shown) / np.float32(_LESS)).clip(0.0, 1.0)
            lost = np.stack([cv2.morphologyEx(eye, cv2.MORPH_OPEN, np.ones((_LOST, _LOST))) for eye in lost])
            less = _enlarged(lost, alphas)
            gain, offset, alpha = (one + less * (other - one) for one, other in zip(theirs, own, strict=True))
        of_eyes = zip(
            np.concatenate(wheres[some]), shown, np.concatenate([look.paint for look in looks]), strict=True
        )
        taken = np.stack([_with_margin(taken_whole(*eye)) for eye in of_eyes])
        # Only where the look sees at least as much as the matte, so that large people beside them are unchanged.
        shares = _enlarged(taken, alphas) * (alpha >= alphas)
        their_gain, their_offset = _coefficients([estimates[at] for at in some])
        their_gain += shares * (gain - their_gain)
        their_offset += shares * (offset - their_offset)
        for place, at in enumerate(some):
            own_eyes = slice(place * eyes, (place + 1) * eyes)
            completed[at] = MatteEstimate(gain=their_gain[own_eyes], offset=their_offset[own_eyes])
    return completed


def _enlarged(planes: FloatArray, like: Any) -> Any:
    """Enlarge coarse planes [E, rows, columns] from the host's memory to the size and device of others."""
    arrays = array_module(on_gpu=is_on_gpu(like))
    return resized(arrays.asarray(planes[:, None]), like.shape[2:])


def shown_smaller(
    shots: ShotInference,
    frames: Sequence[Frame],
    images: Any,
    wanted: NetworkInput,
    alphas: Any,
    large: npt.NDArray[np.int32],
    paint: npt.NDArray[np.bool_],
    *,
    is_mirrored: bool = False,
) -> BoundedMatte:
    """Run a network on frames with large people shrunk.

    Args:
        shots: The network.
        frames: N frames.
        images: Their pictures [N, E, ...]; modified in place.
        wanted: How they were prepared.
        alphas: Alpha of their mattes, float32 [N * E, 1, h, w], 0..1, on their device.
        large: Their large people, from ``large_people``, int32 [N * E, rows, columns].
        paint: Where pictures change for these, from ``paint_of``.
        is_mirrored: True to mirror the pictures, and the results back.
    """
    planes = images.reshape(-1, *images.shape[2:])
    if wanted.layout == "NHWC":
        planes = np.moveaxis(planes, -1, 1)
    changed = np.flatnonzero(large.any(axis=(1, 2))).tolist()
    pictures_of_a_call = _of_a_call(planes.shape[2:])
    for first in range(0, len(changed), pictures_of_a_call):
        some = changed[first : first + pictures_of_a_call]
        planes[some] = with_smaller_people(planes[some], alphas[some], large[some], paint[some])
    if is_mirrored:
        images = mirrored(images, wanted.layout)
    answers = shots.estimate(Batch(frames, images, [Change.SMALL] * len(frames)))
    return bounded(answers, images, wanted, is_mirrored=is_mirrored)


def _of_a_call(size: tuple[int, int], eyes: int = 1) -> int:
    """Count the frames changed together, for pictures of a size."""
    return max(_SAMPLES_OF_A_CALL // (eyes * size[0] * size[1]), 1)


def _coefficients(estimates: Sequence[MatteEstimate]) -> tuple[Any, Any]:
    """Gain and offset of frames, float32 [N * E, 1, h, w], as copies."""
    gains, offsets = [], []
    for one in estimates:
        assert one.gain is not None  # coefficients, by contract
        assert one.offset is not None
        gains.append(one.gain)
        offsets.append(one.offset)
    return np.concatenate(gains), np.concatenate(offsets)


def large_people(alpha: FloatArray) -> npt.NDArray[np.int32]:
    """Label the large people who hide others from the network: 1 for the first, 2 for the second, 0 elsewhere.

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
    """Find where the picture changes when large people are shrunk.

    Args:
        large: From ``large_people``, int32 [rows, columns].

    Returns:
        bool [rows, columns]: where large people are, or are shown shrunk, and a margin around.
    """
    paint = (large > 0).astype(np.uint8)
    for label in range(1, large.max() + 1):
        _, place = _places(large == label, large.shape)
        paint[place] = 1  # the shrunk person may lie outside their own outline
    side = 2 * _EDGE + 1
    return cv2.dilate(paint, np.ones((side, side), np.uint8)) > 0


def _places(
    inside: npt.NDArray[np.bool_], size: tuple[int, int]
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """A person's rows and columns in a picture of a size, and the middle ones in which they are drawn shrunk."""
    own, shown = [], []
    for axis, (samples, whole) in enumerate(zip(inside.shape, size, strict=True)):
        there = np.flatnonzero(inside.any(axis=1 - axis))
        first, end = int(there[0]) * whole // samples, ceil((int(there[-1]) + 1) * whole / samples)
        length = max(round((end - first) * _SHOWN), 1)
        own.append(slice(first, end))
        begin = first + (end - first - length) // 2
        shown.append(slice(begin, begin + length))
    return (own[0], own[1]), (shown[0], shown[1])


def with_smaller_people(
    pictures: Any, alphas: Any, large: npt.NDArray[np.int32], paint: npt.NDArray[np.bool_]
) -> Any:
    """Shrink large people in pictures, and fill their former places from the surroundings.

    Args:
        pictures: float16 or float32 [N, 3, h, w], on their device.
        alphas: float32 [N, 1, rows, columns], 0..1, on the same device.
        large: From ``large_people``, in any size, int32 [N, rows, columns].
        paint: From ``paint_of``, of that size.

    Returns:
        Of their dtype, on their device.
    """
    arrays = array_module(on_gpu=is_on_gpu(pictures))
    size = pictures.shape[2:]
    alphas = resized(alphas, size)
    shown = painted_over(pictures, paint).astype(np.float32, copy=False)
    labels = arrays.asarray(large[:, None])
    people = arrays.empty((len(pictures), 4, *size), np.float32)
    for label in range(1, large.max() + 1):
        opacities = people[:, 3:]
        opacities[...] = resized((labels == label).astype("float32"), size)
        opacities *= alphas
        np.multiply(pictures, opacities, out=people[:, :3])
        for at in np.flatnonzero((large == label).any(axis=(1, 2))).tolist():
            (rows, columns), (upright, across) = _places(large[at] == label, size)
            person = resized(
                people[at, None, :, rows, columns], (upright.stop - upright.start, across.stop - across.start)
            )[0]
            place = shown[at, :, upright, across]
            place *= 1 - person[3:]
            place += person[:3]
    return shown.astype(pictures.dtype, copy=False)


def painted_over(pictures: Any, where: npt.NDArray[np.bool_]) -> Any:
    """Fill areas of pictures from their surroundings, weighted by distance.

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
        # On a GPU, a row can shrink at most 1000 times.
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


def missed(looks: Sequence[CoarseLook], *, told: int | None = None) -> npt.NDArray[np.bool_]:
    """The places of people who are missing in the mattes of consecutive frames.

    Args:
        looks: Looks at N frames, in either order.
        told: Number of last frames to return; all when omitted.

    Returns:
        bool [N or ``told``, E, rows, columns].
    """
    first = 0 if told is None else len(looks) - told
    found = np.zeros((len(looks) - first, *looks[0].alpha.shape), bool)
    least_frames = min(_LEAST_FRAMES, len(looks))
    for eye, frames in enumerate(zip(*(look.people for look in looks), strict=True)):
        for places in _followed(frames):
            sure = sum(one.sure for one in places.values())
            if sure < _SURE * sum(one.samples for one in places.values()):
                continue
            missing: dict[int, Somebody] = {}
            for at, one in places.items():
                is_still = at - 1 in missing and missing[at - 1].inside[one.inside].mean() > _PERSON
                if one.there < (_STILL_MISSED if is_still else _MISSED) * one.samples:
                    missing[at] = one
            if len(missing) >= least_frames:
                for at, one in missing.items():
                    if at >= first:
                        found[at - first, eye] |= _sure_part(looks[at].alpha[eye], one.inside)
    return found


def _people(alpha: FloatArray, there: FloatArray, painted: npt.NDArray[np.bool_]) -> list[Somebody]:
    """People in one eye of a frame outside the paint; all arrays are [rows, columns]."""
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(
        (alpha > _PERSON).astype(np.uint8), connectivity=8
    )
    least_area = _LEAST_SHARE * alpha.size
    people = []
    for label in range(1, count):
        whole = boxes[label, cv2.CC_STAT_AREA]
        if whole < least_area:
            continue
        inside = (labels == label) & ~painted
        samples = int(inside.sum())
        if samples >= max(least_area, _APART * whole):
            sure = float(np.abs(2 * alpha[inside] - 1).sum())
            people.append(Somebody(inside, samples, sure, int((there[inside] > _PERSON).sum())))
    return people


def _followed(frames: Sequence[Sequence[Somebody]]) -> list[dict[int, Somebody]]:
    """Follow people over frames: those who overlap in consecutive frames are the same.

    Args:
        frames: The people of each frame.
    """
    people: list[dict[int, Somebody]] = []
    for at, there in enumerate(frames):
        for one in there:
            same = [
                person for person in people if at - 1 in person and (person[at - 1].inside & one.inside).any()
            ]
            joined: dict[int, Somebody] = {}
            for places in (*same, {at: one}):
                for frame, place in places.items():
                    joined[frame] = joined[frame].joined(place) if frame in joined else place
            people = [person for person in people if not any(person is other for other in same)]
            people.append(dict(sorted(joined.items())))
    return people


def _sure_part(alpha: FloatArray, inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The part of a person around which the network is sure."""
    sure, weights = np.abs(2 * alpha - 1), inside.astype(np.float32)
    around = cv2.blur(sure * weights, (_AROUND, _AROUND))
    least = min(_SURE_AROUND, 0.95 * float(sure[inside].mean()))
    part: npt.NDArray[np.bool_] = inside & (around >= least * cv2.blur(weights, (_AROUND, _AROUND)))
    return part


def taken_whole(
    where: npt.NDArray[np.bool_], larger: FloatArray, painted: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Extend people to all of their matte in the larger look, if most of it is theirs; all arrays are [h, w]."""
    # Count for all parts at once: an unsure look has thousands of specks.
    count, labels = cv2.connectedComponents((larger > _PERSON).astype(np.uint8), connectivity=8)
    areas, apart, agreed = (
        np.bincount(labels[samples], minlength=count)
        for samples in (np.ones_like(where), ~painted, where & ~painted)
    )
    is_taken = (apart >= np.maximum(_APART * areas, 1)) & (agreed / np.maximum(apart, 1) >= _AGREED)
    is_taken[0] = False  # label 0 is empty
    whole: npt.NDArray[np.bool_] = where | (is_taken[labels] & ~painted)
    return whole


def _with_margin(where: npt.NDArray[np.bool_]) -> FloatArray:
    """Weights float32 [h, w], 0..1: 1 inside and around, fading out beyond."""
    side = 2 * _MARGIN + 1
    grown = cv2.dilate(where.astype(np.float32), np.ones((side, side)))
    return cv2.blur(grown, (3, 3)).astype(np.float32, copy=False)
