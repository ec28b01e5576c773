"""Restores parts of people that a frame misses and most others show, along the motion in the picture."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cells import mean_around
from vitascope.gpu.kernels.morphology import dilate_box, erode_box
from vitascope.gpu.kernels.votes_along_motion import VOTE_RULES, votes_along_motion

FloatArray = npt.NDArray[np.float32]

_LEAST_FRAMES = 2.0
"""Minimum number of other frames that show the same. This and the following constants were chosen on
``benchmarks/matte_quality``, seeds 101 to 118."""
_CHANGE, _DECIDED = 0.25, 0.3
"""Minimum increase of alpha for a part to count as missed, and maximum distance of the result from 1."""

MISSED_PART_RULES: Final = (*VOTE_RULES, _LEAST_FRAMES, _CHANGE, _DECIDED)
"""Constants that restored mattes depend on."""


def missed_parts(seen: FloatArray, ahead: FloatArray, back: FloatArray) -> FloatArray:
    """Find parts of people that a frame's matte misses, and most other frames of the shot show.

    A blurred arm is missed in a shot's first frames, and found in those after them; a shoulder is lost while its owner
    leaves. So each sample is followed along the motion, for as long as the picture looks the same there. Each frame
    votes with the weight of its sureness. Only parts at least three samples thick count, as edges are less certain.
    Nothing is removed where most frames show nobody: that lost people whom few frames see, and hardly any scenery.

    Args:
        seen: RGB and alpha of consecutive frames, float32 [T, E, 4, h, w], 0..1, NumPy or CuPy.
        ahead: Motion from each of the first T - 1 frames to the next, right and down, in samples, float32
            [T - 1, E, h, w, 2], on the same device.
        back: Likewise, from each of the last T - 1 frames to the one before.

    Returns:
        Addition to alpha, float32 [T, E, h, w], on the same device; mostly 0.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    own = seen[:, :, 3]
    agreed, others = votes_along_motion(seen, ahead, back)
    change = np.maximum(agreed - own, 0) * (others > _LEAST_FRAMES)
    is_missed = _thick((change > _CHANGE) & (agreed > 1 - _DECIDED))
    return mean_around(change * is_missed)  # soft, so that its border is no edge


def _thick(where: Any) -> Any:
    """Keep what is at least three samples thick, and the samples beside it, bool [T, E, h, w]."""
    planes = where.astype("uint8").reshape(-1, *where.shape[2:])
    return dilate_box(erode_box(planes, 1), 2).reshape(where.shape) > 0
