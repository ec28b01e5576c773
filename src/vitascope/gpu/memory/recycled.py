"""Arrays of a video's frames, given again once nobody holds them.

A new large array is mapped, and the system clears all its pages: for a frame of VR on the CPU that took as long as
drawing it. The next frame's array can lie where that of an earlier one lay.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["RecycledArrays"]

_MOST_FREE = 4
"""Arrays that wait to be given again: as many as a call of the network lets go of."""


class RecycledArrays:
    """Gives arrays in the host's memory that lie where earlier ones lay which nobody holds any more.

    Threads may share it. Memory that waits is freed with it.
    """

    def __init__(self) -> None:
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=_MOST_FREE)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """An array with anything in it. Its memory waits for the next one when the last view of it is gone.

        Args:
            shape: Its axes, none of them 0. Memory of arrays of another size is freed.
            dtype: Its element type.

        Returns:
            C-contiguous.
        """
        wanted = np.dtype(dtype)
        nbytes = math.prod(shape) * wanted.itemsize
        memory = self._waiting(nbytes)
        if memory is None:
            memory = np.empty(nbytes, np.uint8)
        # Through a buffer: views hold on to this array, and not to the memory itself.
        whole = np.frombuffer(memory.data, wanted)
        weakref.finalize(whole, self._free.append, memory).atexit = False
        return whole.reshape(shape)

    def _waiting(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        while True:
            try:
                memory = self._free.pop()
            except IndexError:  # another thread may have taken the last one
                return None
            if memory.nbytes == nbytes:
                return memory
