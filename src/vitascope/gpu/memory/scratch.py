"""Arrays that a thread computes in, frame after frame.

A large array is mapped when it is made and unmapped when it is freed, so the system clears its pages for every frame.
Where an array ends with the call that made it, the thread's own from the last frame does as well.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["scratch_array"]

_threads = threading.local()
_MOST_BYTES = 32 << 20
"""What is larger is made anew: threads may live long."""


def scratch_array(use: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """An array of the calling thread, for one call of one function: what it gives on must not share its memory.

    The memory is held until the thread ends, for the largest array that it asked for; none above 32 MiB.

    Args:
        use: Names what it is for; a thread has memory for each.
        shape: Its axes.
        dtype: Its element type.

    Returns:
        C-contiguous, with what was left in it.
    """
    memories: dict[str, npt.NDArray[np.uint8]] = _threads.__dict__
    wanted = np.dtype(dtype)
    nbytes = math.prod(shape) * wanted.itemsize
    if nbytes > _MOST_BYTES:
        return np.empty(shape, wanted)
    memory = memories.get(use)
    if memory is None or memory.nbytes < nbytes:
        memories.pop(use, None)  # before the larger one is made
        memory = memories[use] = np.empty(nbytes, np.uint8)
    return memory[:nbytes].view(wanted).reshape(shape)
