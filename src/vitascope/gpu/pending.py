"""A result that is still being computed, on a pooled CUDA stream or on a worker thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vitascope.gpu.engines.gpu_arrays import import_cupy, on_stream
from vitascope.gpu.interchange import kind_of

__all__ = ["OnLane", "OnThread", "PendingResult", "callers_stream"]


def callers_stream(arrays: tuple[Any, ...], *, device_id: int) -> int | None:
    """Handle of torch's current stream when any of the arrays is a tensor on a GPU; None for CuPy's current one."""
    for array in arrays:
        if kind_of(array) == "torch" and array.is_cuda:
            import torch

            return int(torch.cuda.current_stream(device_id).cuda_stream)
    return None


class PendingResult(ABC):
    """What ``async_exec=True`` returns.

    The inputs and ``out`` must not be written before the result is there. The result may be used on the stream that
    ``wait`` was called from; on others, the caller orders them. It need not be waited for.
    """

    @property
    @abstractmethod
    def done(self) -> bool:
        """True when the result is there; never waits. A computation that failed is done."""

    @abstractmethod
    def wait(self) -> Any:
        """The result, in the kind that the input had, or ``out``.

        An array on a GPU is returned at once: the caller's current stream (torch's for a tensor, else CuPy's) is
        ordered behind the work, and the host goes on. For an array on the host the host waits.

        Raises:
            Exception: What the computation on a worker thread raised.
        """

    @abstractmethod
    def synchronize(self) -> Any:
        """The result, once it is there: the host waits in any case.

        Raises:
            Exception: As ``wait``.
        """


class OnThread(PendingResult):
    """A result that a worker thread computes.

    Args:
        future: The computation.
    """

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """True when the thread is through."""
        return self._future.done()

    def wait(self) -> Any:
        """The result; see ``PendingResult``."""
        return self._future.result()

    def synchronize(self) -> Any:
        """The result."""
        return self._future.result()


class OnLane(PendingResult):
    """A result that a CUDA stream computes.

    Args:
        event: ``cupy.cuda.Event`` behind the work.
        device_id: Number of the GPU.
        collect: Gives the result once the event has passed, or, for an array on the GPU, at any time.
        on_gpu: True when the result stays on the GPU.
    """

    def __init__(self, event: Any, *, device_id: int, collect: Callable[[], Any], on_gpu: bool) -> None:
        self.event = event
        """``cupy.cuda.Event`` behind the work; another stream can wait for it."""
        self._device_id = device_id
        self._collect = collect
        self._on_gpu = on_gpu
        self._result: Any = None
        self._collected = False

    @property
    def done(self) -> bool:
        """True when the GPU is through."""
        return bool(self.event.done)

    def wait(self) -> Any:
        """The result; see ``PendingResult``."""
        if not self._on_gpu:
            return self.synchronize()
        result = self._once()
        with import_cupy().cuda.Device(self._device_id):
            handle = callers_stream((result,), device_id=self._device_id)
            with on_stream(handle, device_id=self._device_id) as stream:
                stream.wait_event(self.event)
        return result

    def synchronize(self) -> Any:
        """The result, once it is there."""
        self.event.synchronize()
        return self._once()

    def _once(self) -> Any:
        if not self._collected:
            self._result, self._collected = self._collect(), True
        return self._result
