"""Bringing arrays down to the host through page-locked memory, while the GPU goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Download"]

_ALIGNMENT_BYTES = 256


class Download:
    """Arrays on their way from the GPU to page-locked memory.

    The copies are ordered behind the work that is on the current CuPy stream, and run on a stream of their own. The
    arrays are held until they have arrived, so that their memory is not given to others. CuPy's pool takes the
    page-locked memory back when the last view of it is gone.

    Args:
        arrays: C-contiguous CuPy arrays.
        stream: The ``cupy.cuda.Stream`` that copies.
        keep: Anything else that must live until the copies are done.
    """

    def __init__(self, arrays: Sequence[Any], *, stream: Any, keep: object = None) -> None:
        import cupy

        self._held: object = (tuple(arrays), keep)
        self._views: list[npt.NDArray[Any]] = []
        offsets = np.cumsum([0, *(_aligned(array.nbytes) for array in arrays)])
        memory = cupy.cuda.alloc_pinned_memory(max(int(offsets[-1]), 1))
        self.nbytes = int(offsets[-1])
        """Bytes of page-locked memory."""
        produced = cupy.cuda.Event(disable_timing=True)
        produced.record()
        stream.wait_event(produced)
        for array, offset in zip(arrays, offsets, strict=False):
            if not array.flags.c_contiguous:
                raise ValueError("only C-contiguous arrays come down in one copy")
            view = np.frombuffer(memory, array.dtype, array.size, int(offset)).reshape(array.shape)
            cupy.cuda.runtime.memcpyAsync(
                view.ctypes.data,
                array.data.ptr,
                array.nbytes,
                cupy.cuda.runtime.memcpyDeviceToHost,
                stream.ptr,
            )
            self._views.append(view)
        # A thread that waits sleeps: encoders want its core.
        self._arrived = cupy.cuda.Event(block=True, disable_timing=True)
        self._arrived.record(stream)

    def wait(self) -> list[npt.NDArray[Any]]:
        """The arrays on the host, in order, once they are there. They live as long as they are held."""
        self._arrived.synchronize()
        self._held = None
        return self._views


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
