"""A pool of reusable page-locked host memory, and copies to and from the GPU that overlap computation.

The GPU's copy engines read and write page-locked memory directly, at the speed of the bus and without the host; out of
ordinary (pageable) memory the driver first copies to a page-locked buffer of its own, and the host waits (CUDA C++
Programming Guide, "Page-Locked Host Memory"). Locking pages takes longer than copying them, so buffers are kept.
"""

from __future__ import annotations

import itertools
import math
import mmap
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.closing import Closing
from vitascope.device import Device, physical_memory_bytes, select_device
from vitascope.errors import MemoryLimitError
from vitascope.gpu.current_stream import on_cuda_stream
from vitascope.gpu.memory.buffer_store import Buffer, BufferStats, BufferStore, Pending, size_in_words
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.gpu.number_checks import check_count, check_number

# Up to here a copy is over before two streams have been put in order for it.
_SMALL_BYTES = 2 << 20
_ALIGNMENT_BYTES = 256


class Copy:
    """A copy in progress, and the objects that must live until it is done."""

    __slots__ = ("event", "is_over", "keep")

    def __init__(self, event: Pending, keep: object = None) -> None:
        self.event = event
        """The ``cupy.cuda.Event`` behind it."""
        self.keep = keep
        self.is_over = False
        """True once somebody has seen the end of it: the GPU need not be asked again."""

    @property
    def done(self) -> bool:
        """True once it is done; its objects are then released."""
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
        """Wait for the arrays on the host, in order. They live as long as they are referenced."""
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
        """Blocks without references, and the event after their last reader."""

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
            with on_cuda_stream(copier), memory_errors():
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
            with on_cuda_stream(maker):
                dense = cupy.ascontiguousarray(cupy.asarray(array))
                copier = maker if dense.nbytes <= _SMALL_BYTES else self._down
                return Download([dense], stream=copier, pool=pool, keep=array, sleeps=False)

    def forget_finished(self) -> None:
        """Return blocks whose last reader is done."""
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
    """Referred to by all views of a block."""

    __slots__ = ("__weakref__",)


_SMALLEST_BYTES = 4096  # a page: less cannot be locked
# Eight sizes from one power of two to the next: a buffer is at most an eighth larger than what is requested.
_STEPS_LOG2 = 3
_TIMEOUT_SECONDS = 30.0
_SHARED_PART_OF_MEMORY = 0.5
# An encoder may hold many pictures of a slow video; who waits longer than this waits for nothing.
_SHARED_TIMEOUT_SECONDS = 120.0
_UNKNOWN_MEMORY_BYTES = 8 << 30


class PinnedLease:
    """A buffer of a pool as a NumPy array, for a while.

    As a context manager it gives the array, and takes the buffer back at the end: views of the array must not be used
    after that. Copies that go on then are waited for before the buffer is lent again, not here.
    """

    __slots__ = ("_held", "_pool", "array")

    def __init__(self, pool: PinnedMemoryPool, buffer: Buffer, array: npt.NDArray[Any]) -> None:
        self._pool = pool
        self._held = [buffer]
        self.array = array
        """C-contiguous, of the shape and dtype that were requested; its content is undefined."""

    def __enter__(self) -> npt.NDArray[Any]:
        """The array."""
        return self.array

    def __exit__(self, *_: object) -> None:
        """Give the buffer back."""
        self.release()

    def release(self, *, after: Pending | None = None) -> None:
        """Give the buffer back; a second time does nothing.

        Args:
            after: What still reads or writes it: an event, recorded on the stream of a copy. It is not lent before
                that is over.
        """
        try:
            buffer = self._held.pop()
        except IndexError:
            return
        if after is not None:
            buffer.hold(after)
        self._pool._give_back(buffer)

    def wait(self) -> None:
        """Wait until copies that read the lease (``upload``) are over, before it is written again."""
        for buffer in self._held:
            for pending in buffer.pending:
                pending.synchronize()


class PendingArray:
    """One array on its way down; see ``PinnedMemoryPool.download``."""

    def __init__(self, download: Download | None, array: npt.NDArray[Any] | None = None) -> None:
        self._download = download
        self._array = array

    @property
    def done(self) -> bool:
        """True once it is there."""
        return self._download is None or self._download.done

    def wait(self) -> npt.NDArray[Any]:
        """The array on the host, once it is there. The pool has its memory back when no view of it is left."""
        if self._download is not None:
            (self._array,) = self._download.wait()
        assert self._array is not None  # one of the two was given
        return self._array


class PinnedMemoryPool(Closing):
    """Page-locked buffers in classes of sizes, under a hard cap. Thread-safe.

    On a GPU the memory is CuPy's page-locked memory (``cupy.cuda.PinnedMemory``), and ``upload`` and ``download`` copy
    on streams of the pool's own. On a CPU it is ordinary memory, aligned to whole pages, and they copy at once, so that
    the same code runs.

    When the cap is reached, idle buffers of other sizes are freed first. Then a request waits until something comes
    back, and fails after ``timeout_s``. The first request that fits goes first.

    Args:
        max_size_gb: Most gigabytes (10^9 bytes) of memory, lent and idle.
        device: ``auto`` takes the GPU where one can be used; or a device that was chosen before.
        device_id: Number of the GPU, from 0; ignored on a CPU.
        timeout_s: How long a request waits when all is lent; 0 fails at once, None waits for ever.

    Raises:
        ValueError: A size or a time is not positive.
        DeviceError: ``cuda`` was requested and is not available.
    """

    def __init__(
        self,
        max_size_gb: float = 4.0,
        *,
        device: Device | Literal["auto", "cpu", "cuda"] = "auto",
        device_id: int = 0,
        timeout_s: float | None = _TIMEOUT_SECONDS,
    ) -> None:
        check_number("max_size_gb", max_size_gb, above=0)
        check_number("timeout_s", timeout_s, least=0, optional=True)
        self.device = device if isinstance(device, Device) else select_device(device, index=device_id)
        self.timeout_s = timeout_s
        self._store = BufferStore(int(max_size_gb * 1e9), allocate=self._allocate, short=self._short)
        self._lent: dict[int, Buffer] = {}
        """By the identity of their memory."""
        self._copying_lock = threading.Lock()
        self._copying: CopyStreams | None = None

    @property
    def page_locked(self) -> bool:
        """True on a GPU; on a CPU the memory is ordinary."""
        return self.device.kind == "cuda"

    def close(self) -> None:
        """Free the memory; what is lent is freed when it comes back. Nothing is lent any more."""
        try:
            if self._copying is not None:
                self._copying.synchronize()
        finally:
            self._store.close()

    def lease(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike = np.uint8,
        *,
        timeout_s: float | Literal["default"] | None = "default",
    ) -> PinnedLease:
        """Lend an array, until it is given back.

        Args:
            shape: Shape of the array.
            dtype: Any dtype without objects.
            timeout_s: In the place of the pool's own.

        Returns:
            ``with pool.lease((1080, 1920)) as array:`` gives it back by itself.

        Raises:
            MemoryLimitError: All is lent, and nothing came back in time; or the request is larger than the pool.
            ValueError: The dtype holds objects, a side is negative, or the pool is closed.
        """
        buffer, array = self._take(shape, dtype, timeout_s)
        return PinnedLease(self, buffer, array)

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike = np.uint8,
        *,
        timeout_s: float | Literal["default"] | None = "default",
    ) -> npt.NDArray[Any]:
        """Lend an array that comes back by itself when no view of it is left.

        Args and errors are those of ``lease``.
        """
        buffer, array = self._take(shape, dtype, timeout_s)

        def come_back(_: object) -> None:
            buffer.watch = None
            self._give_back(buffer)

        # The callback comes only while the reference itself lives; the buffer, which is lent, keeps it.
        buffer.watch = weakref.ref(array, come_back)
        return array

    def hold(self, array: npt.NDArray[Any], until: Pending) -> None:
        """Do not lend the memory of an array again before something is over.

        Args:
            array: An array of this pool, or a view of such an array.
            until: An event behind the copy that reads or writes it.

        Raises:
            ValueError: The array is not of this pool.
        """
        buffer = self.lent_buffer(array)
        if buffer is None:
            raise ValueError("the array does not lie in memory that this pool has lent")
        buffer.hold(until)

    def is_lent(self, array: npt.NDArray[Any]) -> bool:
        """True when an array lies in memory that this pool has lent."""
        return self.lent_buffer(array) is not None

    def lent_buffer(self, array: npt.NDArray[Any]) -> Buffer | None:
        """The buffer of this pool, while it is lent, in which an array lies; None for any other memory."""
        base: object = array
        while isinstance(base, np.ndarray):
            base = base.base
        return self._lent.get(id(base))

    def upload(self, array: npt.NDArray[Any], *, stream: Any = None, beside: bool = True) -> Any:
        """Copy an array to the GPU without making the host wait: up to 2 MiB on ``stream``, more on one of its own.

        What lies in a lease of this pool is copied from there: do not write to it before the copy is over
        (``PinnedLease.wait``). Anything else is copied to a lease first, and may be changed at once.

        Args:
            array: NumPy array of any shape, dtype and order.
            stream: The ``cupy.cuda.Stream`` that will read the result; the current one when None. It waits for the
                copy; a copy of more than 2 MiB does not wait for the work before that.
            beside: False copies on ``stream`` itself, whatever the size, in order with its work.

        Returns:
            C-contiguous CuPy array; its memory is lent again once what was launched on ``stream`` before the last
            reference to it went is over. On a CPU a NumPy array of its own.

        Raises:
            MemoryLimitError: The pool has no room for the staging copy.
            DeviceMemoryError: The GPU has too little memory.
        """
        if not self.page_locked:
            return np.array(array, order="C")
        return self._copy_streams().upload(array, stream=stream, pool=self, beside=beside)

    def download(self, array: Any, *, stream: Any = None) -> PendingArray:
        """Copy an array to the host after the work that makes it: up to 2 MiB on ``stream``, more on one of its own.

        Args:
            array: CuPy array, or another library's array on the GPU (``__cuda_array_interface__``), such as a
                ``torch.Tensor``. It is held until it has arrived. On a CPU a NumPy array.
            stream: The ``cupy.cuda.Stream`` on which it is made; the current one when None.

        Returns:
            ``wait()`` gives the NumPy array; it keeps its core busy while it waits, to be there at once.

        Raises:
            MemoryLimitError: The pool has no room for it.
        """
        if not self.page_locked:
            down = self.empty(array.shape, array.dtype)
            np.copyto(down, array)
            return PendingArray(None, down)
        return PendingArray(self._copy_streams().download(array, stream=stream, pool=self))

    def trim(self) -> None:
        """Free what is idle: other programs, and other sizes, cannot use it."""
        if self._copying is not None:
            self._copying.forget_finished()
        self._store.trim()

    def stats(self) -> BufferStats:
        """Bytes that are lent, idle and reserved, and counts."""
        return self._store.stats()

    def _take(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike, timeout_s: float | Literal["default"] | None
    ) -> tuple[Buffer, npt.NDArray[Any]]:
        kind = np.dtype(dtype)
        sides = (shape,) if isinstance(shape, int) else tuple(shape)
        for side in sides:
            check_count(f"a buffer of shape {sides} cannot be lent: a side", side, least=0)
        if kind.hasobject:
            raise ValueError(f"a buffer of dtype {kind} cannot be lent")
        size = size_class(math.prod(sides) * kind.itemsize, self._store.cap_bytes)
        wait_s = self.timeout_s if timeout_s == "default" else timeout_s
        buffer = self._store.take(size, size, timeout_s=wait_s)
        self._lent[id(buffer.memory)] = buffer
        return buffer, np.ndarray(sides, kind, buffer.memory)

    def _give_back(self, buffer: Buffer) -> None:
        """Also called from finalizers: takes no lock."""
        self._lent.pop(id(buffer.memory), None)
        self._store.give_back(buffer)

    def _allocate(self, _: Hashable, nbytes: int) -> Any:
        if not self.page_locked:
            try:
                return _ordinary_memory(nbytes)
            except OSError as error:
                raise MemoryLimitError(
                    f"{size_in_words(nbytes)} of memory cannot be allocated: {error}"
                ) from error
        import cupy

        try:
            with cupy.cuda.Device(self.device.index):
                memory = cupy.cuda.PinnedMemory(nbytes, cupy.cuda.runtime.hostAllocPortable)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise MemoryLimitError(
                f"{size_in_words(nbytes)} of memory cannot be page-locked: {error}"
            ) from error
        return cupy.cuda.PinnedMemoryPointer(memory, 0)

    def _short(self, nbytes: int, tried: str) -> MemoryLimitError:
        stats = self.stats()
        kind = "page-locked memory" if self.page_locked else "buffers"
        lent = size_in_words(stats.leased_bytes, of=stats.max_bytes)
        return MemoryLimitError(
            f"{size_in_words(nbytes)} of {kind} are wanted, {tried}: {lent} are lent; give leases back earlier, "
            "or allow a larger pool"
        )

    def _copy_streams(self) -> CopyStreams:
        with self._copying_lock:
            if self._copying is None:
                self._copying = CopyStreams(self.device.index)
            return self._copying


def size_class(nbytes: int, cap_bytes: int | None) -> int:
    """Bytes of the buffers that hold so many: at most an eighth more, beyond a page."""
    step = max(1 << max(nbytes.bit_length() - 1 - _STEPS_LOG2, 0), _SMALLEST_BYTES)
    rounded = max(-(-nbytes // step) * step, _SMALLEST_BYTES)
    # What just fits under the cap is lent as it is.
    return nbytes if cap_bytes is not None and nbytes <= cap_bytes < rounded else rounded


def _ordinary_memory(nbytes: int) -> mmap.mmap:
    """Memory of whole pages, which goes back to the system when it is not used any more."""
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    # Private: a forked process must not write into ours.
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


_SHARED: dict[tuple[int, bool], PinnedMemoryPool] = {}
_SHARED_LOCK = threading.Lock()


def shared_pool(device_id: int, *, page_locked: bool = True) -> PinnedMemoryPool:
    """The pool that the applications share: for one GPU, and up to half of the machine's memory.

    Args:
        device_id: Number of a GPU that can be used.
        page_locked: False for ordinary memory, which copies from and to the GPU take as well, more slowly.
    """
    with _SHARED_LOCK:
        key = (device_id, page_locked)
        if key not in _SHARED:
            size = (physical_memory_bytes() or _UNKNOWN_MEMORY_BYTES) * _SHARED_PART_OF_MEMORY
            kind: Literal["cuda", "cpu"] = "cuda" if page_locked else "cpu"
            _SHARED[key] = PinnedMemoryPool(
                size / 1e9, device=Device(kind, kind, device_id), timeout_s=_SHARED_TIMEOUT_SECONDS
            )
        return _SHARED[key]
