"""Bringing arrays down to the host through page-locked memory, while the GPU goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vitascope.gpu.current_stream import on_cuda_stream
from vitascope.gpu.memory.buffer_store import Pending

if TYPE_CHECKING:
    from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool

_ALIGNMENT_BYTES = 256


class Copy:
    """A copy in progress, and what must live until it is over."""

    __slots__ = ("event", "is_over", "keep")

    def __init__(self, event: Pending, keep: object = None) -> None:
        self.event = event
        """The ``cupy.cuda.Event`` behind it."""
        self.keep = keep
        self.is_over = False
        """True once somebody has seen the end of it: the GPU need not be asked again."""

    @property
    def done(self) -> bool:
        """True once it is over; what it kept is let go then."""
        if not self.is_over and self.event.done:
            self._end()
        return self.is_over

    def synchronize(self) -> None:
        """Wait until it is over."""
        if not self.is_over:
            self.event.synchronize()
            self._end()

    def _end(self) -> None:
        self.is_over = True
        self.keep = None


class Download:
    """Arrays on their way from the GPU to page-locked memory.

    The copies are ordered behind the work that is on the current CuPy stream, and run on a stream of their own. The
    arrays are held until they have arrived, so that their memory is not given to others. What lies one behind the other
    on the GPU does so on the host, and comes in one copy. The pool takes its memory back when the last view of it is
    gone, and the copies are over.

    Args:
        arrays: C-contiguous CuPy arrays.
        stream: The ``cupy.cuda.Stream`` that copies.
        pool: Lends the memory that the arrays come down to.
        keep: Anything else that must live until the copies are done.
        timed: Opens what times the copies on the copying stream.
        sleeps: Whether a thread that waits leaves its core to others, and wakes some ten microseconds late for that.

    Raises:
        ValueError: An array is not C-contiguous.
        MemoryLimitError: The pool lends nothing any more.
    """

    def __init__(
        self,
        arrays: Sequence[Any],
        *,
        stream: Any,
        pool: PinnedMemoryPool,
        keep: object = None,
        timed: Callable[[], AbstractContextManager[object]] | None = None,
        sleeps: bool = True,
    ) -> None:
        import cupy

        if not all(array.flags.c_contiguous for array in arrays):
            raise ValueError("only C-contiguous arrays come down in one copy")
        runs = _runs(arrays)
        sizes = [sum(array.nbytes for array in run) for run in runs]
        self.nbytes: int = sum(map(_aligned, sizes))
        """Bytes of page-locked memory."""
        memory = pool.empty((self.nbytes,))
        arrived = cupy.cuda.Event(block=sleeps, disable_timing=True)
        self._copy = Copy(arrived, (tuple(arrays), keep))
        self._views: list[npt.NDArray[Any]] = []
        runtime = cupy.cuda.runtime
        if stream.ptr != cupy.cuda.get_current_stream().ptr:  # one stream is in order by itself
            produced = cupy.cuda.Event(disable_timing=True)
            produced.record()
            stream.wait_event(produced)
        address, start = memory.ctypes.data, 0
        with ExitStack() as timing:
            if timed is not None:
                timing.enter_context(on_cuda_stream(stream))
                timing.enter_context(timed())
            for run, size in zip(runs, sizes, strict=True):
                end = start
                for array in run:
                    self._views.append(np.ndarray(array.shape, array.dtype, memory, end))
                    end += array.nbytes
                if size:
                    runtime.memcpyAsync(
                        address + start, run[0].data.ptr, size, runtime.memcpyDeviceToHost, stream.ptr
                    )
                start += _aligned(size)
        arrived.record(stream)
        pool.hold(memory, self._copy)

    @property
    def done(self) -> bool:
        """True once the arrays are there."""
        return self._copy.done

    def wait(self) -> list[npt.NDArray[Any]]:
        """The arrays on the host, in order, once they are there. They live as long as they are held."""
        self._copy.synchronize()
        return self._views


def _runs(arrays: Sequence[Any]) -> list[list[Any]]:
    """Arrays that lie one behind the other on the GPU, such as the planes of a picture: one copy brings them all."""
    runs: list[list[Any]] = []
    end = None
    for array in arrays:
        # Allocations may be neighbours, too, and CUDA refuses a copy that goes from one into the next.
        if array.data.ptr == end and array.nbytes and array.data.mem is runs[-1][-1].data.mem:
            runs[-1].append(array)
        else:
            runs.append([array])
        end = array.data.ptr + array.nbytes
    return runs


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
