"""A shot seen in both directions: what a network remembers of the frames before, and of those that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.models.network import MatteEstimate, NetworkInput, SpatialState
from vitascope.segmentation.matting.batch import Batch, array_module, resized
from vitascope.segmentation.matting.estimates import as_coefficients, bounded, enlarged, small_grey
from vitascope.segmentation.matting.shots import StreamNetwork, next_part

__all__ = ["BACKWARD_SCALE", "Bidirectional"]

BACKWARD_SCALE: Final = 1.25
"""Size of the pictures on the way back: edges gain by it; people who fill the picture are lost at larger ones."""
_FRAMES_OF_A_CALL = 8
"""A stretch is shown in such parts: what the network answers is larger than what is kept of it."""
_CELLS = 24
"""Along the longest side: places at which is asked who is surer."""
_TRUST = 4
"""The power of sureness that is its weight: among 4 to 16, on people who cross, enter and are small."""
_LEAST_WEIGHT = 0.002
"""Where neither is sure, both count the same."""


class Bidirectional:
    """Shows each stretch of a shot forwards, then backwards, and brings both answers together.

    The way back begins with what the way there remembers of the stretch's last frame, and a few frames beyond it
    (``Batch.following``). So people who enter, and who were hidden, are known before they are seen; and the network has
    seen every place once before. The way back is somewhat larger where the picture has the samples, and nothing else
    stands between it and the eye's own picture.

    Place by place, each direction counts as much as it is sure: the mean of ``|2 alpha - 1|`` over a cell, to the
    fourth. Edges are as unsure in both, and are averaged; of somebody whom one direction half misses the other counts.

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
            answers = self._forward.estimate(part)
            ahead += [_known(one, seen, usual) for one, seen in zip(answers, part.images, strict=True)]
        frames = [*batch.frames, *(batch.following if is_last else ())][::-1]
        state = self._forward.state
        assert isinstance(state, SpatialState)  # require_possible
        memory = state.copy()
        if self._wanted.size != usual.size:
            memory.stretch(self._wanted.size)
        backward = self._stream.shots(
            state=memory, fisheye=self._stream.fisheye, agreement=self._stream.agreement
        )
        back: list[_Known] = []
        for at in range(0, len(frames), _FRAMES_OF_A_CALL):
            shown = frames[at : at + _FRAMES_OF_A_CALL]
            images = self._stream.views.make(shown, self._wanted)
            answers = backward.estimate(Batch(shown, images, [False] * len(shown)))
            beyond = max(len(frames) - len(batch) - at, 0)
            back += [
                _known(one, seen, self._wanted)
                for one, seen in zip(answers[beyond:], images[beyond:], strict=True)
            ]
        return [_together(*both, self._wanted.size) for both in zip(ahead, back[::-1], strict=True)]


_Known = tuple[Any, Any, Any]
"""Alpha's gain and offset, float32 [E, 1, h, w], and how sure they are, float32 [E, 1, rows, columns], 0..1."""


def _known(estimate: MatteEstimate, images: Any, wanted: NetworkInput) -> _Known:
    """An answer about one frame, and how sure it is by place."""
    kept = as_coefficients(estimate, images, wanted)
    gain, offset = bounded(kept, images, wanted)
    alpha = gain[:, -1] * small_grey(kept, images, wanted) + offset[:, -1]
    shrink = max(max(wanted.size) / _CELLS, 1.0)
    cells = max(round(wanted.size[0] / shrink), 1), max(round(wanted.size[1] / shrink), 1)
    arrays = array_module(on_gpu=is_on_gpu(alpha))
    return gain, offset, resized(arrays.ascontiguousarray(abs(2 * alpha - 1)[:, None]), cells)


def _together(ahead: _Known, back: _Known, size: tuple[int, int]) -> MatteEstimate:
    """Both answers about one frame as one."""
    sure_ahead, sure_back = (sure**_TRUST + _LEAST_WEIGHT for *_, sure in (ahead, back))
    share = resized(sure_ahead / (sure_ahead + sure_back), size)
    gain, offset = (
        enlarged(one, size) * share + enlarged(other, size) * (1 - share)
        for one, other in zip(ahead[:2], back[:2], strict=True)
    )
    return MatteEstimate(gain=gain, offset=offset)
