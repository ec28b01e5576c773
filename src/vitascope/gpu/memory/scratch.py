"""Arrays that a thread computes in, frame after frame.

A large array is mapped when it is made and unmapped when it is freed, so the system clears its pages for every frame.
Where an array ends with the call that made it, the thread's own from the last frame does as well.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["scratch_array"]

_threads = threading.local()


def scratch_array(use: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """An array of the calling thread, for one call of one function: what it gives on must not share its memory.

    It is held until the thread ends, or asks for another shape or dtype.

    Args:
        use: Names what it is for; a thread has one array for each.
        shape: Its axes.
        dtype: Its element type.

    Returns:
        C-contiguous, with what was left in it.
    """
    arrays: dict[str, npt.NDArray[Any]] = _threads.__dict__
    kept = arrays.get(use)
    if kept is None or kept.shape != shape or kept.dtype != dtype:
        arrays.pop(use, None)  # before the other one is made
        kept = arrays[use] = np.empty(shape, dtype)
    return kept
