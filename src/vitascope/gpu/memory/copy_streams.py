"""Copies up and down on two streams of their own, one for each direction, as the GPU has an engine for each."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vitascope.gpu.download import Download
from vitascope.gpu.memory.shortage import memory_errors

if TYPE_CHECKING:
    from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool

__all__ = ["CopyStreams"]


# Up to here a copy is over before two streams have been put in order for it. Round trips of 1 MB took 89 us by way of
# two streams, 51 us on one in PyTorch; of a 1080p picture (3.1 MB) the copies alone take longer (H200, one run).
_SMALL_BYTES = 2 << 20


class CopyStreams:
    """Two copy streams of one GPU, and the blocks that were copied up.

    What is small goes on the stream that reads or makes it, in order with that.

    Args:
        device_id: Number of the GPU.
    """

    def __init__(self, device_id: int) -> None:
        import cupy

        self._cupy = cupy
        self._device_id = device_id
        with cupy.cuda.Device(device_id):
            self._up = cupy.cuda.Stream(non_blocking=True)
            self._down = cupy.cuda.Stream(non_blocking=True)
        self._tickets = itertools.count()
        self._owners: dict[int, weakref.ref[_Owner]] = {}
        self._leaving: deque[tuple[Any, Any]] = deque()
        """Blocks that nobody refers to any more, and the event behind what still reads them."""

    def upload(
        self, array: npt.NDArray[Any], *, stream: Any, pool: PinnedMemoryPool, beside: bool = True
    ) -> Any:
        """A CuPy array of the same values, for ``stream``; see ``PinnedMemoryPool.upload``."""
        cupy = self._cupy
        with cupy.cuda.Device(self._device_id):
            if self._leaving:
                self.forget_finished()
            reader = cupy.cuda.get_current_stream() if stream is None else stream
            # Two streams differ in whose memory the block is: one that comes back is written by a later copy, in order.
            copier = self._up if beside and array.nbytes > _SMALL_BYTES else reader
            with copier, memory_errors():
                block = cupy.empty(array.shape, array.dtype)
            if array.nbytes == 0:
                return block
            buffer = pool.lent_buffer(array) if array.flags.c_contiguous else None
            lease = None
            source = array
            if buffer is None:
                lease = pool.lease(array.shape, array.dtype)
                source = lease.array
                np.copyto(source, array)
            runtime = cupy.cuda.runtime
            runtime.memcpyAsync(
                block.data.ptr,
                source.ctypes.data,
                source.nbytes,
                runtime.memcpyHostToDevice,
                copier.ptr,
            )
            copied = cupy.cuda.Event(block=True, disable_timing=True)
            copied.record(copier)
            if lease is not None:
                lease.release(after=copied)
            elif buffer is not None:
                buffer.hold(copied)
            if copier is reader:
                return block
            reader.wait_event(copied)
            return self._owned(block, reader)

    def download(self, array: Any, *, stream: Any, pool: PinnedMemoryPool) -> Download:
        """An array on its way down; see ``PinnedMemoryPool.download``."""
        cupy = self._cupy
        with cupy.cuda.Device(self._device_id):
            if self._leaving:
                self.forget_finished()
            maker = cupy.cuda.get_current_stream() if stream is None else stream
            with maker:
                dense = cupy.ascontiguousarray(cupy.asarray(array))
                copier = maker if dense.nbytes <= _SMALL_BYTES else self._down
                return Download([dense], stream=copier, pool=pool, keep=array, sleeps=False)

    def forget_finished(self) -> None:
        """Give blocks back that nobody reads any more."""
        while True:
            try:
                oldest = self._leaving.popleft()
            except IndexError:  # none is left, or another thread was faster
                return
            if not oldest[0].done:
                self._leaving.appendleft(oldest)
                return

    def synchronize(self) -> None:
        """Wait for all copies, and for what reads blocks that are on their way back."""
        self._up.synchronize()
        self._down.synchronize()
        while self._leaving:
            self._leaving.popleft()[0].synchronize()

    def _owned(self, block: Any, reader: Any) -> Any:
        """The block as an array whose memory outlives what ``reader`` still does with it.

        CuPy gives memory back at once and in the order of the stream that it was made on. Here another stream reads it,
        so the block stays until an event that is recorded when the last reference goes (as
        ``torch.Tensor.record_stream`` does it).
        """
        cupy = self._cupy
        owner = _Owner()
        ticket = next(self._tickets)
        owners, leaving, device_id = self._owners, self._leaving, self._device_id

        def leave(_: object) -> None:
            del owners[ticket]
            with cupy.cuda.Device(device_id):
                read = cupy.cuda.Event(block=True, disable_timing=True)
                read.record(reader)
            leaving.append((read, block))
            self.forget_finished()

        owners[ticket] = weakref.ref(owner, leave)
        memory = cupy.cuda.UnownedMemory(block.data.ptr, block.nbytes, owner, device_id)
        return cupy.ndarray(block.shape, block.dtype, cupy.cuda.MemoryPointer(memory, 0))


class _Owner:
    """What all views of a block refer to."""

    __slots__ = ("__weakref__",)
