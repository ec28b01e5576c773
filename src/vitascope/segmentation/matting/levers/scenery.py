"""Scenery that is taken for somebody at times: what looks as it did when nobody was there is nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.device import available_cores
from vitascope.gpu.interchange import on_its_way
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
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
"""Samples to a side that are compared."""
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
_FOLLOWED_IN, _OFF, _LEAST_AGREED = 11, 0.7, 0.25
"""Samples to a side in which a corner is followed; how far off the motion it may be; and the least share of corners
that agree on it: fewer do in a flash."""
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
    (_FOLLOWED_IN, _OFF, _LEAST_AGREED, _LEAST_VOICE, _TRACE, _LEAST_CHANGE),
)
"""What mattes without scenery depend on."""


class Scenery:
    """Takes scenery out of the mattes of a window that takes it for somebody in some of its frames.

    A motorcycle beside somebody is taken for a part of them; once they have walked on, it is not. Whatever looks the
    same is somebody in all frames or in none. So the frames are laid upon one another along the camera's motion, and
    what is behind people is what frames show in which nobody is there. Where a frame shows the same, by its colours and
    their detail, it has a voice in whether that is somebody; and where most say no, alpha falls.

    Beside somebody, and between parts of them, a frame that sees nobody has no voice: it may miss a part of them. It is
    for windows in doubt: where looks at a frame differ. People who stand still keep their mattes if two of three
    frames see them, and lose them if fewer than one in three does.

    Args:
        shown: The pictures that the network is shown.
    """

    def __init__(self, shown: NetworkInput) -> None:
        self._shown = shown

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
        planes = np.concatenate([part() for part in parts])
        seen = planes.reshape(len(estimates), -1, *planes.shape[1:])
        pictures, alphas = seen[..., :3].swapaxes(0, 1), seen[..., 3].swapaxes(0, 1)
        # They end with the window, so none is left when the run ends.
        with ThreadPoolExecutor(available_cores(), thread_name_prefix="vitascope-scenery") as threads:
            kept = np.stack(
                [kept_shares(*eye, threads=threads) for eye in zip(pictures, alphas, strict=True)], axis=1
            )
        changes = ((1 - kept) * np.moveaxis(alphas, 0, 1)).max(axis=(1, 2, 3)) > _LEAST_CHANGE
        if not changes.any():
            return estimates
        return [
            _thinned(one, shares) if is_changed else one
            for one, shares, is_changed in zip(estimates, kept, changes, strict=True)
        ]

    def _seen(self, images: Any, estimates: Sequence[MatteEstimate]) -> Callable[[], FloatArray]:
        """Begin to bring RGB and alpha of some frames to the host, coarse: float32 [N * E, h, w, 4], 0..1."""
        pictures = plain_rgb(images, self._shown)
        pictures = pictures.reshape(-1, *pictures.shape[2:])
        joined = MatteEstimate.joined(estimates)
        alpha = coarse(small_alpha(joined, images.reshape(-1, *images.shape[2:]), self._shown)[:, None])
        arrays = array_module(on_gpu=is_on_gpu(images))
        rgb = resized(arrays.ascontiguousarray(pictures), alpha.shape[2:])
        planes = np.concatenate([rgb, alpha], axis=1)
        return on_its_way(arrays.ascontiguousarray(np.moveaxis(planes, 1, -1)))


def in_doubt(means: Sequence[Any]) -> Any:
    """Whether looks at a window differ by somebody: bool [1], on their device.

    Args:
        means: Alpha's mean by cell, of each look, float32 [N, E, 1, rows, columns].
    """
    least = most = means[0]
    for other in means[1:]:
        least, most = np.minimum(least, other), np.maximum(most, other)
    return ((most - least).max() > _DOUBT).reshape(1)


def _thinned(estimate: MatteEstimate, shares: FloatArray) -> MatteEstimate:
    """A matte of which shares are kept, [E, rows, columns]."""
    assert estimate.gain is not None  # coefficients, by contract
    assert estimate.offset is not None
    arrays = array_module(on_gpu=is_on_gpu(estimate.gain))
    kept = resized(arrays.asarray(shares[:, None]), estimate.size)
    return MatteEstimate(gain=estimate.gain * kept, offset=estimate.offset * kept)


def kept_shares(pictures: FloatArray, alphas: FloatArray, *, threads: ThreadPoolExecutor) -> FloatArray:
    """How much of alpha is kept in consecutive frames of one eye.

    Args:
        pictures: float32 [N, h, w, 3], 0..1, RGB.
        alphas: float32 [N, h, w], 0..1.
        threads: Work on frames at a time.

    Returns:
        float32 [N, h, w], 0..1.
    """
    count, size = len(alphas), alphas.shape[2:0:-1]
    kept = np.ones_like(alphas)
    if count < _LEAST_ALIKE or (alphas <= _NOBODY).all():
        return kept
    moves = _camera_moves(pictures, alphas, threads)

    def laid(picture: FloatArray, move: FloatArray) -> Any:
        return cv2.warpAffine(picture, move, size, borderMode=cv2.BORDER_REPLICATE)

    def inside(move: FloatArray) -> npt.NDArray[np.bool_]:
        whole = np.ones(alphas.shape[1:], np.float32)
        there: npt.NDArray[np.bool_] = cv2.warpAffine(whole, move, size) > 0.99
        return there

    colors = np.stack(list(threads.map(laid, pictures, moves)))
    laid_alphas = np.stack(list(threads.map(laid, alphas, moves)))
    is_inside = np.stack(list(threads.map(inside, moves)))
    is_beside = np.stack(list(threads.map(_beside_somebody, laid_alphas)))
    shows = is_inside & (laid_alphas < _NOBODY) & ~is_beside
    seen = shows.sum(axis=0)
    behind = np.einsum("nhw,nhwc->hwc", shows.astype(np.float32), colors) / np.maximum(seen, 1)[..., None]
    behind = behind.astype(np.float32)
    spread = _mean_around(behind * behind) - _mean_around(behind) ** 2
    detail = np.sqrt(_greatest(spread).clip(0))
    tells = (detail > _DETAIL) & (seen >= _LEAST_SEEN)

    def differs(picture: FloatArray) -> FloatArray:
        return _mean_around(_greatest(np.abs(picture - behind)))

    most = np.maximum(_ALIKE, _ALIKE_IN_DETAIL * detail)
    alike = is_inside & tells & (np.stack(list(threads.map(differs, colors))) < most)
    voices = (alike & ~is_beside) * (np.abs(2 * laid_alphas - 1) ** _SURENESS + np.float32(_LEAST_VOICE))
    agreed = (voices * laid_alphas).sum(axis=0) / np.maximum(voices.sum(axis=0), 1e-3)
    alike &= alike.sum(axis=0) >= _LEAST_ALIKE

    def shares(alpha: FloatArray, where: npt.NDArray[np.bool_], move: FloatArray) -> Any:
        own = _mean_around(alpha * where)
        share = _mean_around(agreed * where) / np.maximum(own, _TRACE)
        share = np.where(
            where & (own > _TRACE), ((share - _VEILED) / (_KEPT - _VEILED)).clip(0, 1), 1
        ).astype(np.float32)
        return cv2.warpAffine(share, move, size, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderValue=1)

    return np.stack(list(threads.map(shares, laid_alphas, alike, moves)))


def _beside_somebody(alpha: FloatArray) -> npt.NDArray[np.bool_]:
    """Where nobody is seen beside somebody or between parts of them: it may be a part of them that is missed."""
    people = (alpha > _SOMEBODY).astype(np.uint8)
    beside, bay = (max(round(share * max(alpha.shape)), 1) for share in (_BESIDE, _BAY))
    wider = cv2.copyMakeBorder(people, bay, bay, bay, bay, cv2.BORDER_REPLICATE)
    closed = cv2.morphologyEx(wider, cv2.MORPH_CLOSE, np.ones((2 * bay + 1, 2 * bay + 1)))
    closed = closed[bay:-bay, bay:-bay] + cv2.dilate(people, np.ones((2 * beside + 1, 2 * beside + 1)))
    missed: npt.NDArray[np.bool_] = (closed > 0) & (people == 0)
    return missed


def _greatest(colors: FloatArray) -> FloatArray:
    """The greatest of three channels [h, w, 3]: NumPy takes longer along the last axis."""
    red, green, blue = (colors[..., channel] for channel in range(3))
    return np.maximum(np.maximum(red, green), blue)


def _mean_around(planes: FloatArray) -> FloatArray:
    """The mean of what is around each sample, of planes [h, w] or [h, w, C]."""
    mean: Any = cv2.blur(planes.astype(np.float32, copy=False), (_AROUND, _AROUND))
    around: FloatArray = mean
    return around


def _camera_moves(
    pictures: FloatArray, alphas: FloatArray, threads: ThreadPoolExecutor
) -> npt.NDArray[np.float64]:
    """Where each frame lies upon the one in the middle: affine, float64 [N, 2, 3], in samples.

    It turns, grows and shifts, as corners do where nobody is; it stays where they do not agree (RANSAC: Fischler and
    Bolles 1981; corners are followed as in Bouguet 2001).
    """
    red, green, blue = (pictures[..., channel] for channel in range(3))
    greys = ((red + green + blue) / 3 * 255).round().astype(np.uint8)
    people = alphas > _PERSON

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
            grey, before, corners, unknown, winSize=(11, 11), maxLevel=3
        )
        followed = status[:, 0] > 0
        if followed.sum() < _LEAST_CORNERS:
            return still
        move, agree = cv2.estimateAffinePartial2D(
            corners[followed], found[followed], ransacReprojThreshold=_OFF
        )
        return still if move is None or agree.mean() < _LEAST_AGREED else np.vstack([move, still[2]])

    steps = threads.map(step, greys[1:], greys[:-1], people[1:] | people[:-1])
    to_first = [np.eye(3)]
    for one in steps:
        to_first.append(to_first[-1] @ one)
    to_middle = np.linalg.inv(to_first[len(to_first) // 2])
    return np.stack([(to_middle @ one)[:2] for one in to_first])
