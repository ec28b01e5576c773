"""Asks the frames around each frame what they show of its samples, along the motion.

A sample is followed to either side for as long as the motion there and back leads to the same place, and a frame counts
by how much its colour is the same there.
"""

from __future__ import annotations

import math
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, fields, is_on_gpu, nvtx_range

FloatArray = npt.NDArray[np.float32]

_REACH_FRAMES = 8
"""Frames to either side that vote. This and the following constants were chosen on ``benchmarks/matte_quality``, seeds
101 to 118; with five frames the gain was half."""
_SAME_COLOR = 0.03
"""Standard deviation of a channel between samples that show the same, 0..1."""
_SAME_PLACE = 1.5
"""That of a place from where the motion there and back leads to, in samples."""
_LEAST_VOICE = 0.02
"""Added to a frame's vote, which is ``|2 alpha - 1|`` squared, so that a frame with alpha near one half has one."""
_OF_COLOR, _OF_PLACE = 1 / (6 * _SAME_COLOR**2), 1 / (2 * _SAME_PLACE**2)
"""Factors of squared differences in an exponent; the first applies to the sum over three channels."""

VOTE_RULES: Final = (_REACH_FRAMES, _SAME_COLOR, _SAME_PLACE, _LEAST_VOICE)
"""Everything that votes depend on besides their input."""


def votes_along_motion(
    seen: FloatArray, ahead: FloatArray, back: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Take the mean alpha of each sample over all frames that show it, by how sure each frame is.

    Runs where the frames are, on a GPU in one launch on the current CuPy stream; the results differ by rounding, of
    places to 1/32 sample where OpenCV reads so.

    Args:
        seen: RGB and alpha of consecutive frames, float32 [T, E, 4, h, w], 0..1, NumPy or CuPy.
        ahead: Motion from each of the first T - 1 frames to the next, right and down, in samples, float32
            [T - 1, E, h, w, 2], on the same device.
        back: Likewise, from each of the last T - 1 frames to the one before.

    Returns:
        Two arrays, float32 [T, E, h, w], on the same device: the mean of alpha, 0..1; and how many other frames show
        the same there.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(seen):
        on_gpu: tuple[FloatArray, FloatArray] = _votes_on_gpu(seen, ahead, back)
        return on_gpu
    count, own = len(seen), seen[:, :, 3]
    voices = _voices(own)
    votes, others = voices * own, np.zeros_like(own)
    ways = [np.moveaxis(way, -1, 2) for way in (ahead, back)]
    for is_back in (False, True):
        way, home = reversed(ways) if is_back else ways
        rows, columns = np.indices(own.shape[2:], dtype="float32")
        x, y, trust = (np.broadcast_to(one, own.shape) for one in (columns, rows, np.ones_like(rows)))
        for step in range(1, min(_REACH_FRAMES, count - 1) + 1):
            here, there = slice(0, count - step), slice(step, count)
            pairs, left = slice(step - 1, count - 1), slice(0, -1)
            if is_back:
                here, there, pairs, left = there, here, slice(0, count - step), slice(1, None)
            x, y, trust = x[left], y[left], trust[left]
            move = _read(way[pairs], x, y)
            x, y = x + move[:, :, 0], y + move[:, :, 1]
            found = _read(np.concatenate([seen[there], home[pairs]], axis=2), x, y)
            off = np.square(move + found[:, :, 4:]).sum(axis=2)
            is_inside = (x >= 0) & (x <= own.shape[3] - 1) & (y >= 0) & (y <= own.shape[2] - 1)
            trust = trust * np.exp(off * np.float32(-_OF_PLACE)) * is_inside
            change = np.square(found[:, :, :3] - seen[here, :, :3]).sum(axis=2)
            same = trust * np.exp(change * np.float32(-_OF_COLOR))
            voice = same * _voices(found[:, :, 3])
            voices[here] += voice
            votes[here] += voice * found[:, :, 3]
            others[here] += same
    return votes / voices, others


def _voices(alpha: FloatArray) -> FloatArray:
    """The weights of frames' votes, by how sure they are."""
    voices: FloatArray = np.square(2 * alpha - 1) + np.float32(_LEAST_VOICE)
    return voices


def _read(planes: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Read planes [T, E, C, h, w] between samples, linearly, at places [T, E, h, w]; their border goes on."""
    out = np.empty((*planes.shape[:3], *x.shape[2:]), np.float32)
    for at in np.ndindex(*planes.shape[:2]):
        for plane, target in zip(planes[at], out[at], strict=True):
            target[...] = cv2.remap(
                np.ascontiguousarray(plane), x[at], y[at], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
            )
    return out


# Same as in votes_along_motion.cu.
_BLOCK = (32, 8)

_VOTES = np.dtype(
    [
        *fields("u8", "seen", "ahead", "back", "agreed", "others"),
        *fields("i4", "frames", "eyes", "height", "width"),
    ]
)


def _votes_on_gpu(seen: Any, ahead: Any, back: Any) -> Any:
    import cupy

    seen, ahead, back = map(cupy.ascontiguousarray, (seen, ahead, back))
    frames, eyes, _, height, width = seen.shape
    agreed, others = cupy.empty((2, frames, eyes, height, width), "float32")
    job = np.zeros(1, _VOTES)
    job[0] = (*(array.data.ptr for array in (seen, ahead, back, agreed, others)), frames, eyes, height, width)
    grid = math.ceil(width / _BLOCK[0]), math.ceil(height / _BLOCK[1]), frames * eyes
    with nvtx_range("votes along motion"):
        parts = {"OF_PLACE": _OF_PLACE, "OF_COLOR": _OF_COLOR, "LEAST_VOICE": _LEAST_VOICE}
        defines = {name: f"{value}f" for name, value in parts.items()}
        kernel = cuda_kernel("votes_along_motion.cu", "votes_along_motion", REACH=_REACH_FRAMES, **defines)
        kernel(grid, _BLOCK, (by_value(job),))
    return agreed, others
