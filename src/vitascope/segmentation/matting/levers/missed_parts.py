"""Restores parts of people that a frame misses and most others show, along the motion in the picture."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cells import mean_around
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.morphology import dilate_box, erode_box
from vitascope.gpu.kernels.moved_planes import read_at

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
_LEAST_FRAMES = 2.0
"""Minimum number of other frames that show the same."""
_CHANGE, _DECIDED = 0.25, 0.3
"""By how much more alpha a part is missed, at least, and how near to 1 it must come."""

MISSED_PART_RULES: Final = (
    _REACH_FRAMES,
    _SAME_COLOR,
    _SAME_PLACE,
    _LEAST_VOICE,
    _LEAST_FRAMES,
    _CHANGE,
    _DECIDED,
)
"""Constants that restored mattes depend on."""


def missed_parts(seen: FloatArray, ahead: FloatArray, back: FloatArray) -> FloatArray:
    """Find what each frame's matte misses of people whom most other frames of the shot show.

    A blurred arm is missed in a shot's first frames, and found in those after them; a shoulder is lost while its owner
    leaves. So each sample is followed along the motion, for as long as the picture looks the same there. Each frame
    votes, by how sure it is. Only parts at least three samples thick count: edges are not known so well. What most
    frames do not show stays: people whom few frames see were lost, and hardly any scenery went.

    Args:
        seen: RGB and alpha of consecutive frames, float32 [T, E, 4, h, w], 0..1, NumPy or CuPy.
        ahead: Motion from each of the first T - 1 frames to the next, right and down, in samples, float32
            [T - 1, E, h, w, 2], on the same device.
        back: Likewise, from each of the last T - 1 frames to the one before.

    Returns:
        What to add to alpha, float32 [T, E, h, w], on the same device; mostly 0.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    count = len(seen)
    own = seen[:, :, 3]
    arrays = array_module(on_gpu=is_on_gpu(seen))
    voices = _voices(own)
    votes, others = voices * own, arrays.zeros_like(own)
    ways = [np.moveaxis(way, -1, 2) for way in (ahead, back)]
    for is_back in (False, True):
        way, home = reversed(ways) if is_back else ways
        rows, columns = arrays.indices(own.shape[2:], dtype="float32")
        x, y, trust = (arrays.broadcast_to(one, own.shape) for one in (columns, rows, arrays.ones_like(rows)))
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
            trust = trust * np.exp(off * np.float32(-0.5 / _SAME_PLACE**2)) * is_inside
            change = np.square(found[:, :, :3] - seen[here, :, :3]).sum(axis=2)
            same = trust * np.exp(change * np.float32(-1 / (6 * _SAME_COLOR**2)))
            voice = same * _voices(found[:, :, 3])
            voices[here] += voice
            votes[here] += voice * found[:, :, 3]
            others[here] += same
    agreed = votes / voices
    change = np.maximum(agreed - own, 0) * (others > _LEAST_FRAMES)
    is_missed = _thick((change > _CHANGE) & (agreed > 1 - _DECIDED))
    return mean_around(change * is_missed)  # else its border would be an edge


def _voices(alpha: Any) -> Any:
    """What a frame's vote counts, by how sure it is."""
    return np.square(2 * alpha - 1) + np.float32(_LEAST_VOICE)


def _read(planes: Any, x: Any, y: Any) -> Any:
    """Planes [T, E, C, h, w] at places [T, E, h, w]."""
    flat = (one.reshape(-1, *one.shape[2:]) for one in (planes, x, y))
    return read_at(*flat).reshape(*planes.shape[:2], *planes.shape[2:])


def _thick(where: Any) -> Any:
    """Keep what is at least three samples thick, and the samples beside it, bool [T, E, h, w]."""
    planes = where.astype("uint8").reshape(-1, *where.shape[2:])
    return dilate_box(erode_box(planes, 1), 2).reshape(where.shape) > 0
