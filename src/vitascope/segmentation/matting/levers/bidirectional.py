"""A shot seen in both directions: what a network remembers of the frames before, and of those that follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from vitascope.frames import Frame
from vitascope.models.network import MatteEstimate, NetworkInput, SpatialState
from vitascope.segmentation.matting.batch import Batch, resized
from vitascope.segmentation.matting.estimates import as_coefficients, bounded, enlarged, small_grey
from vitascope.segmentation.matting.shots import StreamNetwork, next_part

__all__ = ["BACKWARD_SCALE", "Bidirectional"]

BACKWARD_SCALE: Final = 1.25
"""Size of the pictures on the way back: edges gain by it; people who fill the picture are lost at larger ones."""
_FRAMES_OF_A_CALL = 8
"""A window is shown in such parts: what the network answers is larger than what is kept of it."""
_CELLS = 24
"""Along the longest side: places at which both answers are weighed. This and what follows was chosen on two clips of
each class of ``benchmarks/matte_quality``, others than those of its table."""
_TRUST = 4
"""The power of sureness that is its weight."""
_LEAST_WEIGHT = 0.002
"""Where neither is sure, both count the same."""
_FAVOUR = 50
"""How much more an answer counts where it sees somebody: people are lost in one direction more often than invented."""


class Bidirectional:
    """Shows each window of a shot forwards, then backwards, and brings both answers together.

    The way back begins with what the way there remembers of the window's last frame, and a few frames beyond it
    (``Batch.following``). So people who enter, and who were hidden, are known before they are seen; and the network has
    seen every place once before. The way back is somewhat larger where the picture has the samples, and nothing else
    stands between it and the eye's own picture.

    Place by place, each direction counts as much as it is sure: the mean of ``|2 alpha - 1|`` over a cell, to the
    fourth; and far more where it sees somebody. Edges are as unsure in both, and are averaged; of somebody whom one
    direction misses the other's answer is taken, if that one is sure.

    Args:
        stream: The network, which takes pictures of any size, and how it is shown frames; its memory is a
            ``SpatialState``.
    """

    def __init__(self, stream: StreamNetwork) -> None:
        self._stream, self._wanted = stream, stream.wanted
        if stream.fisheye is None and stream.agreement is None:
            height, width = (
                max(min(round(side * BACKWARD_SCALE), own), side)
                for side, own in zip(stream.wanted.size, stream.eye_size, strict=True)
            )
            self._wanted = replace(stream.wanted, size=(height, width))
        shrink = max(max(stream.wanted.size) / _CELLS, 1.0)
        self._cells = (
            max(round(stream.wanted.size[0] / shrink), 1),
            max(round(stream.wanted.size[1] / shrink), 1),
        )
        self._forward = stream.shots(fisheye=stream.fisheye, agreement=stream.agreement)

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames: alpha's coefficients at the size of the way back."""
        estimates: list[MatteEstimate] = []
        first = 0
        while first < len(batch):
            end = next_part(batch.starts_shot, first, len(batch) - first)
            estimates += self._of_shot(batch.take(range(first, end)), is_last=end == len(batch))
            first = end
        return estimates

    def _of_shot(self, batch: Batch, *, is_last: bool) -> list[MatteEstimate]:
        """Mattes of frames of one shot, of which those that follow come next where they are the batch's last."""
        usual = self._stream.wanted
        ahead: list[_Known] = []
        most = max(_FRAMES_OF_A_CALL, self._stream.look_ahead_frames)
        for at in range(0, len(batch), most):
            part = batch.take(range(at, min(at + most, len(batch))))
            ahead += self._known(self._forward.estimate(part), part.images, usual)
        back = self._seen_back([*batch.frames, *(batch.following if is_last else ())], count=len(batch))
        return [
            estimate
            for at in range(0, len(batch), _FRAMES_OF_A_CALL)
            for estimate in _together(
                ahead[at : at + _FRAMES_OF_A_CALL], back[at : at + _FRAMES_OF_A_CALL], self._wanted.size
            )
        ]

    def _seen_back(self, frames: Sequence[Frame], *, count: int) -> list[_Known]:
        """What the way back says of the first of these frames, which it begins with the last of."""
        stream, state = self._stream, self._forward.state
        assert isinstance(state, SpatialState)  # as StreamMatting sees to
        memory = state.copy()
        if self._wanted.size != stream.wanted.size:
            memory.stretch(self._wanted.size)
        backward = stream.shots(state=memory, fisheye=stream.fisheye, agreement=stream.agreement)
        known: list[_Known] = []
        for end in range(len(frames), 0, -_FRAMES_OF_A_CALL):
            shown = frames[max(end - _FRAMES_OF_A_CALL, 0) : end][::-1]
            images = stream.views.make(shown, self._wanted)
            answers = backward.estimate(Batch(shown, images, [False] * len(shown)))
            beyond = max(end - count, 0)
            if beyond < len(shown):
                known += self._known(answers[beyond:], images[beyond:], self._wanted)
        return known[::-1]

    def _known(self, estimates: Sequence[MatteEstimate], images: Any, wanted: NetworkInput) -> list[_Known]:
        """Answers about frames, and how much they count."""
        kept = [as_coefficients(one, seen, wanted) for one, seen in zip(estimates, images, strict=True)]
        # All at once: on a GPU launches would take longer than what they launch.
        pictures = images.reshape(-1, *images.shape[2:])
        together = MatteEstimate(
            gain=np.concatenate([one.gain for one in kept]),
            offset=np.concatenate([one.offset for one in kept]),
        )
        gain, offset = bounded(together, pictures, wanted)
        alpha = gain * small_grey(together, pictures, wanted)[:, None] + offset
        sure, seen = resized(abs(2 * alpha - 1), self._cells), resized(alpha, self._cells)
        weight = (sure**_TRUST + _LEAST_WEIGHT) * (1 + _FAVOUR * seen)
        eyes = images.shape[1]
        return [
            (gain[at : at + eyes], offset[at : at + eyes], weight[at : at + eyes])
            for at in range(0, len(gain), eyes)
        ]


_Known = tuple[Any, Any, Any]
"""Alpha's gain and offset of a frame, float32 [E, 1, h, w], and how much they count, float32 [E, 1, rows, columns]."""


def _together(
    ahead: Sequence[_Known], back: Sequence[_Known], size: tuple[int, int]
) -> Iterator[MatteEstimate]:
    """Both answers about each frame as one."""
    gains, offsets, weights = (
        [np.concatenate([one[part] for one in side]) for side in (ahead, back)] for part in range(3)
    )
    share = resized(weights[0] / (weights[0] + weights[1]), size)
    gain, offset = (
        enlarged(one, size) * share + enlarged(other, size) * (1 - share) for one, other in (gains, offsets)
    )
    eyes = len(ahead[0][0])
    for at in range(0, len(gain), eyes):
        yield MatteEstimate(gain=gain[at : at + eyes], offset=offset[at : at + eyes])
