"""Tries a small network first, and the full network where the small one is unsure or was recently wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.config.compute import InferenceSettings
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation.matting.batch import (
    Batch,
    Estimator,
)
from vitascope.segmentation.matting.estimates import plain_rgb, small_alpha
from vitascope.segmentation.matting.shots import StreamNetwork

FloatArray = npt.NDArray[np.float32]

_LOW, _HIGH = 0.1, 0.9
_TILE = 16
_LEAST_SHARE = 0.01
"""Minimum share of the picture by which doubt is divided, so that a speck alone raises no doubt."""


class EarlyExit:
    """Uses the first network while it agrees with the full one and is sure.

    Its confidence in a frame is 1, less the share of the matte that is neither person nor background over more than an
    edge's width (``doubt``), less its difference from the full network's matte when both last saw the same frame
    (``disagreement``). Both see the first frame of a shot and every ``recheck_frames``-th frame after a comparison.

    A recurrent network's memory does not change at frames that it is not run on.

    Args:
        inner: Runs the full network.
        stream: The full network, and how it is shown frames.
        first: The first network.
        first_wanted: Its picture of a whole eye.
        options: The confidence from which on the first network is used, and how often both are compared.
    """

    def __init__(
        self,
        inner: Estimator,
        stream: StreamNetwork,
        first: MattingNetwork,
        *,
        first_wanted: NetworkInput,
        options: InferenceSettings,
    ) -> None:
        self._inner, self._first = inner, stream.shots(first)
        self._first_wanted, self._wanted = first_wanted, stream.wanted
        self._confidence, self._recheck_frames = options.early_exit_confidence, options.recheck_frames
        self._tally = stream.tally
        self._error = 1.0
        self._since = options.recheck_frames

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames, each from one of the networks."""
        images = shown(batch.images, self._wanted, self._first_wanted)
        answers = self._first.run(images, batch.starts_shot)
        mattes = [
            to_numpy(small_alpha(answer, seen, self._first_wanted))
            for answer, seen in zip(answers, images, strict=True)
        ]
        estimates: list[MatteEstimate] = []
        while (at := len(estimates)) < len(batch):
            if self._is_check(batch, at):
                (full,) = self._inner.estimate(batch.take([at]))
                theirs = to_numpy(small_alpha(full, batch.images[at], self._wanted))
                self._error, self._since = disagreement(mattes[at], theirs), 0
                estimates.append(full)
                continue
            end = at + 1
            while end < len(batch) and self._since + end - at < self._recheck_frames - 1:
                if batch.starts_shot[end]:
                    break
                end += 1
            self._since += end - at
            sure = [1 - doubt(matte) - self._error >= self._confidence for matte in mattes[at:end]]
            asked = [at + index for index, is_sure in enumerate(sure) if not is_sure]
            full_answers = iter(self._inner.estimate(batch.take(asked)) if asked else ())
            estimates += [
                answers[at + index] if is_sure else next(full_answers) for index, is_sure in enumerate(sure)
            ]
            self._tally.early_frames += sum(sure)
        return estimates

    def _is_check(self, batch: Batch, index: int) -> bool:
        return batch.starts_shot[index] or self._since + 1 >= self._recheck_frames


def doubt(alpha: FloatArray) -> float:
    """Measure the share of a matte that is neither person nor background, apart from edges.

    Args:
        alpha: float32 [E, h, w], 0..1.

    Returns:
        Number of samples between 0.1 and 0.9 whose eight neighbours are too, over that of people's samples; at least 0.
    """
    unsure = (alpha > _LOW) & (alpha < _HIGH)
    thick = unsure.copy()
    for axis in (1, 2):
        before, after = np.roll(thick, 1, axis), np.roll(thick, -1, axis)
        thick = thick & before & after
    people = max(float(np.mean(alpha > 0.5)), _LEAST_SHARE)
    return float(np.mean(thick)) / people


def disagreement(ours: FloatArray, theirs: FloatArray) -> float:
    """Largest local difference between two mattes of a frame: a lost hand counts, however large the person.

    Args:
        ours: float32 [E, h, w], 0..1.
        theirs: float32 [E, H, W], of any size; ``ours`` is resized to it.

    Returns:
        The largest mean difference of any tile of about 16 x 16 samples of ``theirs``, 0..1.
    """
    height, width = theirs.shape[1:]
    if ours.shape != theirs.shape:
        ours = resized(ours[:, None], (height, width))[:, 0]
    tiles = max(round(height / _TILE), 1), max(round(width / _TILE), 1)
    return float(resized(np.abs(ours - theirs)[:, None], tiles).max())


def shown(images: Any, wanted: NetworkInput, other: NetworkInput) -> Any:
    """Convert pictures that were prepared for one network into those for another.

    Args:
        images: [T, E, ...] in the format ``wanted``.
        wanted: Their format.
        other: Format of the result; of the same size or smaller.

    Returns:
        [T, E, ...] in the format ``other``, C-contiguous, on the same device.
    """
    arrays = array_module(on_gpu=is_on_gpu(images))
    rgb = plain_rgb(images, wanted)
    steps, eyes, _, height, width = rgb.shape
    small = resized(arrays.ascontiguousarray(rgb.reshape(steps * eyes, 3, height, width)), other.size)
    for channel, (mean, std) in enumerate(zip(other.mean, other.std, strict=True)):
        small[:, channel] = (small[:, channel] - mean) / std
    if other.layout == "NHWC":
        small = arrays.moveaxis(small, 1, -1)
    return arrays.ascontiguousarray(small.astype(other.dtype)).reshape(steps, eyes, *other.picture_shape())
