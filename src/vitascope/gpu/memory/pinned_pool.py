"""A pool of page-locked host memory, and asynchronous copies between it and the GPU.

The GPU's copy engines access page-locked memory directly, at bus speed and without the host. For pageable
memory the driver first copies to its own page-locked buffer, and the host waits (CUDA C++ Programming Guide,
"Page-Locked Host Memory"). Locking pages takes longer than copying them, so buffers are kept.
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

# Up to this size, a copy is done before two streams could be ordered for it.
_SMALL_BYTES = 2 << 20
_ALIGNMENT_BYTES = 256


class Copy:
    """A copy in progress, and the objects to keep alive until it is done."""

    __slots__ = ("event", "is_over", "keep")

    def __init__(self, event: Pending, keep: object = None) -> None:
        self.event = event
        """``cupy.cuda.Event`` behind the copy."""
        self.keep = keep
        self.is_over = False
        """True once its end has been seen: the GPU need not be asked again."""

    @property
    def done(self) -> bool:
        """Whether the copy is done; if so, releases the objects kept alive."""
        if not self.is_over and self.event.done:
            self._end()
        return self.is_over

    def synchronize(self) -> None:
        """Block until the copy is done."""
        if not self.is_over:
            self.event.synchronize()
            self._end()

    def _end(self) -> None:
        self.is_over = True
        self.keep = None


class Download:
    """A download of arrays from the GPU to page-locked memory.

    The copies run on their own stream, ordered behind the current CuPy stream's work. The arrays are kept
    alive until they have arrived. Arrays adjacent on the GPU stay adjacent on the host and are copied at
    once. The memory returns to the pool once no view of it is left and the copies are done.

    Args:
        arrays: C-contiguous CuPy arrays.
        stream: ``cupy.cuda.Stream`` for the copies.
        pool: Page-locked memory for the arrays.
        keep: Other objects to keep alive until the copies are done.
        timed: Context manager that times the copies on their stream.
        sleeps: Whether a waiting thread sleeps instead of spinning, and so wakes some ten microseconds late.

    Raises:
        ValueError: An array is not C-contiguous.
        MemoryLimitError: The pool has no memory left to lend.
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
        if stream.ptr != cupy.cuda.get_current_stream().ptr:  # a single stream is ordered anyway
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
        """Whether the arrays have arrived."""
        return self._copy.done

    def wait(self) -> list[npt.NDArray[Any]]:
        """Block until the arrays have arrived and return them in order. Their memory lives as long as any view."""
        self._copy.synchronize()
        return self._views


def _runs(arrays: Sequence[Any]) -> list[list[Any]]:
    """Join arrays that are adjacent on the GPU, such as a picture's planes, to copy them at once."""
    runs: list[list[Any]] = []
    end = None
    for array in arrays:
        # Separate allocations may be adjacent, too, and CUDA refuses a copy across them.
        if array.data.ptr == end and array.nbytes and array.data.mem is runs[-1][-1].data.mem:
            runs[-1].append(array)
        else:
            runs.append([array])
        end = array.data.ptr + array.nbytes
    return runs


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class CopyStreams:
    """Two copy streams of one GPU, and the blocks uploaded on them.

    Small copies run on the stream that reads or writes the array, in order with its work.

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
        """Unreferenced blocks, each with the event behind its last reader."""

    def upload(
        self, array: npt.NDArray[Any], *, stream: Any, pool: PinnedMemoryPool, beside: bool = True
    ) -> Any:
        """Upload an array for ``stream``; see ``PinnedMemoryPool.upload``."""
        cupy = self._cupy
        with cupy.cuda.Device(self._device_id):
            if self._leaving:
                self.forget_finished()
            reader = cupy.cuda.get_current_stream() if stream is None else stream
            # The streams differ in who owns the block's memory: after its return, a later copy writes to it, in
            # order.
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
        """Download an array; see ``PinnedMemoryPool.download``."""
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
        """Free blocks whose last reader is done."""
        while True:
            try:
                oldest = self._leaving.popleft()
            except IndexError:  # none is left, or another thread was faster
                return
            if not oldest[0].done:
                self._leaving.appendleft(oldest)
                return

    def synchronize(self) -> None:
        """Wait for all copies, and for the readers of blocks about to be freed."""
        self._up.synchronize()
        self._down.synchronize()
        while self._leaving:
            self._leaving.popleft()[0].synchronize()

    def _owned(self, block: Any, reader: Any) -> Any:
        """View the block as an array whose memory outlives pending work on ``reader``.

        CuPy frees memory at once, in the order of the stream it was allocated on. Another stream reads the
        block here, so it is kept until an event recorded when the last reference goes (like
        ``torch.Tensor.record_stream``).
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
    """Referenced by all views of a block."""

    __slots__ = ("__weakref__",)


_SMALLEST_BYTES = 4096  # a page: the smallest unit that can be locked
# Eight sizes per power of two: a buffer is at most an eighth larger than requested.
_STEPS_LOG2 = 3
_TIMEOUT_SECONDS = 30.0
_SHARED_PART_OF_MEMORY = 0.5
# Encoders may hold many pictures of a slow video; waiting longer than this is pointless.
_SHARED_TIMEOUT_SECONDS = 120.0
_UNKNOWN_MEMORY_BYTES = 8 << 30


class PinnedLease:
    """A pool's buffer, lent as a NumPy array.

    As a context manager it enters with the array and returns the buffer on exit: do not use views of the
    array afterwards. Pending copies do not block the exit; the buffer is lent again after they are done.
    """

    __slots__ = ("_held", "_pool", "array")

    def __init__(self, pool: PinnedMemoryPool, buffer: Buffer, array: npt.NDArray[Any]) -> None:
        self._pool = pool
        self._held = [buffer]
        self.array = array
        """C-contiguous array of the requested shape and dtype, with undefined content."""

    def __enter__(self) -> npt.NDArray[Any]:
        """The array."""
        return self.array

    def __exit__(self, *_: object) -> None:
        """Return the buffer."""
        self.release()

    def release(self, *, after: Pending | None = None) -> None:
        """Return the buffer; idempotent.

        Args:
            after: An event behind a copy that still uses it. The buffer is not lent again before that.
        """
        try:
            buffer = self._held.pop()
        except IndexError:
            return
        if after is not None:
            buffer.hold(after)
        self._pool._give_back(buffer)

    def wait(self) -> None:
        """Block until copies that read the lease (``upload``) are done, before writing to it again."""
        for buffer in self._held:
            for pending in buffer.pending:
                pending.synchronize()


class PendingArray:
    """A download in progress; see ``PinnedMemoryPool.download``."""

    def __init__(self, download: Download | None, array: npt.NDArray[Any] | None = None) -> None:
        self._download = download
        self._array = array

    @property
    def done(self) -> bool:
        """Whether the array has arrived."""
        return self._download is None or self._download.done

    def wait(self) -> npt.NDArray[Any]:
        """Block until the array has arrived. The pool reuses its memory once no view of it is left."""
        if self._download is not None:
            (self._array,) = self._download.wait()
        assert self._array is not None  # one of the two was given
        return self._array


class PinnedMemoryPool(Closing):
    """Page-locked buffers in size classes, with a hard cap. Thread-safe.

    On a GPU the memory is ``cupy.cuda.PinnedMemory``, and ``upload`` and ``download`` copy on the pool's own
    streams. On a CPU it is pageable, page-aligned memory and copies are synchronous, so the same code runs.

    When the cap is reached, idle buffers of other sizes are freed first. Then a request waits for a returned
    buffer, and fails after ``timeout_s``. The earliest request that fits is served first.

    Args:
        max_size_gb: Cap in gigabytes (10^9 bytes), lent and idle.
        device: ``auto`` uses the GPU if one is available; or a ``Device``.
        device_id: Number of the GPU, from 0; ignored on a CPU.
        timeout_s: How long a request waits when all memory is lent; 0 fails at once, None waits indefinitely.

    Raises:
        ValueError: The size or the timeout is invalid.
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
        """Lent buffers by the identity of their memory."""
        self._copying_lock = threading.Lock()
        self._copying: CopyStreams | None = None

    @property
    def page_locked(self) -> bool:
        """True on a GPU; on a CPU the memory is pageable."""
        return self.device.kind == "cuda"

    def close(self) -> None:
        """Free the memory, lent buffers on their return. Nothing is lent any more."""
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
        """Lend an array until it is returned.

        Args:
            shape: Shape of the array.
            dtype: Any dtype without objects.
            timeout_s: Overrides the pool's timeout.

        Returns:
            A lease: ``with pool.lease((1080, 1920)) as array:`` returns the buffer on exit.

        Raises:
            MemoryLimitError: All memory is lent and none was returned in time, or the request exceeds the
                pool's size.
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
        """Lend an array that is returned automatically once no view of it is left.

        Takes the arguments of ``lease``, and raises the same errors.
        """
        buffer, array = self._take(shape, dtype, timeout_s)

        def come_back(_: object) -> None:
            buffer.watch = None
            self._give_back(buffer)

        # The callback only fires while the weak reference itself lives, so the lent buffer keeps it.
        buffer.watch = weakref.ref(array, come_back)
        return array

    def hold(self, array: npt.NDArray[Any], until: Pending) -> None:
        """Keep an array's memory from being lent again before an event.

        Args:
            array: An array of this pool, or a view of such an array.
            until: Event behind the copy that uses it.

        Raises:
            ValueError: The array is not from this pool.
        """
        buffer = self.lent_buffer(array)
        if buffer is None:
            raise ValueError("the array is not in memory that this pool has lent")
        buffer.hold(until)

    def is_lent(self, array: npt.NDArray[Any]) -> bool:
        """Whether an array lies in memory that this pool has lent."""
        return self.lent_buffer(array) is not None

    def lent_buffer(self, array: npt.NDArray[Any]) -> Buffer | None:
        """Find this pool's lent buffer that holds an array; None for any other memory."""
        base: object = array
        while isinstance(base, np.ndarray):
            base = base.base
        return self._lent.get(id(base))

    def upload(self, array: npt.NDArray[Any], *, stream: Any = None, beside: bool = True) -> Any:
        """Copy an array to the GPU without blocking the host: up to 2 MiB on ``stream``, more on a separate stream.

        An array in a lease of this pool is copied directly: do not write to it before the copy is done
        (``PinnedLease.wait``). Any other array is copied to a lease first and may be changed at once.

        Args:
            array: NumPy array of any shape, dtype and order.
            stream: ``cupy.cuda.Stream`` that will read the result; None is the current one. It waits for the
                copy; a copy of more than 2 MiB does not wait for its earlier work.
            beside: False always copies on ``stream`` itself, in order with its work.

        Returns:
            C-contiguous CuPy array. Its memory is reused once no reference is left and the work launched on
            ``stream`` before that is done. On a CPU, a copy as a NumPy array.

        Raises:
            MemoryLimitError: The pool has no room for the staging copy.
            DeviceMemoryError: The GPU has too little memory.
        """
        if not self.page_locked:
            return np.array(array, order="C")
        return self._copy_streams().upload(array, stream=stream, pool=self, beside=beside)

    def download(self, array: Any, *, stream: Any = None) -> PendingArray:
        """Copy an array to the host behind its pending work: up to 2 MiB on ``stream``, more on another.

        Args:
            array: CuPy array, or another library's array on the GPU (``__cuda_array_interface__``), such as a
                ``torch.Tensor``. It is kept alive until it has arrived. On a CPU a NumPy array.
            stream: ``cupy.cuda.Stream`` of the pending work; None is the current one.

        Returns:
            A pending array whose ``wait()`` returns the NumPy array; it spins while it waits, for low
            latency.

        Raises:
            MemoryLimitError: The pool has no room for the array.
        """
        if not self.page_locked:
            down = self.empty(array.shape, array.dtype)
            np.copyto(down, array)
            return PendingArray(None, down)
        return PendingArray(self._copy_streams().download(array, stream=stream, pool=self))

    def trim(self) -> None:
        """Free idle memory, which other programs and other sizes cannot use."""
        if self._copying is not None:
            self._copying.forget_finished()
        self._store.trim()

    def stats(self) -> BufferStats:
        """Bytes lent, idle and reserved, and counts."""
        return self._store.stats()

    def _take(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike, timeout_s: float | Literal["default"] | None
    ) -> tuple[Buffer, npt.NDArray[Any]]:
        kind = np.dtype(dtype)
        sides = (shape,) if isinstance(shape, int) else tuple(shape)
        for side in sides:
            check_count(f"buffers cannot have shape {sides}: a side", side, least=0)
        if kind.hasobject:
            raise ValueError(f"buffers cannot have dtype {kind}")
        size = size_class(math.prod(sides) * kind.itemsize, self._store.cap_bytes)
        wait_s = self.timeout_s if timeout_s == "default" else timeout_s
        buffer = self._store.take(size, size, timeout_s=wait_s)
        self._lent[id(buffer.memory)] = buffer
        return buffer, np.ndarray(sides, kind, buffer.memory)

    def _give_back(self, buffer: Buffer) -> None:
        """Also called from finalizers, so it takes no lock."""
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
            f"{size_in_words(nbytes)} of {kind} were requested, {tried}; {lent} are in use: return leases earlier, "
            "or allow a larger pool"
        )

    def _copy_streams(self) -> CopyStreams:
        with self._copying_lock:
            if self._copying is None:
                self._copying = CopyStreams(self.device.index)
            return self._copying


def size_class(nbytes: int, cap_bytes: int | None) -> int:
    """Round a size up to that of its buffers: at most an eighth more, at least a page."""
    step = max(1 << max(nbytes.bit_length() - 1 - _STEPS_LOG2, 0), _SMALLEST_BYTES)
    rounded = max(-(-nbytes // step) * step, _SMALLEST_BYTES)
    # A request that just fits under the cap is not rounded up.
    return nbytes if cap_bytes is not None and nbytes <= cap_bytes < rounded else rounded


def _ordinary_memory(nbytes: int) -> mmap.mmap:
    """Allocate whole pages, which return to the system once unused."""
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    # Private: a forked process must not write into our pages.
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


_SHARED: dict[tuple[int, bool], PinnedMemoryPool] = {}
_SHARED_LOCK = threading.Lock()


def shared_pool(device_id: int, *, page_locked: bool = True) -> PinnedMemoryPool:
    """The applications' shared pool of a GPU, with up to half of the machine's memory.

    Args:
        device_id: Number of an available GPU.
        page_locked: False for pageable memory, from and to which the GPU copies more slowly.
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
