"""Out of GPU memory: our error, how to recognise other libraries' errors, freeing idle memory, and limits."""

from __future__ import annotations

import gc
import re
import sys
import threading
from typing import Any

from vitascope.device import Device
from vitascope.errors import DeviceMemoryError
from vitascope.gpu.number_checks import check_number


class memory_errors:  # noqa: N801 - used as a function; a class because a generator costs more than the copies inside
    """Turn CuPy's out-of-memory error into ours, which reports the free memory.

    Raises:
        DeviceMemoryError: The GPU has too little memory.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Enter the context; there is nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise our error in its place."""
        if error is None:
            return
        cupy = sys.modules.get("cupy")  # a library that is not imported cannot raise
        if cupy is None or not isinstance(error, cupy.cuda.memory.OutOfMemoryError):
            return
        free, total = cupy.cuda.runtime.memGetInfo()
        # CuPy names its limit if it has one.
        limited = (
            " as far as gpu.max_vram_usage or gpu.memory_fraction allow" if "limit" in str(error) else ""
        )
        raise DeviceMemoryError(
            f"the GPU's memory is used up{limited}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free ({error}); "
            "smaller model.batch_size, gpu.decoder_sessions or processing.max_queue_mb need less"
        ) from error


_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|failed to allocate|available memory|ALLOC_FAILED", re.IGNORECASE
)
_TYPES = ("OutOfMemoryError",)  # cupy.cuda.memory's, torch's and torch.cuda's


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is ``DeviceMemoryError``, ``MemoryError``, or CuPy's or torch's ``OutOfMemoryError``.

    Includes errors recognised by their message (cuBLAS and cuDNN raise ``RuntimeError`` for their workspaces,
    CUDA itself ``CUDARuntimeError``), and errors raised from one of these.
    """
    if isinstance(error, DeviceMemoryError | MemoryError) or type(error).__name__ in _TYPES:
        return True
    if isinstance(error, RuntimeError) and speaks_of_memory(str(error)):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def release_idle_memory() -> None:
    """Free the idle GPU memory of CuPy's and torch's allocators, if they are in use.

    First collects reference cycles: an error and the frames of its traceback refer to each other and hold
    arrays and decoder surfaces. Host memory does not show that, so Python would collect them much later.
    """
    gc.collect()
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def speaks_of_memory(text: str) -> bool:
    """Whether a message says that GPU memory ran out."""
    return _OUT_OF_MEMORY.search(text) is not None


# cudaMalloc hands out 2 MiB pages that need not be adjacent: blocks of any size make room for others.
_RESERVED_BLOCK_BYTES = 64 << 20
_CUPY_ALIGNMENT_BYTES = 512


class VramBudget:
    """Limits CuPy's and PyTorch's allocators on one GPU, taking everyone else's memory into account.

    Everyone else (other processes, decoders, CUDA itself, engines with their own allocators) has the memory
    in use outside both allocators. It changes, so ``refresh`` measures it again. CuPy's default pool is
    limited with ``set_limit``, PyTorch with ``set_per_process_memory_fraction``. At its limit an allocator
    first frees its idle memory, then fails as if the GPU were full: CuPy with ``DeviceMemoryError``, PyTorch
    with its own error.

    The reserve is held in blocks of 64 MiB, released one by one as the allocators grow.

    Args:
        device: The GPU.
        max_usage: Largest share of the GPU's memory in use by all processes together, above 0 up to 1.
        reserve: Share to reserve at once and never exceed; None allocates on demand.

    Raises:
        ValueError: A share is out of range.
    """

    def __init__(self, device: Device, *, max_usage: float = 1.0, reserve: float | None = None) -> None:
        for share in (max_usage, reserve):
            check_number("the share of memory", share, above=0, most=1, optional=True)
        import cupy

        self.max_usage = max_usage
        self.reserve = reserve
        self._device = device
        self._cupy = cupy
        self._pool: Any = cupy.get_default_memory_pool()
        self._lock = threading.RLock()
        self._reserved: list[Any] = []
        self._installed = False

    def install(self) -> None:
        """Set the limits and reserve memory. Process-wide, until ``close``."""
        with self._lock:
            self._installed = True
            self._cupy.cuda.set_allocator(self._allocate)
        self.refresh()

    def close(self) -> None:
        """Remove the limits and free the reserve."""
        with self._lock, self._cupy.cuda.Device(self._device.index):
            if not self._installed:
                return
            self._installed = False
            self._reserved.clear()
            self._cupy.cuda.set_allocator(self._pool.malloc)
            self._pool.set_limit(size=0)
            if (torch := _torch()) is not None:
                torch.cuda.set_per_process_memory_fraction(1.0, self._device.index)

    @property
    def reserved_bytes(self) -> int:
        """Part of the reserve that neither allocator has taken yet."""
        return len(self._reserved) * _RESERVED_BLOCK_BYTES

    def allowed_bytes(self, total_bytes: int) -> int:
        """Largest use of this much memory that the shares allow."""
        return int(total_bytes * min(self.max_usage, self.reserve or 1.0))

    def refresh(self, free_and_total_bytes: tuple[int, int] | None = None) -> None:
        """Set the limits according to everyone else's current memory.

        Args:
            free_and_total_bytes: Free and total bytes of the GPU, if already known.
        """
        with self._lock, self._cupy.cuda.Device(self._device.index):
            if not self._installed:
                return
            free, total = free_and_total_bytes or self._cupy.cuda.runtime.memGetInfo()
            torch = _torch()
            in_torch = 0 if torch is None else int(torch.cuda.memory_reserved(self._device.index))
            in_cupy = int(self._pool.total_bytes())
            others = max(total - free - in_torch - in_cupy - self.reserved_bytes, 0)
            cap = int(self.max_usage * total) - others
            if self.reserve is not None:
                cap = min(cap, int(self.reserve * total))
                self._resize_reserve(cap - in_torch - in_cupy)
            # 0 would mean no limit.
            self._pool.set_limit(size=max(cap - in_torch - self.reserved_bytes, 1))
            if torch is not None:
                share = min(max((cap - in_cupy) / total, 0.0), 1.0)
                torch.cuda.set_per_process_memory_fraction(share, self._device.index)

    def _resize_reserve(self, wanted_bytes: int) -> None:
        count = max(wanted_bytes, 0) // _RESERVED_BLOCK_BYTES
        del self._reserved[count:]
        while len(self._reserved) < count:
            try:
                self._reserved.append(self._cupy.cuda.Memory(_RESERVED_BLOCK_BYTES))
            except self._cupy.cuda.runtime.CUDARuntimeError:
                return  # other threads were faster; retried at the next refresh

    def _allocate(self, size: int) -> Any:
        """Allocate from CuPy's pool; at the limit, release the reserve, then other streams' idle memory."""
        try:
            return self._pool.malloc(size)
        except self._cupy.cuda.memory.OutOfMemoryError:
            pass  # a propagating error would keep memory alive through its frames
        with self._lock:
            if self._cupy.cuda.runtime.getDevice() == self._device.index:
                self._make_room(size)
        # Raise our own error, because nobody else knows all places where memory is requested.
        with memory_errors():
            return self._pool.malloc(size)

    def _make_room(self, size: int) -> None:
        rounded = -(-size // _CUPY_ALIGNMENT_BYTES) * _CUPY_ALIGNMENT_BYTES
        blocks = -(-rounded // _RESERVED_BLOCK_BYTES)
        if blocks <= len(self._reserved):
            del self._reserved[-blocks:]
            self._pool.set_limit(size=self._pool.get_limit() + blocks * _RESERVED_BLOCK_BYTES)
        else:
            # CuPy does this when the GPU is full, but not at its limit; other streams' memory may be idle.
            self._pool.free_all_blocks()
            self.refresh()


def _torch() -> Any:
    """Get PyTorch if it is loaded and already uses a GPU."""
    torch: Any = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None
