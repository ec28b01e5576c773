"""What a pool of device buffers needs of NumPy, CuPy or PyTorch: arrays, and the order of streams."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np

from vitascope.device import Device
from vitascope.errors import DeviceMemoryError, MissingDependencyError
from vitascope.gpu.memory.shortage import memory_errors

__all__ = ["DeviceArrays", "Framework", "arrays_on"]

Framework = Literal["auto", "numpy", "cupy", "torch"]


class DeviceArrays(Protocol):
    """Arrays of one library on one device."""

    def dtype_of(self, dtype: Any) -> Any:
        """The library's own dtype, hashable, with ``itemsize``.

        Raises:
            ValueError: The library has no such dtype, or it holds objects.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A C-contiguous array from the library's allocator.

        Raises:
            DeviceMemoryError: There is no memory.
        """
        ...

    def mark(self) -> Any:
        """What was launched on the current stream up to now; None where nothing runs on."""
        ...

    def wait_for(self, mark: Any) -> None:
        """Let the current stream wait for that; the host does not."""
        ...

    def release_idle(self) -> None:
        """Give back what the library's allocator holds idle."""
        ...


def arrays_on(device: Device, framework: Framework) -> DeviceArrays:
    """The arrays of a library.

    Raises:
        ValueError: It has no arrays on that device.
        MissingDependencyError: It is not installed.
    """
    if framework == "auto":
        framework = "numpy" if device.kind == "cpu" else "cupy"
    if framework == "torch":
        return _TorchArrays(device)
    if (framework, device.kind) == ("numpy", "cpu"):
        return _NumpyArrays()
    if (framework, device.kind) == ("cupy", "cuda"):
        return _CupyArrays(device)
    raise ValueError(f"{framework} has no arrays on {device.label}; expected auto or torch")


class _NumpyArrays:
    def dtype_of(self, dtype: Any) -> np.dtype[Any]:
        return _plain_dtype(dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        try:
            return np.empty(shape, dtype)
        except MemoryError as error:
            raise DeviceMemoryError(f"the host has too little memory: {error}") from error

    def mark(self) -> None:
        return None

    def wait_for(self, mark: Any) -> None:
        pass

    def release_idle(self) -> None:
        pass


class _CupyArrays:
    def __init__(self, device: Device) -> None:
        import cupy  # the device says that it is there

        self._cupy = cupy
        self._index = device.index

    def dtype_of(self, dtype: Any) -> np.dtype[Any]:
        return _plain_dtype(dtype)

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


class _TorchArrays:
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


def _plain_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ValueError(f"{dtype!r} is no dtype") from error
    if kind.hasobject:
        raise ValueError(f"a buffer of dtype {kind} cannot be lent")
    return kind
