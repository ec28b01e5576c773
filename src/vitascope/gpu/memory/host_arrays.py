"""Reuses the memory of host arrays, frame after frame.

A new large array is mapped, and the system clears all its pages, for every frame anew: for a frame of VR on the CPU
that took as long as drawing it. Where an array ends with the call that made it, ``scratch_array`` gives the thread's
own from the last frame; where it goes on to others, ``RecycledArrays`` gives its memory again once nobody holds it.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

_threads = threading.local()
_MOST_BYTES = 32 << 20
"""What is larger is made anew: threads may live long."""


def scratch_array(use: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """A scratch array of the calling thread, for one function call; results must not share its memory.

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


_MOST_FREE = 4
"""Arrays that wait to be given again: as many as a call of the network lets go of."""


class RecycledArrays:
    """Allocates host arrays in the memory of earlier ones that are no longer in use.

    Threads may share it. Memory that waits is freed with it.
    """

    def __init__(self) -> None:
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=_MOST_FREE)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """An uninitialised array. Its memory is reused once the last view of it is gone.

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
