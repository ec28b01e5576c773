"""Where figures of memory come from: the driver, the allocators of CuPy and PyTorch, or the host's own system."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from vitascope.device import Device
from vitascope.errors import DeviceError, MissingDependencyError
from vitascope.gpu.memory.host_memory import host_memory

if TYPE_CHECKING:
    from vitascope.gpu.profiling.nvml import NvmlGpu

__all__ = ["HostFigures", "MemoryFigures", "VRAMStats", "VramFigures", "figures_of"]

_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class VRAMStats:
    """One look at a GPU's memory, or at the host's where there is no GPU. Gigabytes are 10^9 bytes."""

    taken_seconds: float
    """When, on ``time.perf_counter``."""
    total_bytes: int
    allocated_bytes: int
    """In use by all processes, this one's idle pools and the driver's own share included."""
    process_bytes: int | None
    """This process's part of ``allocated_bytes``; None where the driver does not tell, as in most containers."""
    reserved_bytes: int
    """What the allocators of this process (CuPy, PyTorch) hold, lent and idle; on a host, its resident memory."""
    in_tensors_bytes: int
    """The part of ``reserved_bytes`` lent to arrays and tensors now; on a host, the same as ``reserved_bytes``."""
    driver_bytes: int | None
    """What driver and firmware keep; None where it is not told."""
    gpu_percent: float | None
    """Share of the driver's last period (1/6 to 1 s) in which any kernel ran, 0 to 100; None without NVML."""
    processes: Mapping[int, int] = field(default_factory=dict)
    """Bytes of each process that has some, by process id, as far as the driver tells."""

    @property
    def allocated_vram_gb(self) -> float:
        """In use by all processes."""
        return self.allocated_bytes / _GB

    @property
    def total_vram_gb(self) -> float:
        """In all."""
        return self.total_bytes / _GB

    @property
    def free_vram_gb(self) -> float:
        """Used by nobody."""
        return (self.total_bytes - self.allocated_bytes) / _GB

    @property
    def reserved_vram_gb(self) -> float:
        """Held by the allocators of this process."""
        return self.reserved_bytes / _GB

    @property
    def process_vram_gb(self) -> float | None:
        """What this process has, as the driver sees it; None where it does not tell."""
        return None if self.process_bytes is None else self.process_bytes / _GB

    @property
    def utilization(self) -> float:
        """Share of the memory that is in use, 0 to 1."""
        return self.allocated_bytes / self.total_bytes


class MemoryFigures(Protocol):
    """A source of figures."""

    note: str | None
    """Which figures are missing, and what would bring them."""

    def look(self) -> VRAMStats:
        """The figures now."""
        ...

    def close(self) -> None:
        """Let go of the source."""
        ...


def figures_of(device: Device) -> MemoryFigures:
    """The source for a device.

    Raises:
        DeviceError: The GPU does not answer.
        MissingDependencyError: Nothing on this system tells how much memory is in use.
    """
    return HostFigures() if device.kind == "cpu" else VramFigures(device.index)


class HostFigures:
    """The host's memory."""

    def __init__(self) -> None:
        self.note: str | None = None
        host_memory()  # raises here rather than in a thread

    def look(self) -> VRAMStats:
        """The figures now."""
        memory = host_memory()
        return VRAMStats(
            taken_seconds=time.perf_counter(),
            total_bytes=memory.total_bytes,
            allocated_bytes=memory.used_bytes,
            process_bytes=memory.process_bytes,
            reserved_bytes=memory.process_bytes,
            in_tensors_bytes=memory.process_bytes,
            driver_bytes=None,
            gpu_percent=None,
        )

    def close(self) -> None:
        """Nothing is held."""


class VramFigures:
    """A GPU's memory: NVML, and the allocators of those libraries that this process has loaded.

    Without NVML the CUDA runtime tells what is free, which makes a CUDA context (some hundred megabytes) where this
    process has none.

    Args:
        device_id: Number of the GPU.

    Raises:
        DeviceError: The GPU does not answer.
    """

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._nvml: NvmlGpu | None = None
        self.note: str | None = None
        try:
            # Imported here: of no use without a GPU.
            from vitascope.gpu.profiling.nvml import NvmlGpu

            self._nvml = NvmlGpu(device_id)
        except (MissingDependencyError, DeviceError) as error:
            self.note = f"figures of single processes and of the GPU's load are missing: {error}"
        self.look()

    def look(self) -> VRAMStats:
        """The figures now."""
        reserved, in_tensors = _allocators(self._device_id)
        process = driver = percent = None
        processes: dict[int, int] = {}
        if self._nvml is not None:
            memory = self._nvml.memory()
            total, used = memory.total_bytes, memory.used_bytes
            processes, driver = memory.process_bytes, memory.reserved_bytes
            process = processes.get(os.getpid())
            percent = self._nvml.gpu_percent()
        else:
            total, used = _by_runtime(self._device_id)
        return VRAMStats(
            taken_seconds=time.perf_counter(),
            total_bytes=total,
            allocated_bytes=used,
            process_bytes=process,
            reserved_bytes=reserved,
            in_tensors_bytes=in_tensors,
            driver_bytes=driver,
            gpu_percent=percent,
            processes=processes,
        )

    def close(self) -> None:
        """Let go of NVML."""
        if self._nvml is not None:
            self._nvml.close()


def _by_runtime(device_id: int) -> tuple[int, int]:
    import cupy

    try:
        with cupy.cuda.Device(device_id):
            free, total = cupy.cuda.runtime.memGetInfo()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"GPU {device_id} tells nothing of its memory: {error}") from error
    return int(total), int(total - free)


def _allocators(device_id: int) -> tuple[int, int]:
    """(held, lent) bytes of CuPy's and PyTorch's allocators, where they are loaded; neither is loaded for this."""
    held = lent = 0
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None:
        with cupy.cuda.Device(device_id):
            pool = cupy.get_default_memory_pool()
            held += int(pool.total_bytes())
            lent += int(pool.used_bytes())
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        held += int(torch.cuda.memory_reserved(device_id))
        lent += int(torch.cuda.memory_allocated(device_id))
    return held, lent
