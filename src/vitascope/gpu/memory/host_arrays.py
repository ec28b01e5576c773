"""Host arrays that reuse memory, frame after frame.

A large new array is mapped and cleared page by page for every frame: for a VR frame on the CPU that took as
long as rendering it. For arrays that end with the call, ``scratch_array`` reuses the thread's memory; for
arrays passed on, ``RecycledArrays`` reuses memory once nobody holds it.
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
"""Larger arrays are always allocated: threads may live long."""


def scratch_array(use: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Get scratch memory of the calling thread, for one call of one function; results must not share it.

    The memory is kept until the thread ends, at the largest size requested; nothing above 32 MiB is kept.

    Args:
        use: Name of the purpose; a thread has separate memory for each.
        shape: Shape of the array.
        dtype: Element type.

    Returns:
        C-contiguous array with undefined content.
    """
    memories: dict[str, npt.NDArray[np.uint8]] = _threads.__dict__
    wanted = np.dtype(dtype)
    nbytes = math.prod(shape) * wanted.itemsize
    if nbytes > _MOST_BYTES:
        return np.empty(shape, wanted)
    memory = memories.get(use)
    if memory is None or memory.nbytes < nbytes:
        memories.pop(use, None)  # before allocating the larger one
        memory = memories[use] = np.empty(nbytes, np.uint8)
    return memory[:nbytes].view(wanted).reshape(shape)


_MOST_FREE = 4
"""Arrays kept for reuse: as many as a call of the network releases."""


class RecycledArrays:
    """Allocates host arrays in the memory of earlier ones that nobody holds any more.

    Thread-safe. Freed together with its idle memory.
    """

    def __init__(self) -> None:
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=_MOST_FREE)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Allocate an array with undefined content. Its memory is reused once no view of it is left.

        Args:
            shape: Shape of the array, without zeros. Idle memory of other sizes is freed.
            dtype: Element type.

        Returns:
            C-contiguous array.
        """
        wanted = np.dtype(dtype)
        nbytes = math.prod(shape) * wanted.itemsize
        memory = self._waiting(nbytes)
        if memory is None:
            memory = np.empty(nbytes, np.uint8)
        # Through a buffer: views hold this array, and not the memory itself.
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
