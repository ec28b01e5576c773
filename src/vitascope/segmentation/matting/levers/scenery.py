"""Removes scenery that is sometimes taken for a person: it looks the same as when nobody was there."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cells import mean_around
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.morphology import dilate_box, erode_box
from vitascope.gpu.kernels.moved_planes import moved
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import coarse, plain_rgb, small_alpha

_DOUBT = 0.5
"""The difference of a cell's mean alpha between looks at a frame from which on a window is in doubt. This and what
follows was chosen on ``benchmarks/matte_quality``, seeds 111 to 126 and 201 to 222."""
_NOBODY = 0.2
"""Alpha up to which a frame shows what is behind people."""
_SOMEBODY, _BESIDE, _BAY = 0.5, 0.02, 0.08
"""Alpha from which on somebody is there; what is not seen so near to them, as a share of the longer side, may be a part
of them, as may what lies between parts of them that are twice the third apart: a shirt behind an arm."""
_LEAST_SEEN, _LEAST_ALIKE = 2, 4
"""Frames that must show what is behind; and frames of one look, those with somebody among them."""
_ALIKE, _ALIKE_IN_DETAIL = 0.04, 0.3
"""The mean difference of colours around a sample, 0..1, up to which it looks the same; and as a share of their standard
deviation, where that is more: frames that lie between one another's samples differ by so much."""
_DETAIL = 0.02
"""That deviation from which on a sample is told from others: who wears a wall's colour stands before it."""
_AROUND: Final = 5
"""Samples to a side that are compared, as ``mean_around`` does."""
_SURENESS = 2
"""The power of ``|2 alpha - 1|`` that is a frame's voice: a veil has little to say."""
_VEILED, _KEPT = 0.3, 0.7
"""The share of alpha that frames of one look agree upon: below the first nothing is kept, above the second all is."""
_PERSON = 0.2
"""Alpha from which on a place may move with somebody, and not with the camera."""
_LEAST_CORNERS, _MOST_CORNERS = 8, 200
"""Corners by which the camera's motion is told."""
_CORNER_QUALITY, _CORNERS_APART = 0.01, 4
"""As OpenCV's ``goodFeaturesToTrack`` takes them."""
_FOLLOWED_IN, _OFF, _LEAST_AGREED, _LEAST_GROWTH = 11, 0.7, 0.25, 0.5
"""Samples to a side in which a corner is followed; how far off the motion it may be; the least share of corners that
agree on it: fewer do in a flash; and the least size of a frame upon the one before."""
_LEAST_VOICE = 0.02
"""The voice of a frame that shows half of somebody."""
_TRACE = 0.01
"""Alpha that is as good as nobody."""
_FRAMES_OF_A_CALL = 8
"""Frames are looked at in such parts: their planes are large."""
_LEAST_CHANGE = 0.1
"""The change of alpha from which on a frame has another matte."""

SCENERY_RULES: Final = (
    (_DOUBT, _NOBODY, _SOMEBODY, _BESIDE, _BAY, _LEAST_SEEN, _LEAST_ALIKE),
    (_ALIKE, _ALIKE_IN_DETAIL, _DETAIL, _AROUND, _SURENESS, _VEILED, _KEPT),
    (_PERSON, _LEAST_CORNERS, _MOST_CORNERS, _CORNER_QUALITY, _CORNERS_APART),
    (_FOLLOWED_IN, _OFF, _LEAST_AGREED, _LEAST_GROWTH, _LEAST_VOICE, _TRACE, _LEAST_CHANGE),
)
"""What mattes without scenery depend on."""


class Scenery:
    """Removes scenery from the mattes of a window in which some frames take it for a person.

    A motorcycle beside somebody is taken for a part of them; once they have walked on, it is not. Whatever looks the
    same is somebody in all frames or in none. So the frames are laid upon one another along the camera's motion, and
    what is behind people is what frames show in which nobody is there. Where a frame shows the same, by its colours and
    their detail, it has a voice in whether that is somebody; and where most say no, alpha falls.

    Beside somebody, and between parts of them, a frame that sees nobody has no voice: it may miss a part of them. It is
    for windows in doubt: where looks at a frame differ. People who stand still keep their mattes if two of three
    frames see them, and lose them if fewer than one in three does.

    Args:
        shown: The pictures that the network is shown.
        threads: Look for the camera's motion, in several frames at a time.
    """

    def __init__(self, shown: NetworkInput, threads: ThreadPoolExecutor) -> None:
        self._shown, self._threads = shown, threads

    def cleared(self, batch: Batch, estimates: list[MatteEstimate]) -> list[MatteEstimate]:
        """Mattes of a window without scenery; the same list where none is found.

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
    """Whether two mattes of a window differ by a person: bool [1], on their device.

    Args:
        means: Alpha's mean by cell, of each look, float32 [N, E, 1, rows, columns].
    """
    least = most = means[0]
    for other in means[1:]:
        least, most = np.minimum(least, other), np.maximum(most, other)
    return ((most - least).max() > _DOUBT).reshape(1)


def _thinned(estimate: MatteEstimate, shares: Any) -> MatteEstimate:
    """A matte of which shares are kept, [E, rows, columns], on its device."""
    assert estimate.gain is not None  # coefficients, by contract
    assert estimate.offset is not None
    kept = resized(shares[:, None], estimate.size)
    return MatteEstimate(gain=estimate.gain * kept, offset=estimate.offset * kept)


def kept_shares(seen: Any, *, threads: ThreadPoolExecutor) -> Any:
    """How much of alpha is kept in consecutive frames of one eye.

    Args:
        seen: RGB and alpha, float32 [N, 4, h, w], 0..1.
        threads: Look for the camera's motion, in several frames at a time.

    Returns:
        float32 [N, h, w], 0..1, on their device.
    """
    pictures, alphas = seen[:, :3], seen[:, 3]
    everything = np.ones_like(alphas)
    if len(seen) < _LEAST_ALIKE:
        return everything
    greys = to_numpy((pictures.mean(axis=1) * 255).round().astype("uint8"))
    people = to_numpy(alphas > _PERSON)
    if not people.any():
        return everything
    moves = _camera_moves(greys, people, threads)

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
    """Where nobody is seen beside somebody or between parts of them, bool [N, h, w]: a part of them may be missed."""
    people = (alphas > _SOMEBODY).astype("uint8")
    beside, bay = (max(round(share * max(alphas.shape[1:])), 1) for share in (_BESIDE, _BAY))
    wider = np.pad(people, ((0, 0), (bay, bay), (bay, bay)), mode="edge")
    closed = erode_box(dilate_box(wider, bay), bay)[:, bay:-bay, bay:-bay]
    return ((closed | dilate_box(people, beside)) > 0) & (people == 0)


def _camera_moves(
    greys: npt.NDArray[np.uint8], people: npt.NDArray[np.bool_], threads: ThreadPoolExecutor
) -> npt.NDArray[np.float64]:
    """Where each frame lies upon the one in the middle: affine, float64 [N, 2, 3], in samples.

    It turns, grows and shifts, as corners do where nobody is; it stays where they do not agree (RANSAC: Fischler and
    Bolles 1981; corners are followed as in Bouguet 2001).
    """

    def step(grey: Any, before: Any, where: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        free = cv2.dilate(where.astype(np.uint8), np.ones((_AROUND, _AROUND))) == 0
        still = np.eye(3)
        corners = cv2.goodFeaturesToTrack(
            grey, _MOST_CORNERS, _CORNER_QUALITY, _CORNERS_APART, mask=free.astype(np.uint8)
        )
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

    steps = threads.map(step, greys[1:], greys[:-1], people[1:] | people[:-1])
    to_first = [np.eye(3)]
    for one in steps:
        to_first.append(to_first[-1] @ one)
    to_middle = np.linalg.inv(to_first[len(to_first) // 2])
    return np.stack([(to_middle @ one)[:2] for one in to_first])
