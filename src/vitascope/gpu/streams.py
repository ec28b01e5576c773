"""The CUDA streams of one job, and which thread works on which."""

from __future__ import annotations

from typing import Any

from vitascope.device import Device

__all__ = ["JobStreams"]


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
