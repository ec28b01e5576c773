"""CUDA streams of one job, and which thread works on which."""

from __future__ import annotations

from typing import Any

from vitascope.device import Device
from vitascope.errors import EngineError
from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool, shared_pool
from vitascope.gpu.memory.shortage import VramBudget


class JobStreams:
    """Three streams on one GPU, for preprocessing, compute and downloads, which overlap.

    All three are non-blocking: they do not wait for the legacy default stream, which decoders use.

    Args:
        device: The GPU.
        pin_memory: Use page-locked host memory. False uses pageable memory: slower, and copies block the
            host.
        max_vram_usage: Largest share of the GPU's memory in use by all processes together, above 0 up to 1.
        memory_fraction: Share to reserve at once and never exceed; None allocates on demand.
        preparing_streams: Number of preprocessing streams, used in turn.
    """

    def __init__(
        self,
        device: Device,
        *,
        pin_memory: bool = True,
        max_vram_usage: float = 1.0,
        memory_fraction: float | None = None,
        preparing_streams: int = 1,
    ) -> None:
        import cupy

        self.device = device
        self.host_memory: PinnedMemoryPool = shared_pool(device.index, page_locked=pin_memory)
        """Host memory for uploads and downloads."""
        self.budget = VramBudget(device, max_usage=max_vram_usage, reserve=memory_fraction)
        """Limits of the allocators."""
        self._cupy = cupy
        with cupy.cuda.Device(device.index):
            self._preparing = [cupy.cuda.Stream(non_blocking=True) for _ in range(preparing_streams)]
            self.preparing: Any = self._preparing[0]
            """``cupy.cuda.Stream`` of the preprocessing; the first of several."""
            self.computing: Any = cupy.cuda.Stream(non_blocking=True)
            """``cupy.cuda.Stream`` of the network and of the kernels that read its output."""
            self.copying: Any = cupy.cuda.Stream(non_blocking=True)
            """``cupy.cuda.Stream`` of downloads."""
        self.keeps_idle_memory = False
        """Keep idle memory for the next job, which may have the same size. Allocating device memory and
        locking pages takes tenths of a second, and all processes and GPUs of a host wait for one another
        meanwhile."""
        self.budget.install()

    def close(self) -> None:
        """Remove the limits and free the reserved memory."""
        self.budget.close()

    def bind(self, stream: Any) -> None:
        """Bind the calling thread to the GPU and to one of the streams."""
        self._cupy.cuda.Device(self.device.index).use()
        stream.use()

    def current(self) -> Any:
        """The calling thread's ``cupy.cuda.Stream``."""
        return self._cupy.cuda.get_current_stream()

    def next_preparing(self) -> None:
        """Bind the calling thread to the next preprocessing stream; its device stays."""
        self._preparing.append(self._preparing.pop(0))
        self._preparing[0].use()

    def event(self) -> Any:
        """Record a new event without timing on the calling thread's stream."""
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        return event

    def synchronize(self) -> None:
        """Block the host until all streams are idle."""
        with self._cupy.cuda.Device(self.device.index):
            for stream in (*self._preparing, self.computing, self.copying):
                stream.synchronize()

    def finish(self, *, is_last: bool = False) -> None:
        """Wait until all streams are idle and free idle memory: the next video has other sizes.

        Args:
            is_last: Free the memory that ``keeps_idle_memory`` kept, too.

        Raises:
            EngineError: The GPU failed in the meantime.
        """
        try:
            self.synchronize()
            if is_last or not self.keeps_idle_memory:
                self.release_idle_memory()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"{self.device.label} failed: {error}") from error

    def release_idle_memory(self) -> None:
        """Free idle memory on the GPU and on the host, so that others can use it."""
        self.host_memory.trim()
        with self._cupy.cuda.Device(self.device.index):
            self._cupy.get_default_memory_pool().free_all_blocks()
        self.budget.refresh()

    def check_memory(self) -> int:
        """Measure the GPU memory in use by all processes, in bytes, and adapt the limits to it."""
        free, total = self._memory()
        self.budget.refresh((free, total))
        return total - free

    def used_bytes(self) -> int:
        """GPU memory in use by all processes, in bytes."""
        free, total = self._memory()
        return total - free

    def total_bytes(self) -> int:
        """Total GPU memory, in bytes."""
        return self._memory()[1]

    def allowed_bytes(self) -> int:
        """Upper limit of the GPU memory in use: of all processes, or of the reservation, in bytes."""
        return self.budget.allowed_bytes(self.total_bytes())

    def _memory(self) -> tuple[int, int]:
        with self._cupy.cuda.Device(self.device.index):
            free, total = self._cupy.cuda.runtime.memGetInfo()
        return int(free), int(total)
