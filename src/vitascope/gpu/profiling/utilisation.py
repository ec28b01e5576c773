"""Sample CPU and GPU utilisation on a thread.

The GPU's figures come from NVML; functions and units:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

from vitascope.closing import Closing
from vitascope.device import available_cores
from vitascope.errors import DeviceError, MissingDependencyError
from vitascope.gpu.memory.host_memory import host_memory
from vitascope.gpu.profiling.intervals import AtIntervals, check_sampling

_THROTTLING = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (driver)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReasons for throttling. The others (idle, set by the user) are not."""
_PCIE_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second of a lane in one direction after line coding, by generation (PCI-SIG)."""


def pcie_bytes_per_second(generation: int, width: int) -> float | None:
    """Bandwidth of a PCIe link in one direction, in bytes per second; None for an unknown generation."""
    lane = _PCIE_LANE_BYTES_PER_SECOND.get(generation)
    return None if lane is None else lane * width


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """Limits of a GPU; None if the driver does not report it."""

    name: str
    memory_bytes: int | None
    power_watts: float | None
    slowdown_celsius: float | None
    """Temperature at which it starts to throttle."""
    sm_clock_mhz: float | None
    pcie_bytes_per_second: float | None
    """Bandwidth of the current link in one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """A sample of a GPU; None if the driver does not report it."""

    gpu_percent: float | None
    """Share of the last driver period (1/6 to 1 s) with a running kernel."""
    memory_bus_percent: float | None
    decoder_percent: float | None
    encoder_percent: float | None
    pcie_to_gpu_bytes_per_second: float | None
    """Averaged over the last 20 ms."""
    pcie_from_gpu_bytes_per_second: float | None
    memory_used_bytes: int | None
    """Memory in use by all processes."""
    power_watts: float | None
    temperature_celsius: float | None
    sm_clock_mhz: float | None
    throttling: tuple[str, ...]
    """Why the clocks are reduced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """A sample of a GPU's memory."""

    total_bytes: int
    used_bytes: int
    """Memory in use by all processes and the driver."""
    reserved_bytes: int | None
    """Memory kept by driver and firmware, part of ``used_bytes``; None if an old driver does not report it."""
    process_bytes: dict[int, int]
    """Bytes by the driver's process ids, which a container may not see; empty if not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Settings that an administrator can change; None if the driver does not report them."""

    power_watts: float | None
    """Current power limit."""
    power_default_watts: float | None
    """The vendor's power limit."""
    keeps_driver_loaded: bool | None
    """Persistence mode; on Linux only."""


class NvmlGpu(Closing):
    """One GPU seen through NVML. Close it, or use it as a context manager.

    Args:
        device_id: CUDA's number of the GPU, which ``CUDA_VISIBLE_DEVICES`` changes.

    Raises:
        MissingDependencyError: ``nvidia-ml-py`` is not installed.
        DeviceError: There is no driver, or the GPU does not exist.
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
        """Take a sample. PCIe is averaged over 20 ms per direction, so this takes 40 ms or more."""
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
        """Sample the memory alone, in microseconds; ``figures`` takes tens of milliseconds.

        Raises:
            DeviceError: The driver no longer responds.
        """
        nvml, handle = self._nvml, self._handle
        try:
            simple = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            raise DeviceError(f"the NVIDIA driver does not report the GPU's memory: {error}") from error
        detailed = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        processes = [
            *(self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()),
            *(self._ask(lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or ()),
        ]
        return GpuMemory(
            total_bytes=int(simple.total),
            # Not NVML's own "used": older drivers exclude their own memory from it.
            used_bytes=int(simple.total) - int(simple.free),
            reserved_bytes=None if detailed is None else int(detailed.reserved),
            process_bytes={one.pid: int(one.usedGpuMemory) for one in processes if one.usedGpuMemory},
        )

    def settings(self) -> GpuSettings:
        """Current settings; reading needs no privileges."""
        nvml, handle = self._nvml, self._handle
        power = self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        default = self._ask(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
        return GpuSettings(
            power_watts=None if power is None else power / 1e3,
            power_default_watts=None if default is None else default / 1e3,
            keeps_driver_loaded=self._ask(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        )

    def gpu_percent(self) -> float | None:
        """Share of the last driver period (1/6 to 1 s) with a running kernel; None if not reported."""
        rates = self._ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle))
        return None if rates is None else float(rates.gpu)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Query the driver; None if this GPU or this user gets no answer."""
        try:
            return question()
        except self._nvml.NVMLError:
            return None

    def _find(self, device_id: int) -> Any:
        """Find the GPU by bus address: CUDA and NVML may number GPUs differently."""
        return self._nvml.nvmlDeviceGetHandleByPciBusId(_bus_address(device_id))


def _bus_address(device_id: int) -> bytes:
    """Get a GPU's bus address from the CUDA driver, without CuPy, PyTorch or a CUDA context.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationSample:
    """A utilisation sample."""

    seconds: float
    """Time on ``time.perf_counter``."""
    process_cores: float
    """CPU cores kept busy by this process since the last sample."""
    machine_cpu_percent: float | None
    """Load of all CPUs by all processes since the last sample, 0..100; None if not reported."""
    resident_bytes: int | None
    """Host memory of this process; None if not reported."""
    gpu: GpuFigures | None
    """None without a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """A summary of samples: means, and maxima for peaks. None if nothing was reported."""

    sample_count: int
    seconds: float
    """Time from first to last sample."""
    cores: int
    """CPU cores available to the process."""
    process_cores: float
    machine_cpu_percent: float | None = None
    resident_bytes_max: int | None = None
    gpu_percent: float | None = None
    memory_bus_percent: float | None = None
    decoder_percent: float | None = None
    encoder_percent: float | None = None
    pcie_to_gpu_bytes_per_second: float | None = None
    pcie_from_gpu_bytes_per_second: float | None = None
    memory_used_bytes_max: int | None = None
    power_watts: float | None = None
    temperature_celsius_max: float | None = None
    sm_clock_mhz: float | None = None
    throttled_share: float = 0.0
    """Share of samples, 0..1, with the GPU throttled by heat; a reached power cap is normal."""
    throttling: tuple[str, ...] = ()
    """All reasons seen for reduced clocks."""
    limits: GpuLimits | None = None
    """None without a GPU."""
    gc_count: int = 0
    """Number of garbage collections by Python, which stop all threads."""
    gc_seconds: float = 0.0
    """Total time of the collections."""
    gc_seconds_max: float = 0.0
    """Longest collection."""

    @property
    def cpu_share(self) -> float:
        """Share of the available cores kept busy, 0..1."""
        return min(self.process_cores / self.cores, 1.0)

    @property
    def memory_share(self) -> float | None:
        """Peak share of GPU memory in use, 0..1."""
        if self.memory_used_bytes_max is None or self.limits is None or not self.limits.memory_bytes:
            return None
        return self.memory_used_bytes_max / self.limits.memory_bytes

    @property
    def pcie_share(self) -> float | None:
        """Load of the busier direction of the PCIe link, 0..1."""
        most = None if self.limits is None else self.limits.pcie_bytes_per_second
        rates = (self.pcie_to_gpu_bytes_per_second, self.pcie_from_gpu_bytes_per_second)
        known = [rate for rate in rates if rate is not None]
        return min(max(known) / most, 1.0) if most and known else None


def summarise_samples(
    samples: Sequence[UtilisationSample], *, limits: GpuLimits | None = None
) -> Utilisation:
    """Compute means and maxima of samples; the first sample only marks the start.

    Raises:
        ValueError: There are fewer than two samples.
    """
    if len(samples) < 2:
        raise ValueError("utilisation is measured between samples: at least two are needed")
    counted = samples[1:]
    seconds = samples[-1].seconds - samples[0].seconds
    lengths = [after.seconds - before.seconds for before, after in zip(samples, counted, strict=False)]

    def mean(value: Callable[[UtilisationSample], float | None]) -> float | None:
        pairs = [(value(sample), length) for sample, length in zip(counted, lengths, strict=True)]
        known = [(found, length) for found, length in pairs if found is not None]
        weight = sum(length for _, length in known)
        return sum(found * length for found, length in known) / weight if weight else None

    def most(value: Callable[[UtilisationSample], float | None]) -> float | None:
        return max((found for sample in counted if (found := value(sample)) is not None), default=None)

    def of_gpu(name: str) -> Callable[[UtilisationSample], float | None]:
        return lambda sample: None if sample.gpu is None else getattr(sample.gpu, name)

    reasons = [sample.gpu.throttling for sample in counted if sample.gpu is not None]
    hot = [any("thermal" in reason or "hardware" in reason for reason in found) for found in reasons]
    resident = most(lambda sample: sample.resident_bytes)
    used = most(of_gpu("memory_used_bytes"))
    return Utilisation(
        sample_count=len(samples),
        seconds=seconds,
        cores=available_cores(),
        process_cores=mean(lambda sample: sample.process_cores) or 0.0,
        machine_cpu_percent=mean(lambda sample: sample.machine_cpu_percent),
        resident_bytes_max=None if resident is None else int(resident),
        memory_used_bytes_max=None if used is None else int(used),
        temperature_celsius_max=most(of_gpu("temperature_celsius")),
        gpu_percent=mean(of_gpu("gpu_percent")),
        memory_bus_percent=mean(of_gpu("memory_bus_percent")),
        decoder_percent=mean(of_gpu("decoder_percent")),
        encoder_percent=mean(of_gpu("encoder_percent")),
        pcie_to_gpu_bytes_per_second=mean(of_gpu("pcie_to_gpu_bytes_per_second")),
        pcie_from_gpu_bytes_per_second=mean(of_gpu("pcie_from_gpu_bytes_per_second")),
        power_watts=mean(of_gpu("power_watts")),
        sm_clock_mhz=mean(of_gpu("sm_clock_mhz")),
        throttled_share=sum(hot) / len(hot) if hot else 0.0,
        throttling=tuple(sorted({reason for found in reasons for reason in found})),
        limits=limits,
    )


class UtilisationSampler:
    """Samples CPU and GPU while a block runs: ``with UtilisationSampler() as sampler: ...``.

    Its thread, ``vitascope-utilisation``, is joined on exit. Without a GPU or ``nvidia-ml-py`` it samples the
    CPU alone, and ``note`` says why.

    Args:
        interval_seconds: Sampling interval, 0.02 or more.
        device: ``auto`` includes a GPU if one is visible; ``cuda`` requires one; ``cpu`` ignores GPUs.
        device_id: Number of the GPU.
        keep_samples: Number of newest samples to keep; at the default interval 100,000 last 14 hours.

    Raises:
        MissingDependencyError: ``device="cuda"`` without ``nvidia-ml-py``.
        DeviceError: ``device="cuda"`` without a GPU.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        interval_seconds: float = 0.5,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        keep_samples: int = 100_000,
    ) -> None:
        check_sampling(interval_seconds, least=0.02, keep_samples=keep_samples, device=device)
        self.note: str | None = None
        """Why GPU figures are missing."""
        self._gpu = self._open_gpu(device, device_id)
        self._limits = None if self._gpu is None else self._gpu.limits()
        self._samples: deque[UtilisationSample] = deque(maxlen=keep_samples)
        self._processor = _Processor()
        self._collections = _Collections()
        self._watch = AtIntervals(self._look, interval_seconds, name="vitascope-utilisation")

    def __enter__(self) -> UtilisationSampler:
        """Start sampling."""
        self._look()
        gc.callbacks.append(self._collections)
        self._watch.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Take a last sample and stop the thread.

        Raises:
            Exception: Whatever the thread raised, unless the block itself failed.
        """
        self._watch.end()
        gc.callbacks.remove(self._collections)
        if self._watch.failure is None:
            self._look()
        if self._gpu is not None:
            self._gpu.close()
            self._gpu = None
        if self._watch.failure is not None and error is None:
            raise self._watch.failure

    def samples(self) -> list[UtilisationSample]:
        """The samples so far, from any thread."""
        return list(self._samples)

    def summary(self) -> Utilisation:
        """Summarise all samples.

        Raises:
            ValueError: There are fewer than two samples.
        """
        pauses = self._collections
        return replace(
            summarise_samples(self.samples(), limits=self._limits),
            gc_count=pauses.count,
            gc_seconds=pauses.seconds,
            gc_seconds_max=pauses.seconds_max,
        )

    def _open_gpu(self, device: str, device_id: int) -> NvmlGpu | None:
        if device == "cpu":
            return None
        try:
            return NvmlGpu(device_id)
        except (MissingDependencyError, DeviceError) as error:
            if device == "cuda":
                raise
            self.note = str(error)
            return None

    def _look(self) -> None:
        gpu = None if self._gpu is None else self._gpu.figures()
        now = perf_counter()
        process_cores, machine_percent = self._processor.since_last(now)
        self._samples.append(
            UtilisationSample(
                seconds=now,
                process_cores=process_cores,
                machine_cpu_percent=machine_percent,
                resident_bytes=resident_bytes(),
                gpu=gpu,
            )
        )


class _Collections:
    """Times garbage collections; called by the collector in any thread, one collection at a time."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = self.seconds_max = 0.0
        self._began = 0.0

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        """Handle the start or end of a collection."""
        if phase == "start":
            self._began = perf_counter()
        elif self._began:
            seconds = perf_counter() - self._began
            self.count += 1
            self.seconds += seconds
            self.seconds_max = max(self.seconds_max, seconds)


class _Processor:
    """Differences of the system's CPU counters."""

    def __init__(self) -> None:
        self._at = perf_counter()
        self._process_seconds = process_time()
        self._machine = _machine_ticks()

    def since_last(self, now: float) -> tuple[float, float | None]:
        """Cores kept busy by this process, and the load of the whole machine in percent."""
        process_seconds, machine = process_time(), _machine_ticks()
        elapsed = now - self._at
        cores = (process_seconds - self._process_seconds) / elapsed if elapsed > 0 else 0.0
        percent = None
        if machine is not None and self._machine is not None:
            busy, total = machine[0] - self._machine[0], machine[1] - self._machine[1]
            percent = 100.0 * busy / total if total > 0 else None  # ticks are 10 ms long
        self._at, self._process_seconds = now, process_seconds
        if percent is not None:
            self._machine = machine
        return cores, percent


def _machine_ticks() -> tuple[float, float] | None:
    """Busy and total time of all CPUs: from /proc/stat (proc(5)), else psutil, else None."""
    stat = Path("/proc/stat")
    if stat.exists():
        # user nice system idle iowait irq softirq steal; guest time is inside user's.
        values = [float(value) for value in stat.read_text().split("\n", 1)[0].split()[1:9]]
        idle = sum(values[3:5])
        return sum(values) - idle, sum(values)
    try:
        import psutil
    except ImportError:
        return None
    times = psutil.cpu_times()
    total = sum(times)
    return total - times.idle, total


def resident_bytes() -> int | None:
    """Host memory of this process, in bytes; None if not reported."""
    try:
        return host_memory().process_bytes
    except MissingDependencyError:
        return None
