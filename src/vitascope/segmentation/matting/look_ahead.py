"""Prepares a network's memory at the start of a shot: warm-up on the first picture, and look-ahead.

A network with memory is unsure of what it sees for the first time. So before its output counts, it is shown a
small version of the first picture a few times (``settle``); and if the following frames are available, it is
shown these from the last to the first (``look_ahead``), so that it has a past. Both make mistakes, but
different ones: they miss people, and see people where nobody is. ``docs/decisions/0002-warm-up.md`` has the
measurements.
"""

from __future__ import annotations

from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.models.network import (
    FloatArray,
    MatteEstimate,
    MattingNetwork,
    NetworkInput,
    NetworkState,
    SpatialState,
)
from vitascope.segmentation.matting.estimates import small_alpha

SETTLING_SIDE: Final = 384
"""Longest side, in samples, of the picture used for the warm-up."""
LOOK_AHEAD_SIDE: Final = 512
"""Longest side, in samples, of the pictures that are shown backwards: eight of them cost as much as 3.6 of 768."""
_CELLS = 32
"""Cells along the longest side: two mattes differ by a person if a cell's mean differs, not just an edge."""
_DIFFERENT = 0.2
_SURE_AHEAD, _SURE_SETTLED = 0.8, 0.9
"""Minimum mean alpha to believe in a person whom only the look-ahead or only the warm-up sees. On 28 clips
with a truth, people seen backwards are real from 0.8 on (below, two of nine); people seen in the first
picture are sometimes real from 0.9 on, never below."""


def settle(network: MattingNetwork, picture: Any, state: NetworkState, *, calls: int) -> list[MatteEstimate]:
    """Show a network with memory the first picture of a shot a few times.

    The network is unsure of what it sees for the first time: whole torsos are missing from the first frames of a shot.
    Shown the same picture again it becomes sure; on a small picture, in which a feature covers more of a body, it
    becomes sure of the right thing. So a larger picture is shrunk, and the resulting memory is enlarged.

    Args:
        network: The network.
        picture: [1, E, 3, h, w] of one time step, for the network's ``infer``, NumPy or CuPy.
        state: The stream's empty state; modified in place.
        calls: How often it is shown; 0 leaves the state empty.

    Returns:
        The last output, for the shrunk picture; none without a call.

    Raises:
        ModelError: As ``infer``.
        EngineError: As ``infer``.
    """
    size, answers = picture.shape[3:], []
    if calls and isinstance(state, SpatialState):
        picture = shrunk(picture, SETTLING_SIDE)
    for _ in range(calls):
        answers = network.infer(picture, state)
    if picture.shape[3:] != size and isinstance(state, SpatialState):
        state.stretch(size)
    return answers


def settle_again(network: MattingNetwork, picture: Any, state: SpatialState) -> SpatialState:
    """Refresh the memory by showing a picture in which much is new at a small size.

    People who emerge from behind a passing thing are found late, and the thing is taken for them, because the
    memory says who was there. On a smaller picture, they are recognised sooner; the refreshed memory is then
    used for the full picture.

    Args:
        network: The network; its pictures are [3, h, w].
        picture: [1, E, 3, h, w], the next one for the network, NumPy or CuPy.
        state: Its memory of the previous frames; unchanged.

    Returns:
        The memory to continue with; the same if the picture is small already.

    Raises:
        ModelError: As ``infer``.
        EngineError: As ``infer``.
    """
    small = shrunk(picture, LOOK_AHEAD_SIDE)
    if small is picture:
        return state
    state = state.copy()
    state.stretch(small.shape[3:])
    network.infer(small, state)
    state.stretch(picture.shape[3:])
    return state


def settled_alpha(answers: list[MatteEstimate], picture: Any) -> FloatArray | None:
    """Alpha of the picture given to ``settle``, from its output; None if it made no call.

    Returns:
        float32 [E, h, w], 0..1, in the host's memory, no longer than ``SETTLING_SIDE``.
    """
    return _alpha(answers[0], shrunk(picture, SETTLING_SIDE)[0]) if answers else None


def look_ahead(
    network: MattingNetwork, pictures: Any, *, calls: int, most: int
) -> tuple[SpatialState, FloatArray]:
    """Start a shot with a memory of its first frames, seen backwards.

    Where this and the warm-up on the first picture (``settle``) disagree, a person whom only one of them sees
    is believed if that one is sure; otherwise the other's memory is used.

    Args:
        network: The network, whose memory is a ``SpatialState``; its pictures are RGB 0..1, [3, h, w].
        pictures: [T, E, 3, h, w] the shot's first frames, NumPy or CuPy.
        calls: How often the first picture is shown for the warm-up; 0 for none.
        most: Maximum frames of one call.

    Returns:
        The memory for matting the first frame; and that frame's alpha from the backward pass, float32 [E, h, w], 0..1,
        in the host's memory, no longer than ``LOOK_AHEAD_SIDE``.

    Raises:
        ModelError: As ``infer``.
        EngineError: As ``infer``.
    """
    size = int(pictures.shape[3]), int(pictures.shape[4])
    settled, back = network.new_state(), network.new_state()
    assert isinstance(settled, SpatialState)  # by contract
    assert isinstance(back, SpatialState)
    alone = settle(network, pictures[:1], settled, calls=calls)
    small = shrunk(pictures, LOOK_AHEAD_SIDE)
    answers: list[MatteEstimate] = []
    for end in range(len(small), 0, -most):
        step = small[max(end - most, 0) : end][::-1]
        answers = network.infer(step if step.flags.c_contiguous else step.copy(), back)
    if small.shape[3:] != size:
        back.stretch(size)
    alpha = _alpha(answers[-1], small[0])
    by_itself = settled_alpha(alone, pictures[:1])
    if by_itself is not None:
        back.take(settled, _better_settled(by_itself, alpha))
    return back, alpha


def _better_settled(
    settled: npt.NDArray[np.float32], ahead: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Find where the warm-up's memory is better than the look-ahead's.

    Args:
        settled: float32 [E, h, w], 0..1: the first frame's alpha from the warm-up.
        ahead: The same from the look-ahead, in another size.

    Returns:
        float32 [E, rows, columns] for cells of the picture, 32 along its longest side: 1 there and in a margin of one
        cell, 0 elsewhere.
    """
    eyes, height, width = ahead.shape
    shrink = max(max(height, width) / _CELLS, 1.0)
    columns, rows = max(round(width / shrink), 1), max(round(height / shrink), 1)
    chosen = np.zeros((eyes, rows, columns), np.float32)
    for eye in range(eyes):
        one, other = cv2.resize(settled[eye], (width, height)), ahead[eye]
        for mine, theirs, sure, is_settled in (
            (one, other, _SURE_SETTLED, True),
            (other, one, _SURE_AHEAD, False),
        ):
            more = (mine - theirs).clip(0, 1)
            cells = cv2.resize(more, (columns, rows), interpolation=cv2.INTER_AREA) > _DIFFERENT
            count, parts = cv2.connectedComponents(cells.astype(np.uint8), connectivity=8)
            for part in range(1, count):
                inside = cv2.resize(
                    (parts == part).astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST
                )
                claimed = mine[(inside > 0) & (more > _DIFFERENT / 2)]
                mean_alpha = float(claimed.mean()) if claimed.size else 0.0
                if (mean_alpha >= sure) == is_settled:
                    chosen[eye][cv2.dilate((parts == part).astype(np.uint8), np.ones((3, 3))) > 0] = 1.0
    return chosen


def _alpha(estimate: MatteEstimate, pictures: Any) -> npt.NDArray[np.float32]:
    """Alpha of one frame, float32 [E, h, w], in the host's memory."""
    shown = NetworkInput((int(pictures.shape[-2]), int(pictures.shape[-1])), "NCHW")
    return to_numpy(small_alpha(estimate, pictures, shown))


def shrunk(pictures: Any, longest_side: int) -> Any:
    """Shrink pictures [T, E, 3, h, w] to a longest side, by area means, in the same dtype."""
    steps, eyes, _, height, width = pictures.shape
    scale = longest_side / max(height, width)
    if scale >= 1:
        return pictures
    size = max(round(height * scale), 1), max(round(width * scale), 1)
    planes = pictures.reshape(steps * eyes, 3, height, width)
    small = resized(planes, size)
    return small.reshape(steps, eyes, 3, *size).astype(pictures.dtype, copy=False)
