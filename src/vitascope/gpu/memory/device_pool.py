"""Device buffers by shape and dtype, reused across streams, as NumPy, CuPy or PyTorch arrays."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import numpy as np

from vitascope.closing import Closing
from vitascope.device import Device, select_device
from vitascope.errors import DeviceMemoryError, MissingDependencyError
from vitascope.gpu.memory.buffer_store import Buffer, BufferStats, BufferStore, size_in_words
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.gpu.number_checks import check_count, check_number

Framework = Literal["auto", "numpy", "cupy", "torch"]


class _HostArrays:
    """Arrays of one library on one device; these are NumPy's on the host."""

    def dtype_of(self, dtype: Any) -> Any:
        """Get the library's own dtype: hashable, with ``itemsize``.

        Raises:
            ValueError: The library lacks the dtype, or it holds objects.
        """
        return _plain_dtype(dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Allocate a C-contiguous array.

        Raises:
            DeviceMemoryError: Out of memory.
        """
        try:
            return np.empty(shape, dtype)
        except MemoryError as error:
            raise DeviceMemoryError(f"the host has too little memory: {error}") from error

    def mark(self) -> Any:
        """Record an event behind the work on the current stream; None if nothing is asynchronous."""
        return None

    def wait_for(self, mark: Any) -> None:
        """Make the current stream wait for a mark, without blocking the host."""

    def release_idle(self) -> None:
        """Free the library allocator's idle memory."""


class _CupyArrays(_HostArrays):
    def __init__(self, device: Device) -> None:
        import cupy  # installed wherever a GPU device was selected

        self._cupy = cupy
        self._index = device.index

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        with self._cupy.cuda.Device(self._index), memory_errors():
            return self._cupy.empty(shape, dtype)

    def mark(self) -> Any:
        with self._cupy.cuda.Device(self._index):
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record()
            return event

    def wait_for(self, mark: Any) -> None:
        with self._cupy.cuda.Device(self._index):
            self._cupy.cuda.get_current_stream().wait_event(mark)

    def release_idle(self) -> None:
        with self._cupy.cuda.Device(self._index):
            self._cupy.get_default_memory_pool().free_all_blocks()


class _TorchArrays(_HostArrays):
    def __init__(self, device: Device) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingDependencyError(
                "tensors need PyTorch: pip install 'vitascope[torch]', or 'vitascope[cuda]' on a GPU"
            ) from error
        self._torch: Any = torch
        self._device: Any = torch.device(f"cuda:{device.index}" if device.kind == "cuda" else "cpu")
        self._on_gpu = device.kind == "cuda"

    def dtype_of(self, dtype: Any) -> Any:
        if isinstance(dtype, self._torch.dtype):
            return dtype
        try:
            return self._torch.from_numpy(np.empty(0, _plain_dtype(dtype))).dtype
        except TypeError as error:
            raise ValueError(f"PyTorch has no dtype {dtype}") from error

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        try:
            return self._torch.empty(shape, dtype=dtype, device=self._device)
        except RuntimeError as error:
            # The CPU's allocator has no error of its own: "DefaultCPUAllocator: can't allocate memory".
            if isinstance(error, self._torch.OutOfMemoryError) or "allocate" in str(error):
                raise DeviceMemoryError(
                    f"PyTorch got no memory for {list(shape)} {dtype}: {error}"
                ) from error
            raise

    def mark(self) -> Any:
        if not self._on_gpu:
            return None
        with self._torch.cuda.device(self._device):
            return self._torch.cuda.current_stream().record_event()

    def wait_for(self, mark: Any) -> None:
        with self._torch.cuda.device(self._device):
            self._torch.cuda.current_stream().wait_event(mark)

    def release_idle(self) -> None:
        if self._on_gpu:
            self._torch.cuda.empty_cache()


def _arrays_on(device: Device, framework: Framework) -> _HostArrays:
    """Select a library's arrays.

    Raises:
        ValueError: The library does not support the device.
        MissingDependencyError: It is not installed.
    """
    if framework == "auto":
        framework = "numpy" if device.kind == "cpu" else "cupy"
    if framework == "torch":
        return _TorchArrays(device)
    if (framework, device.kind) == ("numpy", "cpu"):
        return _HostArrays()
    if (framework, device.kind) == ("cupy", "cuda"):
        return _CupyArrays(device)
    raise ValueError(f"{framework} has no arrays on {device.label}; expected auto or torch")


def _plain_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ValueError(f"{dtype!r} is not a dtype") from error
    if kind.hasobject:
        raise ValueError(f"buffers cannot have dtype {kind}")
    return kind


class DeviceLease:
    """A buffer lent by a pool; as a context manager it enters with the array and returns the buffer on exit.

    Work launched on the stream current at that time may still run: the next holder's stream waits for it.
    """

    __slots__ = ("_held", "_pool", "array")

    def __init__(self, pool: MemoryPool, buffer: Buffer) -> None:
        self._pool = pool
        self._held = [buffer]
        self.array: Any = buffer.memory.array
        """C-contiguous array with undefined content."""

    def __enter__(self) -> Any:
        """The array."""
        return self.array

    def __exit__(self, *_: object) -> None:
        """Return the buffer."""
        self.release()

    def release(self) -> None:
        """Return the buffer; idempotent. Do not use the array afterwards."""
        try:
            buffer = self._held.pop()
        except IndexError:
            return
        self._pool._give_back(buffer)

    def take_out(self) -> Buffer:
        """Take the buffer out of the lease, which no longer returns it; for the pool."""
        return self._held.pop()


class _Held:
    """An array, and the work launched before it was returned."""

    __slots__ = ("array", "library", "used")

    def __init__(self, library: _HostArrays, array: Any) -> None:
        self.library = library
        self.array = array
        self.used: Any = None


class MemoryPool(Closing):
    """Device buffers by shape and dtype. Thread-safe.

    Memory comes from the framework's usual allocator (CuPy's pool, PyTorch's caching allocator, NumPy on a
    CPU), so one set of figures and one limit cover all of it. The pool adds fixed addresses (for captured
    graphs), reuse across streams without blocking the host, and a cap.

    Args:
        max_size_gb: Cap in gigabytes (10^9 bytes), lent and idle; None leaves it to the allocator.
        device: ``auto`` uses the GPU if one is available; or a ``Device``.
        device_id: Number of the GPU, from 0; ignored on a CPU.
        framework: Library of the arrays. ``auto`` is ``torch`` if a PyTorch dtype is requested, else ``cupy``
            on a GPU and ``numpy`` on a CPU; ``torch`` works on both, also with NumPy's dtypes.

    Raises:
        ValueError: A size is not positive, or the framework does not support the device.
        DeviceError: ``cuda`` was requested and is not available.
        MissingDependencyError: The framework is not installed.
    """

    def __init__(
        self,
        max_size_gb: float | None = None,
        *,
        device: Device | Literal["auto", "cpu", "cuda"] = "auto",
        device_id: int = 0,
        framework: Framework = "auto",
    ) -> None:
        check_number("max_size_gb", max_size_gb, above=0, optional=True)
        self.device = device if isinstance(device, Device) else select_device(device, index=device_id)
        self._arrays = _arrays_on(self.device, framework)
        self._takes_tensors = framework == "auto"
        self._tensors: _HostArrays | None = None
        self._store = BufferStore(
            None if max_size_gb is None else int(max_size_gb * 1e9),
            allocate=self._allocate,
            short=self._short,
        )
        self._kept: dict[Hashable, DeviceLease] = {}
        self._keeping = threading.Lock()

    def close(self) -> None:
        """Free the memory, lent buffers on their return. Nothing is lent any more."""
        with self._keeping:
            self._forget_kept()
        self._store.close()

    def get_tensor(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """Get the shared buffer of a shape and dtype: the same one at every call, with its last content.

        Args:
            shape: Shape of the buffer.
            dtype: A dtype of NumPy's or PyTorch's.

        Returns:
            C-contiguous array of the framework. The pool keeps it until ``clear``, and everyone who asks for
            this shape and dtype gets it; for a buffer of your own use ``lease``.

        Raises:
            DeviceMemoryError: Out of memory, or the cap is reached.
            ValueError: The dtype is not supported, a side is negative, or the pool is closed.
        """
        key = self._key(shape, dtype)
        with self._keeping:
            if key not in self._kept:
                self._kept[key] = self.lease(shape, dtype)
            return self._kept[key].array

    def lease(
        self, shape: int | Sequence[int], dtype: Any = "float32", *, timeout_s: float | None = 0.0
    ) -> DeviceLease:
        """Lend a buffer to one user.

        Args:
            shape: Shape of the buffer.
            dtype: A dtype of NumPy's or PyTorch's.
            timeout_s: How long to wait for a returned buffer when the cap is reached; None waits
                indefinitely.

        Returns:
            A lease: ``with pool.lease((1080, 1920)) as array:`` returns the buffer on exit. Work on the
            current stream is ordered behind the last holder's.

        Raises:
            DeviceMemoryError: Out of memory, or the cap is reached and no buffer was returned in time.
            ValueError: The dtype is not supported, a side is negative, or the pool is closed.
        """
        sides, kind = key = self._key(shape, dtype)
        size = math.prod(sides) * kind.itemsize
        buffer = self._store.take(key, size, timeout_s=timeout_s)
        if buffer.memory.used is not None:
            buffer.memory.library.wait_for(buffer.memory.used)
            buffer.memory.used = None
        return DeviceLease(self, buffer)

    def trim(self) -> None:
        """Return idle buffers to the allocator."""
        self._store.trim()

    def clear(self) -> None:
        """Drop all buffers except lent ones, and let the allocator free idle memory.

        Arrays of ``get_tensor`` live while someone holds them, but no longer belong to the pool.
        """
        with self._keeping:
            self._forget_kept()
        self._store.trim()
        for library in (self._arrays, self._tensors):
            if library is not None:
                library.release_idle()

    def stats(self) -> BufferStats:
        """Bytes lent, idle and reserved, and counts."""
        return self._store.stats()

    def _key(self, shape: int | Sequence[int], dtype: Any) -> tuple[tuple[int, ...], Any]:
        sides = (shape,) if isinstance(shape, int) else tuple(shape)
        for side in sides:
            check_count(f"buffers cannot have shape {sides}: a side", side, least=0)
        sides = tuple(map(int, sides))
        return sides, self._library_of(dtype).dtype_of(dtype)

    def _library_of(self, dtype: Any) -> _HostArrays:
        """Select the library for a dtype."""
        if not self._takes_tensors or type(dtype).__module__ != "torch":
            return self._arrays
        if self._tensors is None:
            self._tensors = _arrays_on(self.device, "torch")
        return self._tensors

    def _forget_kept(self) -> None:
        """Count buffers as returned without lending them again: they may still be in use."""
        for lease in self._kept.values():
            self._store.drop(lease.take_out())
        self._kept.clear()

    def _give_back(self, buffer: Buffer) -> None:
        buffer.memory.used = buffer.memory.library.mark()
        self._store.give_back(buffer)

    def _allocate(self, key: Any, _: int) -> _Held:
        shape, dtype = key
        library = self._library_of(dtype)
        return _Held(library, library.empty(shape, dtype))

    def _short(self, nbytes: int, tried: str) -> DeviceMemoryError:
        stats = self.stats()
        lent = size_in_words(stats.leased_bytes, of=stats.max_bytes)
        return DeviceMemoryError(
            f"{size_in_words(nbytes)} on {self.device.label} were requested, {tried}; {lent} of the pool are in use: "
            "return buffers earlier, or allow a larger pool"
        )
