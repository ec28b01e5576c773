"""Several sizes of the same picture, and the mean of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation.matting.levers.alpha import as_coefficients, small_grey
from vitascope.segmentation.matting.levers.options import Tally
from vitascope.segmentation.matting.levers.pictures import Pictures, RunShots, Views, array_module, resized
from vitascope.segmentation.matting.shots import ShotInference

__all__ = ["MultiScale"]


_SURE = 0.25
"""Beyond 0..1: a matte that is so far outside is flat."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """One size."""

    wanted: NetworkInput
    shots: ShotInference


class MultiScale:
    """Shows each frame at several sizes, read from the full frame, and averages the coefficients of the guided filter.

    Alpha is linear in the coefficients, so their mean is the mean of the mattes. Where a size's matte exceeds 0..1 its
    coefficients are bounded first: else one size that is far below 0 would outvote all the others. A recurrent network
    keeps a memory for each size.

    Args:
        network: Takes pictures of any size.
        run: Shows pictures to a network.
        views: Reads frames at other sizes.
        wanted: What the network is shown of a whole eye at scale 1.
        multiple: Of the sides of pictures.
        scales: Sizes relative to that.
        warm_up_frames: See ``ShotInference``.
        with_foreground: Keep the foreground's planes, where the network gives them.
        tally: Told what the network saw.
    """

    def __init__(
        self,
        network: MattingNetwork,
        run: RunShots,
        views: Views,
        *,
        wanted: NetworkInput,
        multiple: int,
        scales: Sequence[float],
        warm_up_frames: int,
        with_foreground: bool,
        tally: Tally,
    ) -> None:
        self._run, self._views, self._wanted = run, views, wanted
        self._with_foreground = with_foreground
        self._tally = tally
        self._lanes = [
            _Lane(scaled(wanted, scale, multiple), ShotInference(network, warm_up_frames=warm_up_frames))
            for scale in scales
        ]
        self._size = max(lane.wanted.size for lane in self._lanes)

    def estimate(self, pictures: Pictures) -> list[MatteEstimate]:
        """Mattes of the next frames: coefficients at the largest size."""
        sums: list[list[Any]] = [[] for _ in pictures.frames]
        for lane in self._lanes:
            is_usual = lane.wanted.size == self._wanted.size
            images = pictures.images if is_usual else self._views.make(pictures.frames, lane.wanted)
            self._tally.samples += int(images.size) // 3
            answers = self._run(lane.shots, images, pictures.starts_shot)
            for index, (answer, seen) in enumerate(zip(answers, images, strict=True)):
                kept = as_coefficients(answer, seen, lane.wanted, with_foreground=self._with_foreground)
                larger = [self._enlarged(planes) for planes in _bounded(kept, seen, lane.wanted)]
                sums[index] = (
                    larger if not sums[index] else [a + b for a, b in zip(sums[index], larger, strict=True)]
                )
        share = 1 / len(self._lanes)
        return [MatteEstimate(gain=gain * share, offset=offset * share) for gain, offset in sums]

    def _enlarged(self, planes: Any) -> Any:
        """Coefficients at the largest size, float32, on their device."""
        if planes.shape[2:] == self._size:
            return planes.astype("float32")
        arrays = array_module(on_gpu=is_on_gpu(planes))
        return resized(arrays.ascontiguousarray(planes), self._size)


def _bounded(estimate: MatteEstimate, images: Any, wanted: NetworkInput) -> tuple[Any, Any]:
    """Coefficients whose alpha stays in 0..1 at the picture's own greys; far outside they no longer follow the grey."""
    assert estimate.gain is not None  # coefficients, by contract
    assert estimate.offset is not None
    gain, offset = estimate.gain.astype("float32"), estimate.offset.astype("float32")
    grey = small_grey(estimate, images, wanted)
    alpha = gain[:, -1] * grey + offset[:, -1]
    inside = alpha.clip(0.0, 1.0)
    gain[:, -1] *= (1 - abs(alpha - inside) / _SURE).clip(0.0, 1.0)
    offset[:, -1] = inside - gain[:, -1] * grey
    return gain, offset


def scaled(wanted: NetworkInput, scale: float, multiple: int) -> NetworkInput:
    """A network's picture at another size; at scale 1 what it is."""
    if scale == 1.0:
        return wanted
    height, width = (max(round(side * scale / multiple), 1) * multiple for side in wanted.size)
    return replace(wanted, size=(height, width))
