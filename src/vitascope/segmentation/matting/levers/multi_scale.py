"""Averages the mattes of several sizes of the same picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import bounded, enlarged
from vitascope.segmentation.matting.shots import ShotInference, StreamNetwork


@dataclass(frozen=True, slots=True)
class _Size:
    """One size."""

    wanted: NetworkInput
    shots: ShotInference


class MultiScale:
    """Shows each frame at several sizes, read from the full frame, and averages the coefficients of the guided filter.

    Alpha is linear in the coefficients, so their mean is the mean of the mattes. Where a size's matte exceeds
    0..1, its coefficients are bounded first: otherwise one size far below 0 would outvote the others. A
    recurrent network keeps a memory for each size.

    Args:
        stream: The network, which takes pictures of any size, and how it is shown frames.
        multiple: The sides of pictures are multiples of it.
        scales: Sizes relative to the usual one.
    """

    def __init__(self, stream: StreamNetwork, *, multiple: int, scales: Sequence[float]) -> None:
        self._stream = stream
        self._sizes = [_Size(scaled(stream.wanted, scale, multiple), stream.shots()) for scale in scales]
        self._largest = max(one.wanted.size for one in self._sizes)

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames: coefficients at the largest size."""
        sums: list[list[Any]] = [[] for _ in batch.frames]
        stream = self._stream
        for one in self._sizes:
            is_usual = one.wanted.size == stream.wanted.size
            images = batch.images if is_usual else stream.views.make(batch.frames, one.wanted)
            answers = one.shots.estimate(replace(batch, images=images))
            for index, (answer, seen) in enumerate(zip(answers, images, strict=True)):
                gain, offset, _ = bounded([answer], seen[None], one.wanted)
                larger = [enlarged(planes, self._largest) for planes in (gain, offset)]
                sums[index] = (
                    larger if not sums[index] else [a + b for a, b in zip(sums[index], larger, strict=True)]
                )
        share = 1 / len(self._sizes)
        return [MatteEstimate(gain=gain * share, offset=offset * share) for gain, offset in sums]


def scaled(wanted: NetworkInput, scale: float, multiple: int) -> NetworkInput:
    """Return a network's picture format at another size; unchanged at scale 1."""
    if scale == 1.0:
        return wanted
    height, width = (max(round(side * scale / multiple), 1) * multiple for side in wanted.size)
    return replace(wanted, size=(height, width))
