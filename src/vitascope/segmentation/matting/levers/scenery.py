"""Removes scenery that is taken for a person in some frames, by comparing it with frames that show nobody there."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.interchange import on_its_way, to_numpy
from vitascope.gpu.kernels.cells import mean_around
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.morphology import dilate_box, erode_box
from vitascope.gpu.kernels.moved_planes import moved
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import coarse, plain_rgb, small_alpha

_DOUBT = 0.5
"""Minimum difference of a cell's mean alpha between two looks at a frame for the window to be in doubt. This and the
following constants were chosen on ``benchmarks/matte_quality``, seeds 111 to 126 and 201 to 222."""
_NOBODY = 0.2
"""Maximum alpha at which a frame shows the background."""
_SOMEBODY, _BESIDE, _BAY = 0.5, 0.02, 0.08
"""Minimum alpha of a person; then two distances, as shares of the longer side. A place that shows nobody within the
first distance of a person may belong to them, as may a place between parts of them that are up to twice the second
apart: a shirt behind an arm."""
_LEAST_SEEN, _LEAST_ALIKE = 2, 4
"""Minimum number of frames that show the background, and of frames that look alike, including those with somebody."""
_ALIKE, _ALIKE_IN_DETAIL = 0.04, 0.3
"""Maximum mean difference of colours around a sample, 0..1, for two frames to look alike; and the same as a share of
the colours' standard deviation, if that gives more: frames shifted by a fraction of a sample differ by as much."""
_DETAIL = 0.02
"""Minimum deviation at which samples can be compared: in front of a plain wall may stand somebody who wears its
colour."""
_AROUND: Final = 5
"""Side, in samples, of the square that is compared, for ``mean_around``."""
_SURENESS = 2
"""Exponent that turns ``|2 alpha - 1|`` into a frame's vote: half-transparent samples say little."""
_VEILED, _KEPT = 0.3, 0.7
"""Ratio of the alpha that frames which look alike agree on to a frame's own: below the first value none of it is kept,
above the second all."""
_PERSON = 0.2
"""Minimum alpha of a place that may move with a person instead of the camera."""
_LEAST_CORNERS, _MOST_CORNERS = 8, 200
"""Minimum and maximum number of corners used to find the camera's motion."""
_CORNER_QUALITY, _CORNERS_APART = 0.01, 4
"""Quality level, and minimum distance in samples, for OpenCV's ``goodFeaturesToTrack``."""
_FOLLOWED_IN, _OFF, _LEAST_AGREED, _LEAST_GROWTH = 11, 0.7, 0.25, 0.5
"""Side of the window in which a corner is tracked, in samples; maximum distance in samples of a corner from the common
motion; minimum share of corners that agree on it, which is low in a flash; and minimum scale of a frame relative to the
one before."""
_LEAST_VOICE = 0.02
"""Added to every frame's vote, so that frames with alpha near one half have one, too."""
_TRACE = 0.01
"""Maximum alpha that counts as empty."""
_FRAMES_OF_A_CALL = 8
"""Frames whose pictures and mattes are shrunk at a time: their planes are large."""
_STEPS_OF_A_THREAD = 3
"""Frames whose motion a thread finds in one go: it takes less than a millisecond for each, and threads wait for the
interpreter's lock in between."""
_LEAST_CHANGE = 0.1
"""Minimum change of alpha for which a frame's matte is replaced."""

SCENERY_RULES: Final = (
    (_DOUBT, _NOBODY, _SOMEBODY, _BESIDE, _BAY, _LEAST_SEEN, _LEAST_ALIKE),
    (_ALIKE, _ALIKE_IN_DETAIL, _DETAIL, _AROUND, _SURENESS, _VEILED, _KEPT),
    (_PERSON, _LEAST_CORNERS, _MOST_CORNERS, _CORNER_QUALITY, _CORNERS_APART),
    (_FOLLOWED_IN, _OFF, _LEAST_AGREED, _LEAST_GROWTH, _LEAST_VOICE, _TRACE, _LEAST_CHANGE),
)
"""Constants that mattes without scenery depend on."""


class Scenery:
    """Removes scenery from the mattes of a window in which some frames take it for a person.

    A motorcycle beside a person is taken for a part of them; once they have walked on, it is not. A place that looks
    the same in all frames must be a person in all of them or in none. So the frames are aligned along the camera's
    motion, and the background is taken from the frames that show nobody at a place. A frame that shows the same there,
    by colours and their detail, votes on whether it is a person; where most vote no, alpha is lowered.

    Beside a person, and between parts of them, a frame that sees nobody does not vote: it may have missed a part of
    them. This is only for windows in doubt, in which the looks at a frame differ. People who stand still keep their
    mattes if two of three frames see them, and lose them if fewer than one in three does.

    Args:
        shown: The network's pictures.
        threads: Threads that find the camera's motion, several frames at a time.
    """

    def __init__(self, shown: NetworkInput, threads: ThreadPoolExecutor) -> None:
        self._shown, self._threads = shown, threads

    def cleared(self, batch: Batch, estimates: list[MatteEstimate]) -> list[MatteEstimate]:
        """Mattes of a window without scenery; the same list if none is found.

        Args:
            batch: Frames of one shot, and their usual pictures.
            estimates: Alpha's coefficients.
        """
        parts = [
            self._seen(batch.images[at : at + _FRAMES_OF_A_CALL], estimates[at : at + _FRAMES_OF_A_CALL])
            for at in range(0, len(estimates), _FRAMES_OF_A_CALL)
        ]
        planes = np.concatenate(parts)
        seen = planes.reshape(len(estimates), -1, *planes.shape[1:])
        kept = np.stack([kept_shares(eye, threads=self._threads) for eye in seen.swapaxes(0, 1)], axis=1)
        changes = to_numpy(((1 - kept) * seen[:, :, 3]).max(axis=(1, 2, 3))) > _LEAST_CHANGE
        if not changes.any():
            return estimates
        return [
            _thinned(one, shares) if is_changed else one
            for one, shares, is_changed in zip(estimates, kept, changes, strict=True)
        ]

    def _seen(self, images: Any, estimates: Sequence[MatteEstimate]) -> Any:
        """RGB and alpha of some frames, coarse: float32 [N * E, 4, h, w], 0..1, on their device."""
        pictures = plain_rgb(images, self._shown)
        pictures = pictures.reshape(-1, *pictures.shape[2:])
        joined = MatteEstimate.joined(estimates)
        alpha = coarse(small_alpha(joined, images.reshape(-1, *images.shape[2:]), self._shown)[:, None])
        arrays = array_module(on_gpu=is_on_gpu(images))
        return np.concatenate([resized(arrays.ascontiguousarray(pictures), alpha.shape[2:]), alpha], axis=1)


def in_doubt(means: Sequence[Any]) -> Any:
    """True if two mattes of a window differ by a person: bool [1], on their device.

    Args:
        means: Mean alpha by cell, one for each look, float32 [N, E, 1, rows, columns].
    """
    least = most = means[0]
    for other in means[1:]:
        least, most = np.minimum(least, other), np.maximum(most, other)
    return ((most - least).max() > _DOUBT).reshape(1)


def _thinned(estimate: MatteEstimate, shares: Any) -> MatteEstimate:
    """Scale a matte by shares [E, rows, columns], on its device."""
    assert estimate.gain is not None  # coefficients, by contract
    assert estimate.offset is not None
    kept = resized(shares[:, None], estimate.size)
    return MatteEstimate(gain=estimate.gain * kept, offset=estimate.offset * kept)


def kept_shares(seen: Any, *, threads: ThreadPoolExecutor) -> Any:
    """Shares of alpha to keep in consecutive frames of one eye.

    Args:
        seen: RGB and alpha, float32 [N, 4, h, w], 0..1.
        threads: Threads that find the camera's motion, several frames at a time.

    Returns:
        float32 [N, h, w], 0..1, on their device.
    """
    pictures, alphas = seen[:, :3], seen[:, 3]
    everything = np.ones_like(alphas)
    if len(seen) < _LEAST_ALIKE:
        return everything
    greys = on_its_way((pictures.mean(axis=1) * 255).round().astype("uint8"))
    near = dilate_box((alphas > _PERSON).astype("uint8"), _AROUND // 2)
    free = on_its_way(1 - np.maximum(near[1:], near[:-1]))()
    if free.all():
        return everything
    moves = _camera_moves(greys(), free, threads)

    laid = moved(seen, moves)
    colors, alphas = laid[:, :3], laid[:, 3]
    is_inside = moved(everything[:, None], moves, beyond=0.0)[:, 0] > 0.99
    is_beside = _beside_somebody(alphas)
    shows = is_inside & (alphas < _NOBODY) & ~is_beside
    count = shows.sum(axis=0)
    behind = (colors * shows[:, None]).sum(axis=0, dtype="float32") / count.clip(1).astype("float32")
    detail = np.sqrt((mean_around(behind * behind) - mean_around(behind) ** 2).max(axis=0).clip(0.0, None))
    tells = (detail > _DETAIL) & (count >= _LEAST_SEEN)

    differs = mean_around(abs(colors - behind).max(axis=1))
    alike = is_inside & tells & (differs < (_ALIKE_IN_DETAIL * detail).clip(_ALIKE, None))
    voices = (alike & ~is_beside) * (abs(2 * alphas - 1) ** _SURENESS + np.float32(_LEAST_VOICE))
    agreed = (voices * alphas).sum(axis=0) / voices.sum(axis=0).clip(1e-3, None)
    alike &= alike.sum(axis=0) >= _LEAST_ALIKE

    own = mean_around(alphas * alike)
    share = (mean_around(agreed * alike) / own.clip(_TRACE, None) - _VEILED) / (_KEPT - _VEILED)
    share = np.where(alike & (own > _TRACE), share.clip(0.0, 1.0), everything)
    return moved(share[:, None], moves, is_back=True, beyond=1.0)[:, 0]


def _beside_somebody(alphas: Any) -> Any:
    """Empty places beside people or between parts of them, bool [N, h, w]: a part of them may be missing there."""
    people = (alphas > _SOMEBODY).astype("uint8")
    beside, bay = (max(round(share * max(alphas.shape[1:])), 1) for share in (_BESIDE, _BAY))
    wider = np.pad(people, ((0, 0), (bay, bay), (bay, bay)), mode="edge")
    closed = erode_box(dilate_box(wider, bay), bay)[:, bay:-bay, bay:-bay]
    return ((closed | dilate_box(people, beside)) > 0) & (people == 0)


def _camera_moves(
    greys: npt.NDArray[np.uint8], free: npt.NDArray[np.uint8], threads: ThreadPoolExecutor
) -> npt.NDArray[np.float64]:
    """Transform of each frame onto the middle one: affine, float64 [N, 2, 3], in samples.

    Args:
        greys: The frames, uint8 [N, h, w].
        free: 1 where nobody is near in a frame and the one before, else 0: uint8 [N - 1, h, w].
        threads: Threads that find the motion, several frames at a time.

    It rotates, scales and shifts as corners outside people do; if these do not agree, it is the identity (RANSAC:
    Fischler and Bolles 1981; corners are tracked as in Bouguet 2001).
    """
    still = np.eye(3)

    def step(grey: Any, before: Any, where: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        corners = cv2.goodFeaturesToTrack(grey, _MOST_CORNERS, _CORNER_QUALITY, _CORNERS_APART, mask=where)
        if corners is None or len(corners) < _LEAST_CORNERS:
            return still
        unknown: Any = None
        found, status, _ = cv2.calcOpticalFlowPyrLK(
            grey, before, corners, unknown, winSize=(_FOLLOWED_IN, _FOLLOWED_IN), maxLevel=3
        )
        followed = status[:, 0] > 0
        if followed.sum() < _LEAST_CORNERS:
            return still
        move, agree = cv2.estimateAffinePartial2D(
            corners[followed], found[followed], ransacReprojThreshold=_OFF
        )
        if move is None or agree.mean() < _LEAST_AGREED:
            return still
        shrinks = np.linalg.det(move[:, :2]) < _LEAST_GROWTH**2
        return still if shrinks else np.vstack([move, still[2]])

    def steps(first: int) -> list[npt.NDArray[np.float64]]:
        part = slice(first, first + _STEPS_OF_A_THREAD)
        return list(map(step, greys[1:][part], greys[:-1][part], free[part]))

    to_first = [still]
    for one in chain.from_iterable(threads.map(steps, range(0, len(free), _STEPS_OF_A_THREAD))):
        to_first.append(to_first[-1] @ one)
    to_middle = np.linalg.inv(to_first[len(to_first) // 2])
    return np.stack([(to_middle @ one)[:2] for one in to_first])
