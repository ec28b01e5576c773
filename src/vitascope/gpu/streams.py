"""The CUDA streams of one job, and which thread works on which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vitascope.device import Device
from vitascope.errors import DeviceMemoryError, EngineError

__all__ = ["JobStreams", "memory_errors"]


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn CuPy's report of a GPU without memory into ours, which says how much is left.

    Raises:
        DeviceMemoryError: The GPU has too little memory.
    """
    import cupy

    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        free, total = cupy.cuda.runtime.memGetInfo()
        raise DeviceMemoryError(
            f"the GPU's memory is used up: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free ({error}); smaller "
            "model.batch_size, gpu.decoder_sessions or processing.max_queue_mb need less"
        ) from error


class JobStreams:
    """Three streams on one GPU: pictures are prepared, networks and kernels run, results come down, side by side.

    All three are non-blocking: they do not wait for the legacy default stream, on which decoders work.

    Args:
        device: A GPU.
    """

    def __init__(self, device: Device) -> None:
        import cupy

        self.device = device
        self._cupy = cupy
        with cupy.cuda.Device(device.index):
            self.preparing: Any = cupy.cuda.Stream(non_blocking=True)
            """``cupy.cuda.Stream`` of the preprocessing."""
            self.computing: Any = cupy.cuda.Stream(non_blocking=True)
            """``cupy.cuda.Stream`` of the network and of what makes pictures from its answer."""
            self.copying: Any = cupy.cuda.Stream(non_blocking=True)
            """``cupy.cuda.Stream`` of copies to the host."""

    def bind(self, stream: Any) -> None:
        """Make this thread work on the GPU and on one of the streams."""
        self._cupy.cuda.Device(self.device.index).use()
        stream.use()

    def event(self) -> Any:
        """A new event without a timer, recorded on this thread's stream."""
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        return event

    def synchronize(self) -> None:
        """Wait on the host until all three are idle."""
        with self._cupy.cuda.Device(self.device.index):
            for stream in (self.preparing, self.computing, self.copying):
                stream.synchronize()

    def finish(self) -> None:
        """Wait until all three are idle, and give idle memory back: the next film has other sizes.

        Raises:
            EngineError: The GPU failed meanwhile.
        """
        try:
            self.synchronize()
            self.release_idle_memory()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"{self.device.label} failed: {error}") from error

    def release_idle_memory(self) -> None:
        """Give back what CuPy keeps for later, on the GPU and page-locked: others cannot use it."""
        with self._cupy.cuda.Device(self.device.index):
            self._cupy.get_default_memory_pool().free_all_blocks()
            self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    def used_bytes(self) -> int:
        """Memory of the GPU that is in use, by any process."""
        free, total = self._memory()
        return total - free

    def total_bytes(self) -> int:
        """Memory of the GPU."""
        return self._memory()[1]

    def _memory(self) -> tuple[int, int]:
        with self._cupy.cuda.Device(self.device.index):
            free, total = self._cupy.cuda.runtime.memGetInfo()
        return int(free), int(total)
