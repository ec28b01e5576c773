"""Buffers on a device by shape and dtype, used again across streams."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Any, Literal

from vitascope.device import Device, select_device
from vitascope.errors import DeviceMemoryError
from vitascope.gpu.memory.buffer_store import Buffer, BufferStats, BufferStore, size_in_words
from vitascope.gpu.memory.device_arrays import DeviceArrays, Framework, arrays_on

__all__ = ["DeviceLease", "MemoryPool"]


class DeviceLease:
    """A buffer of a pool, for a while; as a context manager it gives the array, and takes it back at the end.

    What was launched on the stream that is current then may go on: the next holder's stream waits for it.
    """

    __slots__ = ("_held", "_pool", "array")

    def __init__(self, pool: MemoryPool, buffer: Buffer) -> None:
        self._pool = pool
        self._held = [buffer]
        self.array: Any = buffer.memory.array
        """C-contiguous; its content is whatever was there."""

    def __enter__(self) -> Any:
        """The array."""
        return self.array

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self.release()

    def release(self) -> None:
        """Give the buffer back; a second time does nothing. The array must not be used any more."""
        try:
            buffer = self._held.pop()
        except IndexError:
            return
        self._pool._give_back(buffer)

    def take_out(self) -> Buffer:
        """The buffer, which is not given back any more; for the pool."""
        return self._held.pop()


class _Held:
    """An array, and what was launched before it came back."""

    __slots__ = ("array", "used")

    def __init__(self, array: Any) -> None:
        self.array = array
        self.used: Any = None


class MemoryPool:
    """Device buffers by shape and dtype. Thread-safe.

    The memory comes from the allocator that the framework uses anyway (CuPy's pool, PyTorch's caching allocator, NumPy
    on a CPU), so that one set of figures and one limit hold for all of it. What this adds: a buffer keeps its address
    (a captured graph may use it), one stream may use it after another without a wait of the host, and there is a cap.

    Args:
        max_size_gb: Most gigabytes (10^9 bytes), lent and idle; None leaves it to the allocator.
        device: ``auto`` takes the GPU where one can be used; or a device that was chosen before.
        device_id: Number of the GPU, from 0; ignored on a CPU.
        framework: Whose arrays: ``auto`` is ``cupy`` on a GPU and ``numpy`` on a CPU; ``torch`` works on both.

    Raises:
        ValueError: A size that is not positive, or a framework that has nothing on this device.
        DeviceError: ``cuda`` was asked for and cannot be had.
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
        if max_size_gb is not None and not 0 < max_size_gb < math.inf:
            raise ValueError(f"max_size_gb is {max_size_gb}, expected a number above 0, or None")
        self.device = device if isinstance(device, Device) else select_device(device, index=device_id)
        self._arrays: DeviceArrays = arrays_on(self.device, framework)
        self._store = BufferStore(
            None if max_size_gb is None else int(max_size_gb * 1e9),
            allocate=self._allocate,
            short=self._short,
        )
        self._kept: dict[Hashable, DeviceLease] = {}
        self._keeping = threading.Lock()

    def __enter__(self) -> MemoryPool:
        """Use as a context manager that gives the memory back."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the memory back."""
        self.close()

    def close(self) -> None:
        """Give the memory back; what is lent follows when it comes back. Nothing is lent any more."""
        with self._keeping:
            self._forget_kept()
        self._store.close()

    def get_tensor(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """The buffer of that shape and dtype: the same one at every call, with what was last written to it.

        Args:
            shape: Of the buffer.
            dtype: NumPy's, or for ``torch`` PyTorch's own.

        Returns:
            C-contiguous array of the framework. It is the pool's until ``clear``: who else asks for that shape gets
            it, too. For a buffer of your own take ``lease``.

        Raises:
            DeviceMemoryError: No memory is left, or the cap is reached.
            ValueError: The dtype cannot be had, a side is negative, or the pool is closed.
        """
        key = self._key(shape, dtype)
        with self._keeping:
            if key not in self._kept:
                self._kept[key] = self.lease(shape, dtype)
            return self._kept[key].array

    def lease(
        self, shape: int | Sequence[int], dtype: Any = "float32", *, timeout_s: float | None = 0.0
    ) -> DeviceLease:
        """Lend a buffer that nobody else has.

        Args:
            shape: Of the buffer.
            dtype: NumPy's, or for ``torch`` PyTorch's own.
            timeout_s: How long to wait for others to give something back when the cap is reached; None for ever.

        Returns:
            ``with pool.lease((1080, 1920)) as array:`` gives it back by itself. Work on the current stream is ordered
            behind what its last holder launched.

        Raises:
            DeviceMemoryError: No memory is left, or the cap is reached and nothing came back in time.
            ValueError: The dtype cannot be had, a side is negative, or the pool is closed.
        """
        sides, kind = key = self._key(shape, dtype)
        size = math.prod(sides) * kind.itemsize
        buffer = self._store.take(key, size, timeout_s=timeout_s)
        if buffer.memory.used is not None:
            self._arrays.wait_for(buffer.memory.used)
            buffer.memory.used = None
        return DeviceLease(self, buffer)

    def trim(self) -> None:
        """Forget what is idle; the allocator has it back."""
        self._store.trim()

    def clear(self) -> None:
        """Forget all buffers but those that are lent, and let the allocator give idle memory back to the GPU.

        Arrays of ``get_tensor`` that somebody still holds live as long as they are held, and are not the pool's any
        more.
        """
        with self._keeping:
            self._forget_kept()
        self._store.trim()
        self._arrays.release_idle()

    def stats(self) -> BufferStats:
        """What is lent, idle and reserved, and how often it was of use."""
        return self._store.stats()

    def _key(self, shape: int | Sequence[int], dtype: Any) -> tuple[tuple[int, ...], Any]:
        sides = (shape,) if isinstance(shape, int) else tuple(int(side) for side in shape)
        if any(side < 0 for side in sides):
            raise ValueError(f"a buffer of shape {sides} cannot be lent")
        return sides, self._arrays.dtype_of(dtype)

    def _forget_kept(self) -> None:
        """Count them as given back, but lend them to nobody: somebody may still use them."""
        for lease in self._kept.values():
            self._store.drop(lease.take_out())
        self._kept.clear()

    def _give_back(self, buffer: Buffer) -> None:
        buffer.memory.used = self._arrays.mark()
        self._store.give_back(buffer)

    def _allocate(self, key: Any, _: int) -> _Held:
        shape, dtype = key
        return _Held(self._arrays.empty(shape, dtype))

    def _short(self, nbytes: int, tried: str) -> DeviceMemoryError:
        stats = self.stats()
        lent = size_in_words(stats.leased_bytes, of=stats.max_bytes)
        return DeviceMemoryError(
            f"{size_in_words(nbytes)} on {self.device.label} are wanted, {tried}: {lent} of the pool are lent; give "
            "buffers back earlier, or allow a larger pool"
        )
