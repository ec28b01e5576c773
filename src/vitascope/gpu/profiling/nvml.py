"""One GPU as NVML sees it: load of its units, PCIe, power, temperature, clocks.

Functions and units: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitascope.closing import Closing
from vitascope.errors import DeviceError, MissingDependencyError

_THROTTLING = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (driver)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReasons that mean: it could be faster. The others (idle, set by the user) do not."""
_PCIE_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""One lane in one direction after line coding, by generation (PCI-SIG)."""


def pcie_bytes_per_second(generation: int, width: int) -> float | None:
    """Most bytes a second in one direction; None for a generation that is not known."""
    lane = _PCIE_LANE_BYTES_PER_SECOND.get(generation)
    return None if lane is None else lane * width


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """Limits of a GPU; None if the driver does not report it."""

    name: str
    memory_bytes: int | None
    power_watts: float | None
    slowdown_celsius: float | None
    """Temperature at which it begins to slow down."""
    sm_clock_mhz: float | None
    pcie_bytes_per_second: float | None
    """The most that the link as it is now moves in one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """One reading of a GPU; None if the driver does not report it."""

    gpu_percent: float | None
    """Share of the last driver period (1/6 to 1 s) in which any kernel ran."""
    memory_bus_percent: float | None
    decoder_percent: float | None
    encoder_percent: float | None
    pcie_to_gpu_bytes_per_second: float | None
    """Over the last 20 ms."""
    pcie_from_gpu_bytes_per_second: float | None
    memory_used_bytes: int | None
    """By all processes."""
    power_watts: float | None
    temperature_celsius: float | None
    sm_clock_mhz: float | None
    throttling: tuple[str, ...]
    """Why the clocks are below what they could be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """One reading of a GPU's memory."""

    total_bytes: int
    used_bytes: int
    """By all processes and by the driver itself."""
    reserved_bytes: int | None
    """Kept by driver and firmware, a part of what is used; None if an old driver does not report it."""
    process_bytes: dict[int, int]
    """By process id as the driver counts, which a container may not; empty if it does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Settings that an administrator can change; None if the driver does not report them."""

    power_watts: float | None
    """Its present power limit."""
    power_default_watts: float | None
    """Its maker's power limit."""
    keeps_driver_loaded: bool | None
    """Persistence mode; Linux alone has it."""


class NvmlGpu(Closing):
    """NVML's view of one GPU. Close it, or use it as a context manager.

    Args:
        device_id: Number of the GPU as CUDA counts, which ``CUDA_VISIBLE_DEVICES`` changes.

    Raises:
        MissingDependencyError: ``nvidia-ml-py`` is not installed.
        DeviceError: There is no driver, or no such GPU.
    """

    def __init__(self, device_id: int = 0) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise MissingDependencyError(
                "the GPU's load is read through NVML: pip install 'vitascope[cuda]' (nvidia-ml-py)"
            ) from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DeviceError(f"no NVIDIA driver answers: {error}") from error
        try:
            self._handle = self._find(device_id)
        except pynvml.NVMLError as error:
            pynvml.nvmlShutdown()
            raise DeviceError(f"NVML knows no GPU {device_id}: {error}") from error
        except DeviceError:
            pynvml.nvmlShutdown()
            raise

    def close(self) -> None:
        """Release NVML."""
        self._nvml.nvmlShutdown()

    def limits(self) -> GpuLimits:
        """Limits of the GPU."""
        nvml, handle = self._nvml, self._handle
        name = self._ask(lambda: nvml.nvmlDeviceGetName(handle)) or "NVIDIA GPU"
        power = self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        return GpuLimits(
            name=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
            memory_bytes=self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
            power_watts=None if power is None else power / 1e3,
            slowdown_celsius=self._ask(
                lambda: float(
                    nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
                )
            ),
            sm_clock_mhz=self._ask(lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
            pcie_bytes_per_second=self._ask(
                lambda: pcie_bytes_per_second(
                    nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
                    nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
                )
            ),
        )

    def figures(self) -> GpuFigures:
        """One look. PCIe is averaged over 20 ms for each direction, so a look takes 40 ms or more."""
        nvml, handle = self._nvml, self._handle
        rates = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0

        def pcie(counter: int) -> float | None:
            kilobytes = self._ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, counter))
            return None if kilobytes is None else kilobytes * 1024.0

        return GpuFigures(
            gpu_percent=None if rates is None else float(rates.gpu),
            memory_bus_percent=None if rates is None else float(rates.memory),
            decoder_percent=self._ask(lambda: float(nvml.nvmlDeviceGetDecoderUtilization(handle)[0])),
            encoder_percent=self._ask(lambda: float(nvml.nvmlDeviceGetEncoderUtilization(handle)[0])),
            pcie_to_gpu_bytes_per_second=pcie(nvml.NVML_PCIE_UTIL_RX_BYTES),
            pcie_from_gpu_bytes_per_second=pcie(nvml.NVML_PCIE_UTIL_TX_BYTES),
            memory_used_bytes=self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
            power_watts=None if power is None else power / 1e3,
            temperature_celsius=self._ask(
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            sm_clock_mhz=self._ask(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            throttling=tuple(reason for bit, reason in _THROTTLING.items() if reasons & bit),
        )

    def memory(self) -> GpuMemory:
        """Memory alone: microseconds, where ``figures`` takes tens of milliseconds.

        Raises:
            DeviceError: The driver does not answer any more.
        """
        nvml, handle = self._nvml, self._handle
        try:
            simple = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            raise DeviceError(f"the NVIDIA driver tells nothing of the GPU's memory: {error}") from error
        detailed = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        processes = [
            *(self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()),
            *(self._ask(lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or ()),
        ]
        return GpuMemory(
            total_bytes=int(simple.total),
            # Not its own "used", which older drivers count without what they keep for themselves.
            used_bytes=int(simple.total) - int(simple.free),
            reserved_bytes=None if detailed is None else int(detailed.reserved),
            process_bytes={one.pid: int(one.usedGpuMemory) for one in processes if one.usedGpuMemory},
        )

    def settings(self) -> GpuSettings:
        """Present settings; reading needs no rights."""
        nvml, handle = self._nvml, self._handle
        power = self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        default = self._ask(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
        return GpuSettings(
            power_watts=None if power is None else power / 1e3,
            power_default_watts=None if default is None else default / 1e3,
            keeps_driver_loaded=self._ask(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        )

    def gpu_percent(self) -> float | None:
        """Share of the last driver period (1/6 to 1 s) in which any kernel ran; None if it does not report it."""
        rates = self._ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle))
        return None if rates is None else float(rates.gpu)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The driver's answer; None if this GPU or this user gets none."""
        try:
            return question()
        except self._nvml.NVMLError:
            return None

    def _find(self, device_id: int) -> Any:
        """By bus address: CUDA and NVML may number GPUs differently."""
        return self._nvml.nvmlDeviceGetHandleByPciBusId(_bus_address(device_id))


def _bus_address(device_id: int) -> bytes:
    """Bus address of a GPU, from the CUDA driver itself: needs neither CuPy nor PyTorch, and starts no context.

    https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        raise DeviceError(f"the NVIDIA driver has no CUDA: {name} is not there") from error
    device, address = ctypes.c_int(), ctypes.create_string_buffer(32)
    if (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), device_id)
        or driver.cuDeviceGetPCIBusId(address, len(address), device)
    ):
        raise DeviceError(f"CUDA knows no GPU {device_id}")
    return address.value
