"""The CUDA streams of one job, and the thread that uses each."""

from __future__ import annotations

from typing import Any

from vitascope.device import Device
from vitascope.errors import EngineError
from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool, shared_pool
from vitascope.gpu.memory.shortage import VramBudget


class JobStreams:
    """Three streams on one GPU: pictures are prepared, networks and kernels run, results come down, side by side.

    All three are non-blocking: they do not wait for the legacy default stream, on which decoders work.

    Args:
        device: A GPU.
        pin_memory: False for copies from and to ordinary memory: slower, and the host waits for them.
        max_vram_usage: Most of the GPU's memory that may be in use, by all processes, as a share, above 0 up to 1.
        memory_fraction: Share that is reserved at once, and not exceeded; None takes memory as it is needed.
        preparing_streams: Streams that prepare pictures, taken in turn.
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
        """What frames go up from and pictures come down to."""
        self.budget = VramBudget(device, max_usage=max_vram_usage, reserve=memory_fraction)
        """Limits of the allocators."""
        self._cupy = cupy
        with cupy.cuda.Device(device.index):
            self._preparing = [cupy.cuda.Stream(non_blocking=True) for _ in range(preparing_streams)]
            self.preparing: Any = self._preparing[0]
            """``cupy.cuda.Stream`` of the preprocessing; the first, where there are several."""
            self.computing: Any = cupy.cuda.Stream(non_blocking=True)
            """``cupy.cuda.Stream`` of the network and of what makes pictures from its answer."""
            self.copying: Any = cupy.cuda.Stream(non_blocking=True)
            """``cupy.cuda.Stream`` of copies to the host."""
        self.keeps_idle_memory = False
        """True while the next job may be of the same size: it takes what this one let go of. To get memory from the
        driver and to lock pages takes tenths of a second, and all processes and GPUs of a host wait for one another."""
        self.budget.install()

    def close(self) -> None:
        """Take the limits away, and give what is reserved back."""
        self.budget.close()

    def bind(self, stream: Any) -> None:
        """Make this thread work on the GPU and on one of the streams."""
        self._cupy.cuda.Device(self.device.index).use()
        stream.use()

    def current(self) -> Any:
        """The ``cupy.cuda.Stream`` that this thread works on."""
        return self._cupy.cuda.get_current_stream()

    def next_preparing(self) -> None:
        """Make this thread work on the next of the preprocessing's streams; its device stays."""
        self._preparing.append(self._preparing.pop(0))
        self._preparing[0].use()

    def event(self) -> Any:
        """A new event without a timer, recorded on this thread's stream."""
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        return event

    def synchronize(self) -> None:
        """Wait on the host until all are idle."""
        with self._cupy.cuda.Device(self.device.index):
            for stream in (*self._preparing, self.computing, self.copying):
                stream.synchronize()

    def finish(self, *, is_last: bool = False) -> None:
        """Wait until all three are idle, and give idle memory back: the next video has other sizes.

        Args:
            is_last: Give back what ``keeps_idle_memory`` kept.

        Raises:
            EngineError: The GPU failed meanwhile.
        """
        try:
            self.synchronize()
            if is_last or not self.keeps_idle_memory:
                self.release_idle_memory()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"{self.device.label} failed: {error}") from error

    def release_idle_memory(self) -> None:
        """Give back what is kept for later, on the GPU and page-locked: others cannot use it."""
        self.host_memory.trim()
        with self._cupy.cuda.Device(self.device.index):
            self._cupy.get_default_memory_pool().free_all_blocks()
        self.budget.refresh()

    def check_memory(self) -> int:
        """Memory of the GPU that is in use, by any process; the limits follow what others have of it."""
        free, total = self._memory()
        self.budget.refresh((free, total))
        return total - free

    def used_bytes(self) -> int:
        """Memory of the GPU that is in use, by any process."""
        free, total = self._memory()
        return total - free

    def total_bytes(self) -> int:
        """Memory of the GPU."""
        return self._memory()[1]

    def allowed_bytes(self) -> int:
        """Memory of the GPU that may be in use, by everybody together or by what is reserved."""
        return self.budget.allowed_bytes(self.total_bytes())

    def _memory(self) -> tuple[int, int]:
        with self._cupy.cuda.Device(self.device.index):
            free, total = self._cupy.cuda.runtime.memGetInfo()
        return int(free), int(total)
